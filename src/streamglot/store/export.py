"""Exports turns as JSON Lines, or as Markdown pages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import field

from ..messages import MediaPart, Message, NativePart, Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart, ToolResultPart
from ..text import neutral, one_line
from .queries import Queries, cursor_of
from .search import Filter, RawFrame, TurnDetail, TurnSummary

PAGE: Final = 200
_TICKS: Final = re.compile("`+")
_FENCE: Final = re.compile(r"(`{3,})[^`]*$|(~{3,})")
"""A fence counts only at the beginning of a line; one inside a list item may end with the item."""
_FENCE_END: Final = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*")
_ACTIVE: Final = re.compile(r"<(?=[a-zA-Z/!?])|!(?=\[)")
"""The beginnings of HTML and of images. A viewer would load images without being asked."""


class ArchivedTurn(TurnDetail, kw_only=True, omit_defaults=True):
    """A turn with its raw frames, if there are any: [seconds, direction, base64]."""

    raw: list[RawFrame] = field(default_factory=list)


def summary_line(turn: TurnSummary) -> bytes:
    """The summary of a turn as one line of JSON."""
    return msgspec.json.encode(turn) + b"\n"


def detail_line(turn: TurnDetail) -> bytes:
    """A whole turn as one line of JSON; ``read_line`` reads it back."""
    return msgspec.json.encode(turn) + b"\n"


def archive_line(turn: TurnDetail, raw: list[RawFrame]) -> bytes:
    """A whole turn with its raw frames as one line of JSON; ``read_line`` reads it back."""
    whole = {name: getattr(turn, name) for name in turn.__struct_fields__}
    return msgspec.json.encode(ArchivedTurn(**whole, raw=raw)) + b"\n"


def read_line(line: bytes) -> TurnDetail:
    return msgspec.json.decode(line, type=TurnDetail)


async def export_jsonl(queries: Queries, which: Filter) -> AsyncIterator[bytes]:
    """All turns that match the filter, the newest first."""
    async for turn in _details(queries, which):
        yield detail_line(turn)


async def export_markdown(queries: Queries, which: Filter) -> AsyncIterator[str]:
    async for turn in _details(queries, which):
        yield markdown(turn)


async def _details(queries: Queries, which: Filter) -> AsyncIterator[TurnDetail]:
    left = which.limit
    page = msgspec.structs.replace(which, limit=min(left, PAGE))
    while left > 0 and (found := await queries.turns(page)):
        for summary in found:
            detail = await queries.turn(summary.id, which.caller)
            if detail is not None:
                yield detail
        left -= len(found)
        page.before, page.limit = cursor_of(found[-1]), min(left, PAGE)


def markdown(turn: TurnDetail) -> str:
    """A turn as a Markdown page: the messages with their roles, and how the turn ended."""
    when = datetime.fromtimestamp(turn.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    facts: list[tuple[str, object]] = [
        ("turn", turn.id),
        ("session", turn.session_id),
        ("model", turn.model),
        ("upstream", turn.upstream),
        ("started", when),
        ("seconds", None if turn.duration is None else round(turn.duration, 3)),
        ("ending", turn.ending or "running"),
        ("error", turn.error.message if turn.error is not None else ""),
        ("input tokens", turn.usage.input_tokens if turn.usage is not None else None),
        ("output tokens", turn.usage.output_tokens if turn.usage is not None else None),
    ]
    lines = [f"# {_inline(turn.title or turn.id)}", ""]
    lines += [f"- {name}: {_inline(str(value))}" for name, value in facts if value not in (None, "")]
    if turn.request is None:
        lines += ["", "The contents were not stored."]
    else:
        for message in turn.request.messages:
            lines += _message_lines(message)
    if turn.response is not None:
        for choice in turn.response.choices:
            lines += _message_lines(Message("assistant", choice.parts))
    return "\n".join(lines) + "\n"


def _message_lines(message: Message) -> list[str]:
    name = f" ({_inline(message.name)})" if message.name else ""
    lines = ["", f"## {message.role}{name}"]
    for part in message.parts:
        lines += ["", *_lines(part)]
    return lines


def _lines(part: Part) -> list[str]:
    match part:
        case TextPart() | RefusalPart():
            return _quoted(part.text)
        case ReasoningPart():
            return ["*reasoning*", "", *_quoted(part.text or "(hidden)")]
        case ToolCallPart():
            return [f"**call** {_code(part.name)} {_code(part.call_id)}", "", *_fenced(part.arguments)]
        case ToolResultPart():
            return [f"**result**{' (error)' if part.is_error else ''} {_code(part.call_id)}", "", *_fenced(part.text)]
        case MediaPart():
            place = part.url or part.file_id
            return [f"*medium* {_code(part.mime)} {_code(place) if place else f'({len(part.data)} characters of base64)'}"]
        case NativePart():
            return _fenced(msgspec.json.encode(part.data).decode())


# The messages are untrusted text. They are written as quotes, so that their headings and fences stay inside the quote. HTML and
# images would not, so their first characters are escaped.


def _quoted(text: str) -> list[str]:
    lines: list[str] = []
    fence = ""
    for line in neutral(text).split("\n"):
        if fence:
            ended = _FENCE_END.fullmatch(line)
            quoted, fence = line, "" if ended is not None and ended[1].startswith(fence) else fence
        else:
            begun = _FENCE.match(line)
            quoted, fence = (line, begun[1] or begun[2]) if begun is not None else (_escaped(line), "")
        lines.append(f"> {quoted}" if quoted else ">")
    return lines


def _escaped(text: str) -> str:
    """Escapes with character references. A backslash could be undone by a backslash in the text."""
    return _ACTIVE.sub(lambda found: f"&#{ord(found[0])};", text)


def _inline(text: str) -> str:
    return _escaped(one_line(text))


def _code(text: str) -> str:
    """Code on one line, between more backticks than the text contains."""
    inner = one_line(text) or "-"
    ticks = "`" * (_longest(inner) + 1)
    return f"{ticks} {inner} {ticks}" if "`" in inner else f"`{inner}`"


def _fenced(text: str) -> list[str]:
    """A code block with a fence longer than any fence in the text."""
    fence = "`" * max(3, _longest(text) + 1)
    return [fence, neutral(text), fence]


def _longest(text: str) -> int:
    return max(map(len, _TICKS.findall(text)), default=0)
