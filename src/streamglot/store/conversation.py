"""The conversation so far as a hash, for clients that name no session. Pure.

A client sends back what it was told, but seldom as it was told: spaces are trimmed, ids are changed, reasoning is dropped or
put into the text, calls move behind the text, one message becomes two. None of that changes the hash. What the caller's
key is does: two callers never share a hash.

    user said … │ assistant answered … │ user said … │ assistant answered … │ user asks
                                  prefixes: └─ asked, tip ─┘

An assistant's run of messages between two others is one answer; the hash before it is the turn's ``asked``, the hash after
it is the turn's ``tip``. Messages of the system are left out: they hold dates, and change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct

from ..messages import MediaPart, Message, Part, RefusalPart, TextPart, ToolCallPart, ToolResultPart

HASH_BYTES: Final = 20
"""As long as what names a commit: no two conversations meet by chance."""
PREFIXES: Final = 8
"""How many answers back a session is looked for: a client that goes back further starts a new one."""
ANSWER_BYTES: Final = 4096
"""As much of an answer is compared with an edited echo of it."""
ALIKE: Final = 0.6
"""An echo this much like the answer is an edit of it; less is another answer to the same words."""
SHINGLE: Final = 6
"""Two texts are compared by their pieces of so many bytes: an edit touches few of them."""
CALL: Final = b"\x01"
"""Before each call in the normal form of an answer."""
_SPACE: Final = b" \t\r\n\x0b\x0c"
_THOUGHT: Final = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)


class Prefix(Struct, frozen=True):
    """The conversation up to one answer: the hash before it, the hash after it, and what the answer said, cut."""

    asked: bytes
    tip: bytes
    answer: bytes


class Conversation(Struct, frozen=True):
    """``asked`` is the hash of all that was said; ``prefixes`` are the answers in it, the newest first."""

    asked: bytes
    prefixes: list[Prefix]

    def tip(self, run: bytes) -> bytes:
        """The hash of the conversation once this answer (in its ``normal`` form) is in it."""
        return _chained(self.asked, b"assistant", run) if run else self.asked


def hash_conversation(caller: str, messages: Iterable[Message]) -> Conversation:
    state = hashlib.blake2b(caller.encode("utf-8", "replace"), digest_size=HASH_BYTES).digest()
    prefixes: list[Prefix] = []
    side, parts = b"", list[Part]()

    def finish() -> None:
        nonlocal state
        run = normal(parts)
        if run:
            before, state = state, _chained(state, side, run)
            if side == b"assistant":
                prefixes.append(Prefix(before, state, run[:ANSWER_BYTES]))
        parts.clear()

    for message in messages:
        if message.role in ("system", "developer"):
            continue
        now = b"assistant" if message.role == "assistant" else b"user"
        if now != side:
            finish()
            side = now
        parts += message.parts
    finish()
    return Conversation(state, prefixes[: -PREFIXES - 1 : -1])


def normal(parts: Iterable[Part]) -> bytes:
    """What a run of parts says, in the one order and spelling that all dialects and clients can agree on."""
    words: list[bytes] = []
    rest: list[bytes] = []
    for part in parts:
        match part:
            case TextPart() | RefusalPart():
                words.append(_squeezed(part.text))
            case ToolCallPart(kind="function" | "custom"):
                rest.append(CALL + part.name.encode("utf-8", "replace") + b"\x02" + _arguments(part.arguments))
            case ToolResultPart(kind="function" | "custom"):
                rest.append(b"\x03" + _squeezed(part.text) + b"\x04" * _media(part.content))
            case MediaPart():
                rest.append(b"\x04")
            case _:
                pass  # reasoning, native blocks and what the provider ran itself: most clients drop them
    return b"".join(words) + b"".join(rest)


def alike(answer: bytes, echo: bytes) -> bool:
    """Is this echo an edit of this answer? One that was cut is, if more than its beginning is there; so is one with the same
    calls, whatever became of the words beside them."""
    if not answer or not echo:
        return False
    calls = sorted(answer.split(CALL)[1:])
    if calls and calls == sorted(echo.split(CALL)[1:]):
        return True
    short, long = sorted((answer, echo), key=len)
    if long.startswith(short):
        return len(short) * 10 > len(long)
    ours, theirs = _shingles(answer), _shingles(echo)
    return len(ours & theirs) >= ALIKE * max(len(ours), len(theirs))


def _shingles(run: bytes) -> set[bytes]:
    run = run[:ANSWER_BYTES]
    return {run[place : place + SHINGLE] for place in range(max(1, len(run) - SHINGLE + 1))}


def _chained(state: bytes, side: bytes, run: bytes) -> bytes:
    return hashlib.blake2b(run, key=state, person=side[:16], digest_size=HASH_BYTES).digest()


def _squeezed(text: str) -> bytes:
    if text.startswith("<") or "<think" in text:
        text = _THOUGHT.sub("", text)
    return text.encode("utf-8", "replace").translate(None, _SPACE)


def _arguments(text: str) -> bytes:
    try:
        value: Any = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _squeezed(text)
    return msgspec.json.encode(value, order="sorted").translate(None, _SPACE)


def _media(content: Iterable[object]) -> int:
    return sum(isinstance(part, MediaPart) for part in content)
