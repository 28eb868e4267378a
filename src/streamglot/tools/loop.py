"""The tool loop: runs the calls of our own tools and asks the model again with their results.

Theory of operation. The loop is the last stage. A call that reaches it has passed the in-band parser and the policies. The start
of a call of ours leaves as a server call, so that no client runs it. The loop holds the end of the model turn. Once the turn has
ended properly, the loop asks a ``RunTool`` question for each call, up to the limit at once. Each reply is checked by the stages
before the loop (``CheckResult``), and then leaves as a ``ToolResult`` as it comes: the client, the store and the model get the
same result. When all calls have their one result, the loop ends the step and asks for the next model turn. A turn with calls of
the client's own ends the exchange with the client's calls open.

The loop does not wait, and knows the time only from its executor's clock. ``StepLog`` keeps the facts about each model turn and
each call, for the store and for observers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from ..errors import PolicyRefused, RequestError, StreamglotError, Unsupported, excerpt
from ..events import (
    Event,
    StepEnd,
    StreamEnd,
    StreamError,
    StreamStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    Usage,
)
from ..json.from_types import ArgumentsError
from ..json_types import JsonObject, JsonValue
from ..messages import Message, Request, TextPart, ToolCallPart, ToolChoice, ToolResultPart
from ..stages import Collect, messages_of
from ..stages.stage import CheckResult, ExchangeContext, NextRequest, Output, Question, QuestionGenerator, Stage
from .hosted import Activity, HostedTools
from .questions import (
    DIRECT,
    DirectCall,
    Executor,
    ListTools,
    Offer,
    RunTool,
    TurnCall,
    content_of,
    output_of_check,
    output_of_reply,
    refusal,
)
from .tool import NO_OUTPUT, ToolOutput, arguments_of

STEP: Final = "step"
"""The subject under which steps are reported. A later fact with the same ``number`` replaces an earlier one."""
UNFINISHED: Final = ("length", "content_filter", "refusal", "cancelled")
"""Stop reasons of turns that broke off. Their calls are not run."""


Price = Callable[[Usage], float]


class ToolLoop(Stage):
    """``patterns`` select the tools of this exchange. ``price`` is the cost of a model turn in US dollars."""

    def __init__(
        self, executor: Executor, patterns: Sequence[str], context: ExchangeContext, price: Price = lambda _usage: 0.0
    ) -> None:
        self._executor = executor
        self._patterns = patterns
        self._context = context
        self._price = price
        self._limits = executor.limits
        self._offer = Offer({})
        self._hosted = HostedTools(Request(), self._offer)
        self._activity = Activity(context, True)
        self._client_tools: frozenset[str] = frozenset()
        self._request = Request()
        self._began = 0.0
        self._step = 1
        self._runs: Counter[tuple[str, bytes]] = Counter()
        self._usage_before, self._usage = Usage(), Usage()
        self._cost = 0.0
        self._last_round = False
        self._over = False
        self._direct: DirectCall | None = context.state.get(DIRECT)
        self._steps = StepLog(context, executor.clock)
        self._start_turn()

    def _start_turn(self) -> None:
        self._turn = Collect()
        self._open: TurnCall | None = None
        self._calls: list[TurnCall] = []
        self._waiting: list[RunTool] = []
        self._running = 0
        self._checking: dict[CheckResult, TurnCall] = {}
        self._client_calls: list[str] = []
        self._end: StreamEnd | StreamError | None = None

    # --- the request

    def request(self, request: Request) -> QuestionGenerator[Request]:
        """Declares the tools. A tool of the client's own keeps its name; ours of the same name is left out."""
        self._began = self._executor.clock()
        self._steps.begin_turn()
        direct = self._direct
        offer = Offer({direct.name: direct.tool}) if direct is not None else (yield ListTools(self._executor, self._patterns))
        if isinstance(offer, Exception):
            raise StreamglotError(f"the tools could not be listed: {offer or type(offer).__name__}") from offer
        if (request.n or 1) > 1:
            raise Unsupported("tools that are run here need one answer at a time; leave out n", detail={"param": "n"})
        for fault in offer.faults:
            self._context.annotate("tool_source", {"fault": fault})
        self._hosted = HostedTools(request, offer)
        self._activity = Activity(self._context, request.stream)
        declared = self._hosted.declared
        self._client_tools = frozenset(spec.name for spec in declared)
        tools = {name: tool for name, tool in offer.tools.items() if name not in self._client_tools}
        if not tools and not self._client_tools:
            found = "; ".join(offer.faults) or "no tool of this name is enabled (tools.enabled)"
            raise RequestError(f"{excerpt(list(self._patterns))} selects no tool: {found}", code="tool_not_found")
        self._offer = Offer(tools, offer.faults)
        specs = [structs.replace(tool.spec(), name=name) for name, tool in tools.items()]
        self._request = structs.replace(
            request,
            tools=[*declared, *specs],
            tool_choice=self._hosted.choice(request.tool_choice),
            messages=self._executor.mixed.restore(self._context.key, request.messages),
        )
        return self._request

    # --- one model turn

    def feed(self, events: list[Event]) -> list[Output]:
        out: list[Output] = []
        for event in events:
            rule = _RULES.get(type(event))
            if rule is None:
                out.append(event)
            else:
                rule(self, event, out)
        if self._end is None:
            self._turn.feed_all(events)
        elif isinstance(events[-1], (StreamEnd, StreamError)) and not self._running and not self._checking:
            self._turn.feed_all(events)
            self._after_turn(out)
        return out

    def _started(self, event: StreamStart, out: list[Output]) -> None:
        if self._step == 1:
            out.append(event)

    def _call_started(self, event: ToolCallStart, out: list[Output]) -> None:
        if event.kind == "server":
            out.append(event)
        elif event.kind == "function" and event.name not in self._client_tools:
            self._open = TurnCall(event.call_id, event.name, self._steps.next_number())
            if not self._hosted.shows(event.name):
                # Without its native form: writers would take the call for one that the provider ran.
                out.append(structs.replace(event, kind="server", native=None))
        else:
            self._client_calls.append(event.call_id)
            out.append(event)

    def _call_piece(self, event: ToolCallDelta, out: list[Output]) -> None:
        if self._open is not None:
            self._open.pieces.append(event.args)
            if self._hosted.shows(self._open.name):
                return
        out.append(event)

    def _call_ended(self, event: ToolCallEnd, out: list[Output]) -> None:
        call, self._open = self._open, None
        if call is not None:
            call.complete = event.complete
            self._calls.append(call)
            if self._hosted.shows(call.name):
                return
        out.append(event)

    def _counted(self, event: Usage, out: list[Output]) -> None:
        self._usage = event
        out.append(event)

    def _ended(self, event: StreamEnd | StreamError, _out: list[Output]) -> None:
        self._end = event

    # --- the calls of the turn

    def _after_turn(self, out: list[Output]) -> None:
        """The turn has ended: runs its calls, or ends the exchange."""
        end = self._end
        assert end is not None
        cost = self._price(self._usage)
        self._cost += cost
        if self._calls or self._step > 1:
            reason = end.reason if isinstance(end, StreamEnd) else end.code
            self._steps.model_turn(self._step, reason, self._usage, cost)
        if isinstance(end, StreamError) or end.reason in UNFINISHED:
            for call in self._calls:
                if call.output is None:
                    self._settle(call, refusal("was not run, because the answer broke off"), out)
            out.append(end)
            return
        if not self._calls:
            out.append(end)
            return
        for number, call in enumerate(self._calls):
            question = self._question(call, number, out)
            if question is not None:
                self._waiting.append(question)
        self._launch(out)
        self._finish_turn(out)

    def _question(self, call: TurnCall, number: int, out: list[Output]) -> RunTool | None:
        """The question that runs this call. A call that is not run gets a result that says why, and None is returned."""
        tool, words = self._offer.tools.get(call.name), ""
        arguments: JsonObject = {}
        if self._last_round:
            words = "was not run: no more tools may be called. Answer with what you have"
        elif tool is None:
            words = f"does not exist. The tools are: {', '.join(sorted(self._offer.tools | dict.fromkeys(self._client_tools)))}"
        elif number >= self._limits.calls:
            words = f"was not run: one turn may call {self._limits.calls} tools"
        else:
            try:
                arguments = arguments_of(call.arguments)
                tool.check(arguments)
            except ArgumentsError as error:
                words = f"was not run, because {error}. Correct the arguments and call it again"
            else:
                words = self._repeated(call.name, arguments)
        if words or tool is None:
            self._check(call, refusal(f"{call.name!r} {words}"), out)
            return None
        left = self._began + self._limits.total_seconds - self._executor.clock()
        seconds = max(0.0, min(self._limits.seconds, left)) + self._executor.approval_seconds
        unlimited = self._direct is not None and self._direct.unlimited
        return RunTool(self._executor, tool, call, arguments, None if unlimited else seconds)

    def _repeated(self, name: str, arguments: Mapping[str, JsonValue]) -> str:
        same = name, msgspec.json.encode(arguments, order="deterministic")
        self._runs[same] += 1
        if self._runs[same] <= self._limits.repeats:
            return ""
        return "was called with the same arguments before and is not run again. Use its earlier result, or change the arguments"

    def _launch(self, out: list[Output]) -> None:
        while self._waiting and self._running < self._limits.concurrent:
            question = self._waiting.pop(0)
            question.call.began = self._executor.clock()
            self._steps.call_started(self._step, question.call)
            out += self._activity.started(question.call)
            self._running += 1
            out.append(question)

    def answer(self, question: Question, reply: object) -> list[Output]:
        out: list[Output] = []
        if self._over:
            return out
        if isinstance(question, CheckResult):
            call = self._checking.pop(question)
            output = output_of_check(call, reply)
            if self._direct is not None:
                self._direct.changed = output != output_of_check(call, question.result)
                self._direct.output = structs.replace(output)
            self._settle(call, output, out)
            if isinstance(reply, PolicyRefused):
                self._end_by_policy(reply, out)
                return out
        else:
            assert isinstance(question, RunTool)
            self._running -= 1
            if self._direct is not None:
                self._direct.reply = reply
            self._check(question.call, output_of_reply(question, reply), out)
        if isinstance(self._end, StreamError) or (isinstance(self._end, StreamEnd) and self._end.reason in UNFINISHED):
            self._waiting = []
        else:
            self._launch(out)
        self._finish_turn(out)
        return out

    def _check(self, call: TurnCall, output: ToolOutput, out: list[Output]) -> None:
        """Has the stages before the loop check a result. They see all of it, because the store keeps all of it."""
        question = CheckResult(ToolResultPart(call.call_id, content_of(output), output.is_error, name=call.name))
        self._checking[question] = call
        out.append(question)

    def _end_by_policy(self, error: PolicyRefused, out: list[Output]) -> None:
        """A policy ended the exchange at a result. The engine cancels the tools that still run."""
        self._over = True
        for call in self._calls:
            if call.output is None:
                self._settle(call, refusal(f"{call.name!r} was stopped, because a policy ended the exchange"), out)
        out.append(error.as_event())

    def _settle(self, call: TurnCall, output: ToolOutput, out: list[Output]) -> None:
        """Gives a call its only result."""
        if not output.text.strip() and not output.media:
            output.text = NO_OUTPUT
        maximum = self._limits.result_chars
        if len(output.text) > maximum:
            output.whole = output.whole or output.text
            output.text = (
                f"{output.text[:maximum]}\n[cut here: the result has {len(output.whole)} characters, {maximum} are shown]"
            )
        call.output = output
        native = self._hosted.events(call, output)
        if native is not None:
            out += native
        else:
            shown = output.text or ", ".join(f"[{medium.mime}]" for medium in output.media)
            out.append(ToolResult(call.call_id, shown, output.is_error))
        out += self._activity.ended(call, output)
        self._steps.call_ended(self._step, call, output)

    def _finish_turn(self, out: list[Output]) -> None:
        """Ends the step, or the exchange, once every call has its result."""
        if self._running or self._checking or self._waiting or self._end is None:
            return
        if isinstance(self._end, StreamError) or self._end.reason in UNFINISHED:
            for call in self._calls:
                if call.output is None:
                    self._settle(call, refusal("was not run, because the exchange was stopped"), out)
            out.append(self._end)
        elif self._client_calls:
            self._remember_for_client()
            out.append(structs.replace(self._end, reason="tool_calls"))
        elif self._last_round:
            out.append(structs.replace(self._end, reason="other"))
        elif self._direct is not None:
            out.append(structs.replace(self._end, reason="end"))
        else:
            out.append(StepEnd(self._step, self._end.reason))
            out.append(NextRequest(self._next_request()))

    # --- the next model turn

    def _next_request(self) -> Request:
        note = self._budget_note()
        self._last_round = bool(note)
        messages = [*self._turn_messages(), *self._results(note)]
        request = structs.replace(self._request, messages=[*self._request.messages, *messages])
        choice = request.tool_choice
        if note:
            request.tool_choice = ToolChoice("none")
        elif choice is not None and choice.mode == "required":
            # The client forced a call, and it was made. Forcing it again would never end.
            request.tool_choice = None
        self._request = request
        self._step += 1
        self._steps.begin_turn()
        self._start_turn()
        return request

    def _budget_note(self) -> str:
        """The reason why the next turn must be the last one; empty if it need not be."""
        limits = self._limits
        self._usage_before, self._usage = self._usage_before.plus(self._usage), Usage()
        tokens = (self._usage_before.input_tokens or 0) + (self._usage_before.output_tokens or 0)
        if self._step >= limits.rounds:
            return f"the limit of {limits.rounds} rounds of tool calls is reached"
        if self._executor.clock() - self._began >= limits.total_seconds:
            return f"the time for tools, {limits.total_seconds:g} s, is used up"
        if limits.tokens and tokens >= limits.tokens:
            return f"the budget of {limits.tokens} tokens is used up"
        if limits.cost and self._cost >= limits.cost:
            return f"the budget of ${limits.cost:g} is used up"
        return ""

    def _turn_messages(self) -> list[Message]:
        """The turn as history. A call with unreadable arguments is kept, because its result must answer a call."""
        response = self._turn.close()[0]
        ours = {call.call_id for call in self._calls}
        for choice in response.choices:
            for part in choice.parts:
                if isinstance(part, ToolCallPart) and part.call_id in ours and not part.complete:
                    part.complete, part.arguments = True, "{}"
        return messages_of(response)

    def _results(self, note: str = "") -> list[Message]:
        """The results in the order of their calls."""
        results: list[Message] = []
        for number, call in enumerate(self._calls, 1):
            output = call.output or ToolOutput(NO_OUTPUT)
            content = content_of(output)
            if note and number == len(self._calls):
                content.append(TextPart(f"\n[{note}: answer now, without calling tools]"))
            results.append(Message("tool", [ToolResultPart(call.call_id, content, output.is_error, name=call.name)]))
        return results

    def _remember_for_client(self) -> None:
        """Dialects that show no server calls lose ours; the client's next request gets them back."""
        ours = {call.call_id for call in self._calls}
        calls = [
            part
            for message in self._turn_messages()
            for part in message.parts
            if isinstance(part, ToolCallPart) and part.call_id in ours
        ]
        self._executor.mixed.remember(self._context.key, self._client_calls, calls, self._results())


