"""Text to events: finds the reasoning and the tool calls that a model writes into its text.

``inband(format)`` is a box over the events of one choice; ``parse_text`` reads a whole text. ``FORMATS`` has a row for each
notation, ``format_for_model`` finds the row for a model name.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import BadCall
from ..events import BareEvent, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart
from .box import InBand, Tools
from .emitter import DEFAULT_BUFFERING, Buffering
from .format import Format
from .formats import FORMATS
from .profiles import PROFILES, OwnMarkers, find_format, format_for_model, with_markers
from .prompt import as_prompt

__all__ = [
    "DEFAULT_BUFFERING",
    "FORMATS",
    "PROFILES",
    "Buffering",
    "Format",
    "InBand",
    "OwnMarkers",
    "as_prompt",
    "find_format",
    "format_for_model",
    "inband",
    "parse_text",
    "with_markers",
]


def inband(
    format: str | Format = "auto",
    tools: Tools | None = None,
    starts_in_reasoning: bool | None = None,
    thinking: bool | None = None,
    bad_call: BadCall = "incomplete",
    *,
    model: str = "",
    calls: bool = True,
    reasoning: bool = True,
    buffering: Buffering = DEFAULT_BUFFERING,
    call_prefix: str = "call",
) -> InBand:
    """A box over the events of one choice. ``format`` is a name, a row, ``"auto"`` (by ``model``) or ``"none"``.

    ``bad_call`` says what to do with a call that cannot be parsed: ``"incomplete"`` (it is marked, and the stream ends with
    ``tool_call_parse_error``), ``"text"`` (it is text) or ``"error"`` (any markup that is not a call ends the stream at once).
    """
    return InBand(
        find_format(format, model),
        tools,
        starts_in_reasoning=starts_in_reasoning,
        thinking=thinking,
        bad_call=bad_call,
        calls=calls,
        reasoning=reasoning,
        buffering=buffering,
        call_prefix=call_prefix,
    )


def parse_text(
    pieces: str | Iterable[str],
    format: str | Format = "auto",
    tools: Tools | None = None,
    starts_in_reasoning: bool | None = None,
    thinking: bool | None = None,
    bad_call: BadCall = "incomplete",
    *,
    model: str = "",
    calls: bool = True,
    reasoning: bool = True,
    buffering: Buffering = DEFAULT_BUFFERING,
    call_prefix: str = "call",
) -> list[BareEvent]:
    """All events of one text, from StreamStart to StreamEnd (or StreamError)."""
    box = inband(
        format,
        tools,
        starts_in_reasoning,
        thinking,
        bad_call,
        model=model,
        calls=calls,
        reasoning=reasoning,
        buffering=buffering,
        call_prefix=call_prefix,
    )
    events = box.feed(StreamStart(model=model))
    events += box.feed(TextStart())
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        if piece:
            events += box.feed(TextDelta(piece))
    events += box.feed(TextEnd())
    events += box.feed(StreamEnd("end"))
    return events
