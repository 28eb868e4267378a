"""The decisions of a policy about a piece of a stream or of a request."""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from ..events import StopReason


class _Verdict(Struct, frozen=True, kw_only=True):
    """``reason`` is for the record, not for the client. ``cost`` is what the judgement cost, in dollars, where that is known."""

    reason: str = ""
    cost: float | None = None


class Forward(_Verdict, frozen=True, tag="forward"):
    """Release the piece as it is."""


class Rewrite(_Verdict, frozen=True, tag="rewrite"):
    """Release the piece with another text (of a tool call: its arguments) or, of a tool call, under another name."""

    text: str | None = None
    name: str | None = None


class Replace(_Verdict, frozen=True, tag="replace"):
    """Release this text in place of the piece: a tool call becomes text. The empty text removes the piece."""

    text: str = ""


class Ask(_Verdict, frozen=True, tag="ask"):
    """Hold the piece until a person has decided. ``message`` tells the person what it is about. ``client``: ask the user of the
    client in the client's own dialect, where the dialect can ask about a call; otherwise the operator is asked, through the
    approvals API."""

    message: str = ""
    client: bool = False


class Retry(_Verdict, frozen=True, tag="retry"):
    """Ask the upstream again, once, with this instruction. Where that is not possible, refuse with ``message``."""

    instruction: str
    message: str = ""


class Refuse(_Verdict, frozen=True, tag="refuse"):
    """Withhold the piece and say ``message`` in its place. If the piece is part of a streaming text, the rest of the block is
    withheld too. In a request, the whole request is refused."""

    message: str = ""


class End(_Verdict, frozen=True, tag="end"):
    """End the stream here. ``text`` is what is still released of the piece. With a ``stop`` reason the stream ends as if the
    model had stopped by itself; without one it ends with an error whose origin is the policy."""

    message: str = ""
    text: str = ""
    stop: StopReason | None = None


Verdict: TypeAlias = Forward | Rewrite | Replace | Ask | Retry | Refuse | End


class Defer(Struct, frozen=True):
    """``judge`` cannot decide at once: the piece is held and ``decide`` is awaited."""


FORWARD: Final = Forward()
DEFER: Final = Defer()

SEVERITY: Final[tuple[type, ...]] = (Forward, Rewrite, Replace, Ask, Retry, Refuse, End)
"""From mild to severe. Where policies judge in parallel, the most severe verdict wins."""


def severity(verdict: Verdict) -> int:
    return SEVERITY.index(type(verdict))


def verdict_name(verdict: Verdict) -> str:
    """The name of a verdict, as records and configuration have it."""
    return type(verdict).__name__.lower()


def forward(reason: str = "") -> Forward:
    return Forward(reason=reason)


def rewrite(text: str | None = None, *, name: str | None = None, reason: str = "") -> Rewrite:
    return Rewrite(text=text, name=name, reason=reason)


def replace(text: str = "", *, reason: str = "") -> Replace:
    return Replace(text=text, reason=reason)


def refuse(message: str, *, reason: str = "") -> Refuse:
    return Refuse(message=message, reason=reason)


def ask(message: str = "", *, client: bool = False, reason: str = "") -> Ask:
    return Ask(message=message, client=client, reason=reason)


def end(message: str = "", *, text: str = "", stop: StopReason | None = None, reason: str = "") -> End:
    return End(message=message, text=text, stop=stop, reason=reason)


def retry(instruction: str, *, message: str = "", reason: str = "") -> Retry:
    return Retry(instruction=instruction, message=message, reason=reason)
