"""The exit status of a command. An error is one line on standard error and a status, never a traceback.

0    success
1    an error of an upstream, of the store, of the output
2    wrong options, settings or files, or a package that is not installed
130  Ctrl-C;  143, 129  SIGTERM and SIGHUP
141  the reader of the output closed the pipe, as with ``| head -1``
"""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, NoReturn

import click
from click.exceptions import Exit

from ..errors import ConfigError, StreamglotError
from ..installation import missing_package
from .output.standard_streams import discard, flush_failure, is_broken_pipe
from .output.terminal import neutral, print_error

FAILED: Final = 1
USAGE_ERROR: Final = 2
INTERRUPTED: Final = 130
"""The status that shells report for a program that Ctrl-C ended."""
BROKEN_PIPE: Final = 141
"""The status that shells report for a program that wrote to a pipe without a reader."""
TERMINATION_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """A signal ended the program, as Ctrl-C does. ``status`` is the exit status that shells report for it."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


def _raise(end: Ended) -> NoReturn:
    raise end


_endings: Final[list[Callable[[Ended], None]]] = [_raise]
"""The last one is called by a signal that ends the program."""


@contextmanager
def ended_by(end: Callable[[Ended], None]) -> Iterator[None]:
    """Calls ``end`` for a signal that ends the program, instead of raising Ended wherever the program is at that moment: inside an
    event loop, that place may be a callback, whose exception nobody gets."""
    _endings.append(end)
    try:
        yield
    finally:
        _endings.remove(end)


@contextmanager
def stoppable() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP stop an answer as Ctrl-C does, so that the partial answer is stored. A second signal changes
    nothing (a terminal that closes sends several). An ignored signal (``nohup``) stays ignored."""
    # A signal may come after a step of the client was made and before it was started. Nothing is lost with that step.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    handled = [number for number in TERMINATION_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    status = 0

    def end(number: int, _: FrameType | None) -> None:
        nonlocal status
        status = 128 + number
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        _endings[-1](Ended(status))

    for number in handled:
        signal.signal(number, end)
    try:
        yield
    except OSError:  # a closed terminal cannot be written to
        if not status:
            raise
        discard(sys.stdout)
        raise Ended(status) from None
    finally:
        if not status:  # a program that is ending ignores further signals until it has ended
            for number in handled:
                signal.signal(number, signal.SIG_DFL)


def exit_status(command: Callable[[], int]) -> int:
    """Runs a command and flushes its output. Otherwise the interpreter would flush at exit, and a failure there would replace the
    status by 120."""
    status = _status(command)
    failure = flush_failure(sys.stdout)
    if failure is not None and not status:
        status = _output_failed(failure)
    flush_failure(sys.stderr)  # a failure cannot be reported anywhere
    return status


def _status(command: Callable[[], int]) -> int:
    try:
        return command()
    except Exit as end:
        return end.exit_code
    except Ended as end:
        return end.status
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.ClickException as error:
        return _misused(error)
    except ConfigError as error:
        print_error(error.message)
        return USAGE_ERROR
    except StreamglotError as error:
        print_error(error.message)
        return FAILED
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        if missing is None:
            raise
        print_error(missing.message)
        return USAGE_ERROR
    except OSError as error:
        return _output_failed(flush_failure(sys.stdout) or error)


def _misused(error: click.ClickException) -> int:
    """Prints Click's usage error without the control characters that an argument may contain. If the command is missing, only
    the help is printed."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        with suppress(OSError):
            print(error.format_message(), file=sys.stderr)
        return error.exit_code
    if isinstance(error, click.UsageError) and error.ctx is not None:
        with suppress(OSError):  # a failure cannot be reported anywhere
            print(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n", file=sys.stderr)
    print_error(error.format_message())
    return error.exit_code


def _output_failed(error: OSError) -> int:
    """Reports an output that cannot be written. A closed pipe is not reported, because its reader wanted no more."""
    if is_broken_pipe(error):
        discard(sys.stdout)
        return BROKEN_PIPE
    where = neutral(str(error.filename)) if error.filename is not None else "standard output"
    print_error(f"{where}: {error.strerror or error}")
    return FAILED
