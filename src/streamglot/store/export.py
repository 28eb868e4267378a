"""Turns for elsewhere: one object a line, or a page to read."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ..messages import MediaPart, Message, NativePart, Part, ReasoningPart, RefusalPart, TextPart, ToolCallPart, ToolResultPart
from .queries import Filter, Queries, TurnDetail, TurnSummary

PAGE: Final = 200
_TICKS: Final = re.compile("`+")


def summary_line(turn: TurnSummary) -> bytes:
    """A turn of a list as one line of JSON."""
    return msgspec.json.encode(turn) + b"\n"


def detail_line(turn: TurnDetail) -> bytes:
    """A whole turn as one line of JSON; ``read_line`` is its mirror."""
    return msgspec.json.encode(turn) + b"\n"


def read_line(line: bytes) -> TurnDetail:
    return msgspec.json.decode(line, type=TurnDetail)


async def export_jsonl(queries: Queries, which: Filter) -> AsyncIterator[bytes]:
    """All turns that the filter names, page after page, the newest first."""
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
        page.before, page.limit = found[-1].id, min(left, PAGE)


def markdown(turn: TurnDetail) -> str:
    """A turn as a page: what was said, by whom, and how it ended."""
    when = datetime.fromtimestamp(turn.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    facts: list[tuple[str, Any]] = [
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
    lines = [f"# {turn.title or turn.id}", ""]
    lines += [f"- {name}: {value}" for name, value in facts if value not in (None, "")]
    if turn.request is None:
        lines += ["", "The contents were not kept."]
    else:
        for message in turn.request.messages:
            lines += _said(message)
    if turn.response is not None:
        for choice in turn.response.choices:
            lines += _said(Message("assistant", choice.parts))
    return "\n".join(lines) + "\n"


def _said(message: Message) -> list[str]:
    lines = ["", f"## {message.name or message.role}"]
    for part in message.parts:
        lines += ["", *_lines(part)]
    return lines


def _lines(part: Part) -> list[str]:
    match part:
        case TextPart() | RefusalPart():
            return [part.text]
        case ReasoningPart():
            return [f"> {line}" for line in (part.text or "(hidden)").splitlines()]
        case ToolCallPart():
            return [f"**call** `{part.name}` `{part.call_id}`", "", *_fenced(part.arguments)]
        case ToolResultPart():
            return [f"**result**{' (error)' if part.is_error else ''} `{part.call_id}`", "", *_fenced(part.text)]
        case MediaPart():
            return [f"*{part.mime or 'medium'}* {part.url or part.file_id or f'({len(part.data)} characters of base64)'}"]
        case NativePart():
            return _fenced(msgspec.json.encode(part.data).decode())


def _fenced(text: str) -> list[str]:
    """In a fence that is longer than any inside it."""
    fence = "`" * max(3, *(len(run) + 1 for run in _TICKS.findall(text)), 3)
    return [fence, text, fence]
