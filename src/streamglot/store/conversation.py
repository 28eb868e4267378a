"""The hash of a conversation, which finds the session of clients that name none. Pure.

A client sends the conversation back, but seldom as it received it: it trims spaces, changes ids, drops reasoning or moves it into
the text, moves calls behind the text, or splits one message into two. None of that changes the hash. The caller does: two callers
never share a hash.

    user said … │ assistant answered … │ user said … │ assistant answered … │ user asks
                                  prefixes: └─ prompt, tip ─┘

A run of assistant messages between two other messages is one answer. The hash before it is the turn's ``prompt_hash``, the hash
after it is the turn's ``tip``; an answer of reasoning alone or of white space does not change the hash, but is a prefix too. System
messages are left out, because they contain dates and change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from ..messages import MediaPart, Message, Part, RefusalPart, TextPart, ToolCallPart, ToolResultPart

HASH_BYTES: Final = 20
"""The length of a Git commit hash, which excludes collisions by chance."""
PREFIXES: Final = 8
"""How many answers back a session is searched. A client that goes back further starts a new session."""
ANSWER_BYTES: Final = 4096
"""Bytes of an answer that are compared with an edited echo."""
MIN_SIMILARITY: Final = 0.6
"""The similarity from which an echo counts as an edit of the answer. Below it, it is another answer to the same question."""
SHINGLE_BYTES: Final = 6
"""Length in bytes of the pieces by which two texts are compared. An edit changes few of them."""
CALL: Final = b"\x01"
"""Marks each call in the normal form of an answer."""
_SPACE: Final = b" \t\r\n\x0b\x0c"
_REASONING_TAGS: Final = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)


class Prefix(Struct, frozen=True):
    """The conversation up to one answer: the hash before it, the hash after it, and the beginning of the answer's normal form."""

    prompt_hash: bytes
    tip: bytes
    answer: bytes


class Conversation(Struct, frozen=True):
    """``prompt_hash`` is the hash of all messages; ``prefixes`` are the answers in it, the newest first."""

    prompt_hash: bytes
    prefixes: list[Prefix]

    def tip(self, run: bytes) -> bytes:
        """The hash of the conversation after an answer in its ``normal`` form."""
        return _chained(self.prompt_hash, b"assistant", run) if run else self.prompt_hash


def hash_conversation(caller: str, messages: Iterable[Message]) -> Conversation:
    state = first = hashlib.blake2b(caller.encode("utf-8", "replace"), digest_size=HASH_BYTES).digest()
    prefixes: list[Prefix] = []
    side, parts = b"", list[Part]()

    def finish() -> None:
        nonlocal state
        run, before = normal(parts), state
        if run:
            state = _chained(state, side, run)
        if side == b"assistant" and state != first:
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
    """The content of some parts in one order and spelling that survives every dialect and client."""
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
                pass  # most clients drop reasoning, native blocks and calls that the provider ran
    return b"".join(words) + b"".join(rest)


def alike(answer: bytes, echo: bytes) -> bool:
    """Whether an echo is an edit of this answer. A shortened echo counts if it has more than the answer's beginning; an echo
    with the same calls counts even if its text was changed."""
    if not answer or not echo:
        return False
    calls = sorted(answer.split(CALL)[1:])
    if calls and calls == sorted(echo.split(CALL)[1:]):
        return True
    short, long = sorted((answer, echo), key=len)
    if long.startswith(short):
        return len(short) * 10 > len(long)
    ours, theirs = _shingles(answer), _shingles(echo)
    return len(ours & theirs) >= MIN_SIMILARITY * max(len(ours), len(theirs))


def _shingles(run: bytes) -> set[bytes]:
    run = run[:ANSWER_BYTES]
    return {run[place : place + SHINGLE_BYTES] for place in range(max(1, len(run) - SHINGLE_BYTES + 1))}


def _chained(state: bytes, side: bytes, run: bytes) -> bytes:
    return hashlib.blake2b(run, key=state, person=side[:16], digest_size=HASH_BYTES).digest()


def _squeezed(text: str) -> bytes:
    if text.startswith("<") or "<think" in text:
        text = _REASONING_TAGS.sub("", text)
    return text.encode("utf-8", "replace").translate(None, _SPACE)


def _arguments(text: str) -> bytes:
    try:
        value: object = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _squeezed(text)
    return msgspec.json.encode(value, order="sorted").translate(None, _SPACE)


def _media(content: Iterable[object]) -> int:
    return sum(isinstance(part, MediaPart) for part in content)
