"""Counts what an answer contains besides the text of its blocks: opaque state, extras, results and media."""

from __future__ import annotations

import msgspec

from ..events import BareEvent, Citation, Extra, Media, ToolResult
from ..json_types import JsonValue
from ..limits import DEFAULT_LIMITS, Limits

_encoder = msgspec.json.Encoder()


def json_size(value: JsonValue) -> int:
    """The length of a value as JSON, or nearly that."""
    if isinstance(value, str):
        return len(value)
    try:
        return len(_encoder.encode(value))
    except (ValueError, OverflowError, RecursionError):  # a lone surrogate, a huge number, too many levels
        return _walked_size(value)


def _walked_size(value: JsonValue) -> int:
    size, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            size += 2 + sum(len(name) + 4 for name in item)
            waiting.extend(item.values())
        elif isinstance(item, list):
            size += 2 + len(item)
            waiting.extend(item)
        else:
            size += len(str(item))
    return size


class Tally:
    """The total of one response, all choices together. It is kept until the answer ends, however many events it comes in."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._extra_bytes = 0
        self._media_chars = 0

    def count(self, event: BareEvent, media: int = 0) -> None:
        """Counts an event that does not belong to a block. ``media``: how many of its characters belong to media."""
        if isinstance(event, Media):
            media = len(event.data) + len(event.url) + len(event.transcript)
        elif isinstance(event, Extra):
            self.extra(event.data, -media)
        elif isinstance(event, ToolResult):
            self.extra(event.native.data if event.native is not None else "", len(event.content))
        elif isinstance(event, Citation) and event.native is not None:
            self.extra(event.native.data)
        if media:
            self.media(media)

    def media(self, chars: int) -> None:
        self._media_chars += chars
        if self._media_chars > self._limits.media_chars:
            raise self._limits.exceeded("media_chars")

    def extra(self, value: JsonValue, more: int = 0) -> None:
        self._extra_bytes += json_size(value) + more
        if self._extra_bytes > self._limits.extra_bytes:
            raise self._limits.exceeded("extra_bytes")
