"""Asks a model once, prints the answer as it arrives, and records it, complete or partial."""

from __future__ import annotations

import sys
from typing import Final, Literal, Protocol

from msgspec import Struct

from ..client import Client, Stream
from ..engine.background_recorder import BackgroundRecorder
from ..engine.record import UpstreamWait
from ..errors import StreamglotError
from ..events import Event, StreamEnd, StreamError
from ..messages import Request, Response, TokenCounts
from ..stages import Collect
from .exit_status import INTERRUPTED, Ended
from .output.cost import usage_line
from .output.terminal import is_terminal, print_error, print_status
from .output.text_output import PlainPrinter
from .tool_options import Approval

Form = Literal["text", "raw", "json", "events"]
FORMS: Final[tuple[Form, ...]] = ("raw", "json", "events")
"""The forms of an answer that an option names."""


class Printer(Protocol):
    error: StreamError | None

    def feed(self, event: Event) -> None: ...
    def close(self) -> None: ...


class DisplayOptions(Struct, kw_only=True):
    """How an answer is shown."""

    markdown: Literal["auto", "always", "never"] = "auto"
    reasoning: bool = True
    form: Form = "text"
    usage: bool = False

    def printer(self) -> Printer:
        if self.form in ("json", "events"):
            from .output.json_output import EventPrinter, JsonPrinter

            return (JsonPrinter if self.form == "json" else EventPrinter)(sys.stdout.buffer)
        rendered = self.markdown == "always" or (self.markdown == "auto" and is_terminal(sys.stdout))
        if rendered and self.form == "text":
            from .output.markdown import MarkdownPrinter

            return MarkdownPrinter(sys.stdout, sys.stderr, reasoning=self.reasoning)
        return PlainPrinter(sys.stdout, sys.stderr, reasoning=self.reasoning, exact=self.form == "raw")


class Answered(Struct):
    """The answer, its upstream and the exit status: 0, 1 after an error, 130 after Ctrl-C, 128 + N after signal N. ``estimated``
    has the token counts if the upstream did not report all of them, for example because the answer was stopped."""

    response: Response
    status: int
    upstream: str
    estimated: TokenCounts | None = None

    def usage_line(self, model: str) -> str:
        """Returns tokens and cost. ``model`` is the one that was asked, for an answer that does not name its own."""
        model = self.response.model or model
        if self.estimated is not None:
            return usage_line(self.estimated, model, self.upstream, estimated=True)
        return usage_line(self.response.usage, model, self.upstream)


def answer(client: Client, request: Request, display: DisplayOptions, recorder: BackgroundRecorder) -> Answered:
    """Sends the request, prints the answer, records it, and reports errors on standard error."""
    model = client.pool.routes.named(request.model)
    stream = client.stream(request, recorder=recorder.recorder(request, model))
    stream.record.on_wait = _print_wait
    approval = client.pool.tools.approve
    if isinstance(approval, Approval):
        approval.is_shown = lambda: stream.caught_up
    box = Collect()
    status = 0
    printer = display.printer()
    try:
        try:
            status = _show(stream, printer, box)
        finally:
            stream.close()
            printer.close()
    finally:
        response = box.close()[0]
    if printer.error is not None:
        print_error(printer.error.message)
        status = 1
    answered = Answered(response, status, stream.upstream, stream.record.estimated)
    if display.usage:
        print_status(answered.usage_line(request.model))
    if stream.dropped:
        print_error(f"upstream {stream.upstream!r} cannot express: {', '.join(stream.dropped)}")
    return answered


def _print_wait(wait: UpstreamWait | None) -> None:
    """Says on standard error who asked to wait, for how long, and which attempt follows."""
    if wait is not None:
        print_status(wait.sentence())


def _show(stream: Stream, printer: Printer, box: Collect) -> int:
    def take(event: Event) -> None:
        box.feed(event)
        printer.feed(event)

    try:
        for event in stream:
            take(event)
    except KeyboardInterrupt as stop:
        events = stream.ending(StreamEnd("cancelled"))
        stream.close()
        status = stop.status if isinstance(stop, Ended) else INTERRUPTED
        for event in events:
            box.feed(event)
            if status == INTERRUPTED or not isinstance(event, StreamEnd) or not isinstance(printer, PlainPrinter):
                printer.feed(event)  # tells the user that the answer was stopped, if the terminal is still there
        return status
    except StreamglotError as error:
        for event in stream.ending(error.as_event()):
            take(event)
    return 0
