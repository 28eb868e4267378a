"""An answer on the command line: asked for once, printed as it arrives, and recorded, complete or partial, as a turn of this user."""

from __future__ import annotations

import getpass
import os
import sys
from typing import Any, Final

import click
from msgspec import Struct

from ..client import Client, Stream
from ..config import DISABLED, LoadedConfig
from ..engine.stats import UpstreamWait
from ..engine.turn_recorder import BackgroundRecorder
from ..errors import StreamglotError
from ..events import Event, StreamEnd
from ..messages import Request, Response, TokenCounts
from ..stages import Collect
from ..text import COMMAND_LINE
from ..upstream.local import NAME as LOCAL
from ..upstream.prices import price
from .exit_status import INTERRUPTED, Ended
from .options import this_directory, together
from .output.printers import FORMS, DisplayOptions, PlainPrinter, Printer
from .output.terminal import print_error, print_status
from .output.units import money, tokens
from .question import Approval

RAW = click.option("--raw", is_flag=True, help="Print the text unchanged. A terminal still gets no control characters.")
JSON_OPTIONS = together(
    click.option("--json", is_flag=True, help="Print the whole answer as one JSON object, when it is complete."),
    click.option("--events", is_flag=True, help="Print the events as they arrive, one JSON object a line."),
)
OUTPUT = together(
    click.option(
        "--markdown",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="Render markdown. `auto` does so at a terminal only.",
    ),
    click.option("--hide-reasoning", is_flag=True, help="Do not show the model's reasoning."),
    RAW,
    click.option("-u", "--usage", is_flag=True, help="Print tokens and cost on standard error."),
    click.option("--no-log", is_flag=True, help="Do not store this conversation."),
)


class Answered(Struct):
    """The answer, its upstream and the exit status: 0, 1 after an error, 130 after Ctrl-C, 128 + N after signal N. ``estimated``
    has the token counts if the upstream did not report all of them, for example because the answer was stopped."""

    response: Response
    status: int
    upstream: str
    estimated: TokenCounts | None = None

    def usage_line(self, model: str) -> str:
        """Tokens and cost. ``model`` is the one that was asked, for an answer that does not name its own."""
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


DIALECT: Final = "cli"


def this_user() -> str:
    """The caller name for this user's turns, because several users may share a database."""
    try:
        return f"{COMMAND_LINE}{getpass.getuser()}"
    except (OSError, KeyError):  # the system has no name for this user id
        return f"{COMMAND_LINE}{os.getuid()}"


class _CommandLineRecorder(BackgroundRecorder):
    def _abandon(self) -> None:
        sys.stdout.flush()
        os._exit(INTERRUPTED)  # a normal exit would wait for the threads of an unresponsive database


def turn_recorder(loaded: LoadedConfig, *, enabled: bool) -> BackgroundRecorder:
    def warn(failure: str) -> None:
        print_error(f"this turn was not stored: {failure} (to store nothing, use --no-log or store.url = {DISABLED!r})")

    return _CommandLineRecorder(
        loaded, caller=this_user(), directory=this_directory(), dialect=DIALECT, warn=warn, enabled=enabled
    )


def display_options(given: dict[str, Any]) -> DisplayOptions:  # Any: Click passes options by their names
    """How these options show an answer."""
    forms = [form for form in FORMS if given.get(form)]
    if len(forms) > 1:
        raise click.UsageError(f"--{forms[0]} and --{forms[1]} cannot be used together")
    return DisplayOptions(
        markdown=given["markdown"],
        reasoning=not given["hide_reasoning"],
        form=forms[0] if forms else "text",
        usage=given["usage"],
    )


def usage_line(usage: TokenCounts, model: str, upstream: str, *, estimated: bool = False) -> str:
    return f"{tokens(usage)}{' (estimated)' if estimated else ''}; cost: {cost(usage, model, upstream)}"


def cost(usage: TokenCounts, model: str, upstream: str) -> str:
    return "nothing, it ran on this machine" if upstream == LOCAL else money(price(usage, model, upstream))
