"""The box over events: TextDelta in; text, reasoning and calls out. Everything else passes through in its place.

It serves one choice of a stream. Blocks that the upstream names itself (native reasoning, native calls, refusals) are
not touched; where one begins, the text before it has ended for us too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ..errors import ConfigError, excerpt
from ..events import (
    BareEvent,
    Citation,
    Echo,
    Extra,
    KeepAlive,
    Media,
    ReasoningDelta,
    ReasoningStart,
    StepEnd,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    Usage,
)
from ..messages import ToolSpec
from .declared import Declared
from .emitter import DEFAULT_BUFFERING, Buffering, Emitter
from .format import Format
from .scan import Malformed
from .text_parser import TextParser

Tools = Iterable[ToolSpec | Mapping[str, Any]]

_LOOSE = (Usage, KeepAlive, Extra)
_ENDED = ("end", "stop_sequence", "other")
_CUT = ("length", "cancelled", "content_filter")


class _Failed(Exception):
    """A malformed call, and the caller wants an error."""


class InBand:
    """The in-band parser of one choice. ``tools``: without any, every well-formed name may be called. ``calls`` and
    ``reasoning`` switch the finding of either off."""

    def __init__(
        self,
        format: Format,
        tools: Tools | None = None,
        *,
        starts_in_reasoning: bool | None = None,
        thinking: bool | None = None,
        bad_call: Literal["text", "error"] = "text",
        calls: bool = True,
        reasoning: bool = True,
        buffering: Buffering = DEFAULT_BUFFERING,
        call_prefix: str = "call",
    ) -> None:
        if bad_call not in ("text", "error"):
            raise ConfigError(f'bad_call is "text" or "error", not {excerpt(bad_call)}')
        self.format = format
        self._declared = Declared(tools, format.any_name)
        self._emitter = Emitter(buffering, call_prefix, keep_space=format.untouched)
        self._starts = self._begins = format.think.begins(starts_in_reasoning, thinking)
        self._bad_call = bad_call
        self._calls = calls
        self._reasoning = reasoning
        self._direct = buffering.text == "piece" and buffering.reasoning == "piece"
        self._parser: TextParser | None = None
        self._echo: Echo | None = None
        self._broken = False
        self._native = False
        self._refusal = False
        self._ended = False

    def feed(self, event: BareEvent) -> list[BareEvent]:
        if type(event) is TextDelta and not self._refusal and not self._ended:
            return self._piece(event)
        if self._ended:
            return []
        if isinstance(event, _LOOSE):
            return [event]
        if isinstance(event, (Citation, Media)):
            if self._emitter.open in ("", "text"):
                return [event]
            self._emitter.waiting.append(event)
            return []
        if self._refusal:
            self._refusal = not isinstance(event, TextEnd)
            return [event]
        if isinstance(event, TextStart):
            if event.refusal:
                self._refusal = True
                return [*self._settle(), event]
            return []
        if isinstance(event, TextEnd):
            self._echo = event.echo or self._echo
            self._broken = not event.complete
            return []
        if isinstance(event, StreamStart):
            return [event]
        if isinstance(event, StreamError):
            before = self._settle(cut=True)
            if self._ended:
                return before
            self._ended = True
            return [*before, event]
        if isinstance(event, StreamEnd):
            before = self._settle(cut=event.reason in _CUT)
            if self._ended:
                return before
            self._ended = True
            return [*before, self._end(event)]
        if isinstance(event, StepEnd):
            return self._step(event)
        self._native = self._native or isinstance(event, ReasoningStart)
        return [*self._settle(), event]

    def close(self) -> list[BareEvent]:
        return [] if self._ended else self._settle(cut=True)

    # --- inside

    def _piece(self, event: TextDelta) -> list[BareEvent]:
        text = event.text
        parser = self._parser
        emitter = self._emitter
        if parser is None:
            parser = self._parser = self._begin()
        elif (
            self._direct
            and parser.idle
            and emitter.open == parser.reader.mode
            and not emitter.space
            and parser.source.at >= len(parser.source.text)
            and text
            and not text[-1].isspace()
            and parser.first.search(text) is None
        ):
            # Prose without anything that could begin a marker: the common case, and the fast one.
            if emitter.open == "text":
                parser.prose_went_by(text[-1])
                return [event]
            return [ReasoningDelta(text)]
        try:
            parser.push(text)
        except _Failed as failure:
            return self._error(failure)
        return self._take()

    def _begin(self) -> TextParser:
        begins = self._begins and not self._native
        self._begins = False
        return TextParser(
            self.format,
            self._declared,
            self._emitter,
            begins_in_reasoning=begins,
            calls=self._calls,
            reasoning=self._reasoning,
            failed=self._judge,
        )

    def _take(self) -> list[BareEvent]:
        out, self._emitter.out = self._emitter.out, []
        return out

    def _settle(self, cut: bool = False) -> list[BareEvent]:
        """The text is over: everything that was held goes out, and the open block ends. ``cut``: it was broken off."""
        parser, self._parser = self._parser, None
        if parser is not None:
            try:
                parser.close(cut)
            except _Failed as failure:
                return self._error(failure)
        echo, self._echo = self._echo, None
        self._emitter.finish(echo, not self._broken)
        self._broken = False
        return self._take()

    def _judge(self, reason: Malformed, trail: str) -> None:
        if self._bad_call == "error":
            raise _Failed(f"Tool call parsing failed: {reason} ({self.format.name}, near {excerpt(trail[:120])})")

    def _error(self, failure: _Failed) -> list[BareEvent]:
        self._ended = True
        self._emitter.finish(complete=False)
        return [*self._take(), StreamError("tool_call_parse_error", str(failure), origin="upstream", status=502)]

    def _end(self, event: StreamEnd) -> StreamEnd:
        if self._emitter.calls and event.reason in _ENDED:
            return StreamEnd("tool_calls", event.raw_reason, event.sequence)
        return event

    def _step(self, event: StepEnd) -> list[BareEvent]:
        """A turn of the model is over: the next one begins as this one did."""
        before = self._settle(cut=event.reason in _CUT)
        if self._emitter.calls and event.reason in _ENDED:
            event = StepEnd(event.step, "tool_calls")
        self._emitter.calls = 0
        self._begins, self._native = self._starts, False
        return before if self._ended else [*before, event]
