"""One answer on its way to whoever reads the command line: printed as it comes, kept if it is stopped."""

from __future__ import annotations

import sys
from typing import Final, Literal, Protocol

from msgspec import Struct

from ..client import Client, Stream
from ..errors import StreamglotError
from ..events import Event, StreamEnd, StreamError
from ..messages import Request, Response
from ..stages import Collect
from .cost import usage_line
from .guard import INTERRUPTED, Ended
from .notebook import Notebook
from .plain import PlainPrinter
from .terminal import complain, is_terminal, neutral

GONE = "client_gone"
"""The ending of an answer that nobody reads to its end."""


Form = Literal["text", "raw", "json", "events"]
FORMS: Final[tuple[Form, ...]] = ("raw", "json", "events")
"""The forms of an answer that an option names."""


class Printer(Protocol):
    error: StreamError | None

    def feed(self, event: Event) -> None: ...
    def close(self) -> None: ...


class Look(Struct, kw_only=True):
    """How an answer is shown."""

    markdown: Literal["auto", "always", "never"] = "auto"
    reasoning: bool = True
    form: Form = "text"
    usage: bool = False

    def printer(self) -> Printer:
        if self.form in ("json", "events"):
            from .machine import EventPrinter, JsonPrinter

            return (JsonPrinter if self.form == "json" else EventPrinter)(sys.stdout.buffer)
        rendered = self.markdown == "always" or (self.markdown == "auto" and is_terminal(sys.stdout))
        if rendered and self.form == "text":
            from .markdown import MarkdownPrinter

            return MarkdownPrinter(sys.stdout, sys.stderr, reasoning=self.reasoning)
        return PlainPrinter(sys.stdout, sys.stderr, reasoning=self.reasoning, exact=self.form == "raw")


class Answered(Struct):
    """What came, from which upstream, and the exit status: 0, 1 after an error, 130 after Ctrl-C, more after other signals."""

    response: Response
    status: int
    upstream: str


def answer(client: Client, request: Request, look: Look, book: Notebook) -> Answered:
    """Asks, shows the answer as it comes, writes it down, and says what went wrong on standard error."""
    stream = client.stream(request)
    entry = stream.past = book.entry(stream)
    box = Collect()
    status, ending = 0, GONE
    printer = look.printer()
    try:
        try:
            status = _show(stream, printer, box)
        finally:
            stream.close()
            printer.close()
        ending = stream.record.ending
    finally:
        response = box.close()[0]
        entry.finish(response, ending)
    if printer.error is not None:
        complain(printer.error.message)
        status = 1
    if look.usage:
        model = response.model or request.model
        print(neutral(usage_line(response.usage, model, stream.upstream)), file=sys.stderr, flush=True)
    if stream.dropped:
        complain(f"upstream {stream.upstream!r} has no word for: {', '.join(stream.dropped)}")
    return Answered(response, status, stream.upstream)


def _show(stream: Stream, printer: Printer, box: Collect) -> int:
    def take(event: Event) -> None:
        box.feed(event)
        printer.feed(event)

    try:
        for event in stream:
            take(event)
    except KeyboardInterrupt as stop:
        stream.close()
        status = stop.status if isinstance(stop, Ended) else INTERRUPTED
        for event in stream.ending(StreamEnd("cancelled")):
            box.feed(event)
            if status == INTERRUPTED or not isinstance(event, StreamEnd) or not isinstance(printer, PlainPrinter):
                printer.feed(event)  # a person hears that the answer was stopped, if there still is one
        return status
    except StreamglotError as error:
        for event in stream.ending(error.as_event()):
            take(event)
    return 0
