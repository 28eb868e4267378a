"""An answer as plain text, live, or as JSON for other programs.

Of plain text, text and calls go to standard output, reasoning and remarks to standard error.
"""

from __future__ import annotations

import re
import sys
from typing import BinaryIO, Final, Literal, Protocol, TextIO

import msgspec
from msgspec import Struct

from ...events import (
    Choice,
    Citation,
    Event,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    StreamEnd,
    StreamError,
    TextDelta,
    TextEnd,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    encode,
)
from ...stages import Collect
from .terminal import CYAN, DIM, RESET, WordWrap, coloured, columns_of, is_terminal, neutral, readable

Form = Literal["text", "raw", "json", "events"]
FORMS: Final[tuple[Form, ...]] = ("raw", "json", "events")
"""The forms of an answer that an option names."""


class Printer(Protocol):
    error: StreamError | None

    def feed(self, event: Event) -> None: ...
    def close(self) -> None: ...


class PlainPrinter:
    """Prints events as they arrive. ``exact``: a file or a pipe gets the text unchanged; a terminal gets no control
    characters."""

    def __init__(self, out: TextIO, err: TextIO, *, reasoning: bool = True, exact: bool = False) -> None:
        self.out, self.err = out, err
        self.error: StreamError | None = None
        self._reasoning = reasoning
        self._exact = exact and not is_terminal(out)
        self._dim = (DIM, RESET) if coloured(err) else ("", "")
        self._bright = (CYAN, RESET) if coloured(out) else ("", "")
        self._at_start = True
        self._thinking = False
        self._wrap: WordWrap | None = None

    def feed(self, event: Event) -> None:
        match event:
            case TextDelta():
                self.text(event.text)
            case ReasoningDelta():
                self.think(event.text)
            case ReasoningEnd():
                self.thought()
            case TextEnd():
                self.end_of_text()
            case ToolCallStart():
                self.line_start()
                self.write(f"{self._bright[0]}→ {neutral(event.name)}(")
            case ToolCallDelta():
                self.write(neutral(event.args))
            case ToolCallEnd():
                self.write(f"){self._bright[1]}{'' if event.complete else '  (cut off)'}\n")
            case ToolResult():
                self.remark(f"← {event.content}")
            case Citation() if event.url or event.title:
                self.remark(f"source: {event.title} {event.url}".strip())
            case Media():
                self.remark(f"{event.mime} {event.url or f'of {len(event.data) * 3 // 4} bytes, included with --json'}")
            case StreamEnd() if event.reason == "cancelled":
                if is_terminal(self.err):
                    self.remark("stopped")
            case StreamEnd() if event.reason not in ("end", "tool_calls", "stop_sequence"):
                self.remark(f"the answer ended early: {event.reason}")
            case StreamError():
                self.error = event
            case Choice():
                pass  # requests of the command line have one choice

    def close(self) -> None:
        """Ends the last line."""
        self.thought()
        self.line_start()

    # --- pieces

    def write(self, text: str) -> None:
        if text:
            self.thought()
            self._at_start = text.endswith("\n")  # set before the write, because an interrupt may arrive at any point
            self.out.write(text)
            self.out.flush()

    def text(self, text: str) -> None:
        self.write(text if self._exact else neutral(text))

    def end_of_text(self) -> None:
        """Called at the end of a text block. More blocks may follow."""

    def line_start(self) -> None:
        if not self._at_start:
            self.write("\n")

    def think(self, text: str) -> None:
        if self._reasoning:
            if not self._thinking:
                self.line_start()
                self._thinking = True
                self._wrap = WordWrap(columns_of(self.err)) if is_terminal(self.err) else None
                self.err.write(self._dim[0])
            plain = neutral(text)
            self.err.write(self._wrap.feed(plain) if self._wrap is not None else plain)
            self.err.flush()

    def thought(self) -> None:
        if self._thinking:
            self._thinking = False
            rest = self._wrap.close() if self._wrap is not None else ""
            self.err.write(f"{rest}{self._dim[1]}\n")
            self.err.flush()

    def remark(self, text: str) -> None:
        self.thought()
        self.line_start()
        self.err.write(f"{self._dim[0]}{readable(text, self.err)}{self._dim[1]}\n")
        self.err.flush()


_NOT_SEEN: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that JSON allows unescaped and that control a terminal."""


def seen(line: bytes) -> bytes:
    """The same JSON with these characters escaped."""
    return _NOT_SEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", line.decode()).encode()


class EventPrinter:
    """Prints events, one JSON object a line."""

    def __init__(self, out: BinaryIO) -> None:
        self.error: StreamError | None = None
        self._out = out

    def feed(self, event: Event) -> None:
        if isinstance(event, StreamError):
            self.error = event
        self._out.write(seen(encode(event)) + b"\n")
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


class JsonPrinter:
    """Prints the whole answer with its usage and its error, if any."""

    def __init__(self, out: BinaryIO) -> None:
        self.error: StreamError | None = None
        self._out = out
        self._box = Collect()

    def feed(self, event: Event) -> None:
        if isinstance(event, StreamError):
            self.error = event
        self._box.feed(event)

    def close(self) -> None:
        self._out.write(seen(msgspec.json.encode(self._box.close()[0])) + b"\n")
        self._out.flush()


class DisplayOptions(Struct, kw_only=True):
    """How an answer is shown."""

    markdown: Literal["auto", "always", "never"] = "auto"
    reasoning: bool = True
    form: Form = "text"
    usage: bool = False

    def printer(self) -> Printer:
        if self.form in ("json", "events"):
            return (JsonPrinter if self.form == "json" else EventPrinter)(sys.stdout.buffer)
        rendered = self.markdown == "always" or (self.markdown == "auto" and is_terminal(sys.stdout))
        if rendered and self.form == "text":
            from .markdown import MarkdownPrinter

            return MarkdownPrinter(sys.stdout, sys.stderr, reasoning=self.reasoning)
        return PlainPrinter(sys.stdout, sys.stderr, reasoning=self.reasoning, exact=self.form == "raw")
