"""``max_output``: ends an answer that becomes too long."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from ...errors import ConfigError
from ..needs import Needs, delta
from ..pieces import Piece
from ..policy import JudgeContext, Policy
from ..verdicts import FORWARD, End, Verdict


class _OutputCounts(Struct):
    chars: int = 0
    calls: int = 0


class MaxOutput(Policy, frozen=True):
    """``chars`` of text, reasoning and arguments together, and ``tool_calls``. At the limit the answer ends with the stop reason
    ``length``, as if the model had reached its own. Nothing is held."""

    chars: int = 0
    tool_calls: int = 0

    use: ClassVar[str] = "max_output"
    title: ClassVar[str] = "Ends an answer at a number of characters or tool calls."

    def check(self) -> None:
        if self.chars < 0 or self.tool_calls < 0 or not (self.chars or self.tool_calls):
            raise ConfigError("max_output: give chars or tool_calls, as a number above 0")

    def needs(self) -> Needs:
        return delta("text", "reasoning", "tool_call") if self.chars else delta("tool_call")

    def new_state(self) -> _OutputCounts:
        return _OutputCounts()

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        counts: _OutputCounts = context.state
        if piece.kind == "tool_call" and not piece.text:  # a call is shown before its arguments
            counts.calls += 1
            if self.tool_calls and counts.calls > self.tool_calls:
                return End(stop="length", reason=f"more than {self.tool_calls} tool calls")
        if not self.chars:
            return FORWARD
        left = self.chars - counts.chars
        counts.chars += len(piece.text)
        if len(piece.text) <= left:
            return FORWARD
        return End(text=piece.text[:left], stop="length", reason=f"more than {self.chars} characters")
