"""Text to events: finds the reasoning and the tool calls that a model writes into its text.

``inband(format)`` is a box over the events of one choice; ``parse_text`` reads a whole text. ``FORMATS`` has a row for each
notation, ``format_for_model`` finds the row for a model name.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import BadCall
from ..events import BareEvent, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart
from ..names import FormatName
from .box import InBand, Tools
from .emitter import DEFAULT_BUFFERING, Buffering
from .format import Format, Think
from .profiles import FORMATS, PROFILES, OwnMarkers, find_format, format_for_model, with_markers
from .prompt import as_prompt

__all__ = [
    "DEFAULT_BUFFERING",
    "FORMATS",
    "PROFILES",
    "Buffering",
    "Format",
    "InBand",
    "OwnMarkers",
    "Think",
    "as_prompt",
    "find_format",
    "format_for_model",
    "inband",
    "parse_text",
    "with_markers",
]


def inband(
    format: FormatName | str | Format = "auto",
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
    """The box that finds reasoning and calls in the text of a model: it takes the events of a reader and gives events.

        box = streamglot.inband("hermes", tools)
        events = box.feed(reader.feed(data))

    Takes:
        ``format``: the notation: a name, a row, ``"auto"`` (found by ``model``) or ``"none"``.
        ``tools``: the declared tools. If there are none, every well-formed name may be called.
        ``starts_in_reasoning``: whether the answer begins inside the reasoning; by default as the format says.
        ``thinking``: whether the request switched reasoning on, for formats whose template then writes the opening tag.
        ``bad_call``: what to do with a call that cannot be parsed: ``"incomplete"`` (it is marked, and the stream ends with
        ``tool_call_parse_error``), ``"text"`` (it is text) or ``"error"`` (any markup that is not a call ends the stream at once).
        ``calls``, ``reasoning``: False switches the detection of either off.
        ``buffering``: gives the text in larger pieces.
        ``call_prefix``: begins the ids of the calls.

    Gives an ``InBand``: ``feed(events)`` and ``close()`` give lists of events. Each choice of a stream is read for itself.

    Raises ``ConfigError`` for a name that does not exist, and for tools without a name.
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
    format: FormatName | str | Format = "auto",
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
    """The events of one text: what a model wrote, without a stream around it.

        events = streamglot.parse_text("<think>Hm.</think>Yes.", "hermes")

    Takes ``pieces``, the text in one or several pieces. ``format``, ``tools``, ``starts_in_reasoning``, ``thinking``, ``bad_call``,
    ``model``, ``calls``, ``reasoning``, ``buffering`` and ``call_prefix`` are as for ``inband``.

    Gives a list of events, from ``StreamStart`` to ``StreamEnd`` or ``StreamError``. Raises ``ConfigError`` as ``inband`` does.
    """
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
    events = box.feed_one(StreamStart(model=model))
    events += box.feed_one(TextStart())
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        if piece:
            events += box.feed_one(TextDelta(piece))
    events += box.feed_one(TextEnd())
    events += box.feed_one(StreamEnd("end"))
    return events
