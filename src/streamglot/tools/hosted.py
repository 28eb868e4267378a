"""Tools that a client expects its provider to host (``web_search``), answered by tools of ours.

``Activity`` shows the runs of tools to a client that asked for them and whose dialect has no form for them. "extensions" reports
each call (start, arguments, end) and each result in the field ``extensions`` of a chunk, as a whole answer does. "reasoning"
writes them as reasoning text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from msgspec import structs

from ..dialects import DIALECTS
from ..dialects.common.server_tools import HostedCall
from ..events import Event, Extra, ReasoningDelta, ReasoningEnd, ReasoningStart, ToolResult
from ..json.from_types import ArgumentsError
from ..json_types import JsonObject
from ..messages import Request, ToolChoice, ToolSpec
from ..stages.collect import result_chunk
from ..stages.stage import ExchangeContext
from .questions import Offer, TurnCall
from .tool import ToolOutput, arguments_of


def tool_for(name: str, hosted: Mapping[str, str]) -> str | None:
    """The tool of the gateway that replaces a hosted one. ``hosted`` maps names, or globs, to names of ours."""
    if name in hosted:
        return hosted[name]
    return next((ours for pattern, ours in hosted.items() if fnmatchcase(name, pattern)), None)


class HostedTools:
    """The hosted tools of one request that tools of the gateway replace. ``declared`` are the client's tools without them. A
    tool whose replacement is not offered stays in ``declared``: the upstream has it, or it is left out and reported."""

    def __init__(self, request: Request, offer: Offer) -> None:
        ours = {tool.name: name for name, tool in offer.tools.items()}
        self.declared: list[ToolSpec] = []
        self._names: dict[str, str] = {}
        self._shown: dict[str, ToolSpec] = {}
        self._options = request.extra
        self._calls: list[HostedCall] = []
        known = DIALECTS.get(request.dialect)
        self._form: Callable[[HostedCall], list[Event] | None] = known.hosted_events if known is not None else _no_form
        for spec in request.tools:
            stand_in = ours.get(tool_for(spec.name, offer.hosted) or "") if spec.kind == "server" else None
            if stand_in is None:
                self.declared.append(spec)
                continue
            self._names[spec.name] = stand_in
            if stand_in not in self._shown and self._form(_call_of(spec)) is not None:
                self._shown[stand_in] = spec

    def choice(self, choice: ToolChoice | None) -> ToolChoice | None:
        """The client's choice with the names of the replacements."""
        if choice is None or not any(name in self._names for name in choice.tools):
            return choice
        return structs.replace(choice, tools=[self._names.get(name, name) for name in choice.tools])

    def shows(self, name: str) -> bool:
        """Whether calls of this tool of ours are shown as calls of the hosted one. They are shown with their results: most
        forms need both at once."""
        return name in self._shown

    def events(self, call: TurnCall, output: ToolOutput) -> list[Event] | None:
        """The call and its result in the client's own form; None for a call of any other tool."""
        spec = self._shown.get(call.name)
        if spec is None:
            return None
        try:
            arguments = arguments_of(call.arguments)
        except ArgumentsError:
            arguments = {}
        hosted = structs.replace(
            _call_of(spec),
            call_id=call.call_id,
            arguments=arguments,
            text=output.text,
            is_error=output.is_error,
            media=output.media,
            options=self._options,
            earlier=tuple(self._calls),
        )
        self._calls.append(structs.replace(hosted, earlier=(), media=()))
        return self._form(hosted)


def _call_of(spec: ToolSpec) -> HostedCall:
    return HostedCall(declared=spec.native.data if spec.native is not None else {}, name=spec.name, call_id="")


def _no_form(_call: HostedCall) -> list[Event] | None:
    return None


EXTENSIONS: Final = "extensions"
REASONING: Final = "reasoning"
KINDS: Final = (EXTENSIONS, REASONING)
SHOWN_CHARS: Final = 200
"""Characters of arguments and results in reasoning text: enough for a person to see what happens."""


class Activity:
    """``streamed``: a whole answer collects its extensions itself."""

    def __init__(self, context: ExchangeContext, streamed: bool) -> None:
        known = DIALECTS.get(context.endpoint)
        shown = streamed and known is not None and known.activity
        self._kind = context.activity if shown or context.activity == REASONING else ""
        self._dialect = context.endpoint

    def started(self, call: TurnCall) -> list[Event]:
        if self._kind == EXTENSIONS:
            of_call = {"tool_call_id": call.call_id}
            chunks: list[JsonObject] = [{"type": "start", **of_call, "tool_name": call.name}]
            chunks += [{"type": "args", **of_call, "delta": call.arguments}, {"type": "end", **of_call}]
            return [self._extra(chunks)]
        if self._kind == REASONING:
            return _words(f"Running {call.name}({_cut(call.arguments)})\n")
        return []

    def ended(self, call: TurnCall, output: ToolOutput) -> list[Event]:
        """A call that was not run has no activity: its result says why."""
        if not call.began:
            return []
        if self._kind == EXTENSIONS:
            return [self._extra([result_chunk(ToolResult(call.call_id, output.text, output.is_error))])]
        if self._kind == REASONING:
            return _words(f"{call.name} {'failed' if output.is_error else 'answered'}: {_cut(output.text)}\n")
        return []

    def _extra(self, chunks: list[JsonObject]) -> Event:
        return Extra(self._dialect, {EXTENSIONS: {"tool_call_chunks": chunks}})


def _words(text: str) -> list[Event]:
    return [ReasoningStart(), ReasoningDelta(text), ReasoningEnd()]


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}…"