_RULES: Final[dict[type, Callable[[ToolLoop, Any, list[Output]], None]]] = {  # Any: each method takes the events of its key
    StreamStart: ToolLoop._started,
    ToolCallStart: ToolLoop._call_started,
    ToolCallDelta: ToolLoop._call_piece,
    ToolCallEnd: ToolLoop._call_ended,
    Usage: ToolLoop._counted,
    StreamEnd: ToolLoop._ended,
    StreamError: ToolLoop._ended,
}


class StepLog:
    """Reports steps while they run. A call is reported when it starts and again when it has its result, so that a process
    that dies in between leaves a call without a result, not a call that nobody knows of."""

    def __init__(self, context: ExchangeContext, clock: Callable[[], float]) -> None:
        self._context = context
        self._clock = clock
        self._number = 0
        self._turn = 0
        self._turn_began = 0.0

    def begin_turn(self) -> None:
        self._turn = self.next_number()
        self._turn_began = self._clock()

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def model_turn(self, step: int, reason: str, usage: Usage, cost: float) -> None:
        """A model turn ended. Its seconds run from its request to its end, without its calls."""
        fact: JsonObject = {
            "number": self._turn,
            "step": step,
            "kind": "model",
            "reason": reason,
            "seconds": round(self._clock() - self._turn_began, 4),
        }
        counts = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "cost": cost or None}
        fact |= {name: value for name, value in counts.items() if value is not None}
        self._context.report(STEP, fact)

    def call_started(self, step: int, call: TurnCall) -> None:
        self._context.report(STEP, self._call(step, call))

    def call_ended(self, step: int, call: TurnCall, output: ToolOutput) -> None:
        """``result`` is whole, also where the model was given only a part of it."""
        fact = self._call(step, call)
        fact["is_error"] = output.is_error
        fact["seconds"] = round(self._clock() - call.began, 4) if call.began else 0.0
        fact["result"] = output.text if output.whole is None else output.whole
        if output.media:
            fact["media"] = [medium.mime for medium in output.media]
        self._context.report(STEP, fact)

    def _call(self, step: int, call: TurnCall) -> JsonObject:
        return {
            "number": call.number,
            "step": step,
            "kind": "tool",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
        }
