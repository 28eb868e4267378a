"""``loop_guard``: ends an answer that repeats itself, and refuses a call that is repeated."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec
from msgspec import Struct, field

from ...errors import ConfigError
from ...json_types import JSON_ERRORS
from ...messages import Request, ToolCallPart
from ..needs import Needs, block, delta
from ..pieces import Piece
from ..policy import JudgeContext, Policy
from ..verdicts import FORWARD, End, Refuse, Verdict

_STEP: Final = 64
"""The end of the text is checked every this many characters."""
_PROBE: Final = 32
"""Characters at the end of the text that are searched for in the text before it: the distance is the length of the repeated
piece."""


class _LoopState(Struct):
    """``tail``: the end of the text of each kind. ``position``: characters so far."""

    tail: dict[str, str] = field(default_factory=dict)
    position: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)


class LoopGuard(Policy, frozen=True):
    """Text or reasoning whose last ``chars`` characters are ``repeats`` or more copies of the same piece ends the answer. The
    same call with the same arguments for the ``calls``-th time in a row, in the conversation and this answer, is refused."""

    repeats: int = 4
    chars: int = 1200
    calls: int = 4
    message: str = "[The same call of {tool} was made {count} times; it is not run again. Try something else.]"

    use: ClassVar[str] = "loop_guard"
    title: ClassVar[str] = "Ends an answer that repeats itself; refuses a call that is repeated."

    def check(self) -> None:
        if self.repeats < 2 or not 4 * _PROBE <= self.chars <= 100_000 or self.calls < 2:
            raise ConfigError(f"loop_guard: repeats and calls must be at least 2, and chars between {4 * _PROBE} and 100000")

    def needs(self) -> Needs:
        return delta("text", "reasoning") | block("tool_call")

    def new_state(self) -> _LoopState:
        return _LoopState()

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        state: _LoopState = context.state
        return self._judge_call(piece, context, state) if piece.kind == "tool_call" else self._judge_text(piece, state)

    def _judge_text(self, piece: Piece, state: _LoopState) -> Verdict:
        """Checks at fixed positions of the text, so that the result does not depend on how the text is cut."""
        tail, position = state.tail.get(piece.kind, ""), state.position.get(piece.kind, 0)
        at = 0
        while at < len(piece.text):
            size = min(_STEP - position % _STEP, len(piece.text) - at)
            tail = (tail + piece.text[at : at + size])[-self.chars :]
            at += size
            position += size
            if position % _STEP == 0 and self._repeats(tail):
                return End(text=piece.text[:at], stop="length", reason=f"the last {self.chars} characters repeat themselves")
        state.tail[piece.kind], state.position[piece.kind] = tail, position
        return FORWARD

    def _repeats(self, tail: str) -> bool:
        if len(tail) < self.chars:
            return False
        previous = tail.rfind(tail[-_PROBE:], 0, len(tail) - 1)
        if previous < 0:
            return False
        period = len(tail) - _PROBE - previous
        return period * self.repeats <= len(tail) and tail[period:] == tail[:-period]

    def _judge_call(self, piece: Piece, context: JudgeContext, state: _LoopState) -> Verdict:
        if not state.calls and context.request is not None:
            state.calls += _calls_of(context.request)
        call = piece.name, _canonical(piece.text)
        state.calls.append(call)
        last = state.calls[-self.calls :]
        if len(last) < self.calls or any(other != call for other in last):
            return FORWARD
        count = 0
        for other in reversed(state.calls):
            if other != call:
                break
            count += 1
        message = self.message.replace("{tool}", piece.name).replace("{count}", str(count))
        return Refuse(message=message, reason=f"the same call of {piece.name} for the {count}th time in a row")


def _calls_of(request: Request) -> list[tuple[str, str]]:
    return [
        (part.name, _canonical(part.arguments))
        for message in request.messages
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]


def _canonical(arguments: str) -> str:
    """The arguments in a normal form: without spaces, with properties in a fixed order."""
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="sorted").decode()
    except JSON_ERRORS:
        return arguments
