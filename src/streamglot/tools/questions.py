"""The questions of the tool loop to the engine, and the texts of the replies for a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final, Protocol

from msgspec import Struct, field

from ..errors import PolicyRefused, StreamglotError
from ..json.from_types import ArgumentsError
from ..json_types import JsonObject
from ..messages import MediaPart, NativePart, TextPart, ToolResultPart
from ..stages.stage import Question
from .history import MixedTurns
from .settings import ToolLimits
from .tool import TRACE_CONTEXT, Tool, ToolError, ToolOutput

ERROR_CHARS: Final = 2000
"""Characters of an exception's message that the model sees: enough to act on, too few to fill its context."""


class Offer(Struct):
    """The tools of one exchange by the names that the model knows them by, and what went wrong in finding them. ``hosted`` maps
    a tool that the client's provider hosts to the name of ours."""

    tools: dict[str, Tool]
    faults: list[str] = field(default_factory=list)
    hosted: dict[str, str] = field(default_factory=dict)


class Executor(Protocol):
    """The object that runs the tools of a loop."""

    limits: ToolLimits
    mixed: MixedTurns

    @property
    def approval_seconds(self) -> float: ...

    def clock(self) -> float: ...
    async def offer(self, patterns: Sequence[str]) -> Offer: ...
    async def run(self, tool: Tool, arguments: JsonObject) -> ToolOutput: ...


class ListTools(Question):
    """Which tools these patterns mean. Servers that were not needed before are started."""

    def __init__(self, executor: Executor, patterns: Sequence[str]) -> None:
        self._executor = executor
        self._patterns = patterns

    async def resolve(self, _engine: object) -> Offer:
        return await self._executor.offer(self._patterns)


class TurnCall(Struct):
    """A call of one model turn. ``number`` is its place among the steps of the exchange."""

    call_id: str
    name: str
    number: int = 0
    pieces: list[str] = field(default_factory=list)
    complete: bool = True
    output: ToolOutput | None = None
    began: float = 0.0

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


DIRECT: Final = "direct_call"
"""The subject in an exchange's state of a call that no model made."""


class DirectCall(Struct):
    """A call that a program made in place of a model. The loop runs it as any other, and ends the exchange with its result.

    ``name`` is the tool's name for models. ``reply`` is what the tool returned or raised, ``output`` the result after the policies;
    None if a policy did not let the call pass. ``changed``: a policy changed the result.
    """

    name: str
    tool: Tool
    unlimited: bool = False
    reply: object = None
    output: ToolOutput | None = None
    changed: bool = False


class RunTool(Question):
    """Runs one call. The reply is a ToolOutput, or the exception that the tool raised."""

    subject = "tool"

    def __init__(self, executor: Executor, tool: Tool, call: TurnCall, arguments: JsonObject, seconds: float | None) -> None:
        self.call = call
        self.label = call.name
        self.tool = tool
        self.arguments = arguments
        self.seconds = seconds
        self._executor = executor

    async def resolve(self, engine: object) -> ToolOutput:
        tracer = getattr(engine, "tracer", None)
        with nullcontext({}) if tracer is None else tracer.tool(self) as trace:
            before = TRACE_CONTEXT.set(trace)
            try:
                return await self._executor.run(self.tool, self.arguments)
            finally:
                TRACE_CONTEXT.reset(before)


def refusal(words: str) -> ToolOutput:
    return ToolOutput(f"The tool {words}.", is_error=True)


def output_of_reply(question: RunTool, reply: object) -> ToolOutput:
    """A reply as the result of a call. Nothing that a tool does wrong ends the exchange."""
    name = question.call.name
    if isinstance(reply, ToolOutput):
        return reply
    if isinstance(reply, TimeoutError) and question.seconds is not None:
        return refusal(f"{name!r} did not finish within {question.seconds:g} s and was stopped")
    if isinstance(reply, (ToolError, ArgumentsError)):
        return ToolOutput(str(reply) or type(reply).__name__, is_error=True)
    if isinstance(reply, StreamglotError) and reply.code == "cancelled":
        return refusal(f"{name!r} was stopped before it finished")
    return refusal(f"{name!r} failed: {type(reply).__name__}: {str(reply)[:ERROR_CHARS]}")


def content_of(output: ToolOutput) -> list[TextPart | MediaPart | NativePart]:
    """The output as the content of a result."""
    return [*([TextPart(output.text)] if output.text else ()), *output.media]


def output_of_check(call: TurnCall, reply: object) -> ToolOutput:
    """A checked result as the output of its call. A result that could not be checked is withheld."""
    if isinstance(reply, ToolResultPart):
        return ToolOutput(reply.text, reply.is_error, [part for part in reply.content if isinstance(part, MediaPart)])
    if isinstance(reply, PolicyRefused):
        return ToolOutput(str(reply), is_error=True)
    if isinstance(reply, StreamglotError) and reply.code == "cancelled":
        return refusal(f"{call.name!r} was stopped before it finished")
    return ToolOutput(f"The result of {call.name!r} could not be checked and is withheld.", is_error=True)
