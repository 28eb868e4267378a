"""Reads the messages of a chat: from a terminal with line editing, or from the lines of a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import ConfigError
from ..exit_status import Ended, ended_by
from ..output.terminal import one_line, well_formed

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer

FENCE: Final = '"""'
"""A line with this text begins and ends a message of several lines."""
MESSAGE_CHARS: Final = 2**24
"""Characters of the longest message from a pipe: far more than any model's context, and small enough for memory."""
LABEL_CHARS: Final = 40
"""Characters of a model's name that the prompt shows, so that a long name leaves room for the message."""


def piped_messages() -> Iterator[str]:
    """Yields the lines of a file or a pipe. Each line is a message, unless fences enclose several lines."""
    fenced: list[str] | None = None
    size = 0
    while line := sys.stdin.readline(MESSAGE_CHARS + 1):
        size += len(line)
        if size > MESSAGE_CHARS:
            raise ConfigError(f"a message has more than {MESSAGE_CHARS} characters: shorten it, or end it with a line {FENCE}")
        bare = line.rstrip("\n")
        if bare.strip() == FENCE:
            if fenced is not None:
                yield "\n".join(fenced)
            fenced = [] if fenced is None else None
        elif fenced is not None:
            fenced.append(bare)
            continue
        else:
            yield bare
        size = 0
    if fenced:
        yield "\n".join(fenced)


def typed_messages(label: Callable[[], str], completions: Callable[[str], Sequence[str] | None]) -> Iterator[str]:
    """Yields the messages that the user types, with history, multi-line editing and completion by Tab. ``label`` is shown in the
    prompt. ``completions`` returns the words that may follow the beginning of a line; None if a file name may follow."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import create_output
    from prompt_toolkit.shortcuts import CompleteStyle

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        text = buffer.text
        if buffer.document.current_line.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        elif text.count(FENCE) % 2 and text.lstrip().startswith(FENCE):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    path = _history()
    history: History = FileHistory(str(path)) if path else InMemoryHistory()
    session: PromptSession[str] = PromptSession(
        multiline=True,
        key_bindings=keys,
        history=history,
        completer=_completer(completions),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,  # the menu of the other styles reserves lines of the screen
        output=create_output(stdout=sys.stderr),
    )
    while True:
        try:
            text = well_formed(_prompted(session, f"{one_line(label())[:LABEL_CHARS]}> "))
        except Ended:
            raise
        except KeyboardInterrupt:
            continue  # Ctrl-C clears the line
        except EOFError:
            return
        yield text.strip().removeprefix(FENCE).removesuffix(FENCE).strip("\n") if text.strip().startswith(FENCE) else text


def _prompted(session: PromptSession[str], label: str) -> str:
    """Returns the text that the user types. A signal that ends the program ends the prompt first, so that the terminal is as it was
    before."""
    app = session.app
    ends: list[Ended] = []

    def leave() -> None:
        if ends and app.is_running and not app.is_done:
            app.exit(exception=ends[0])

    def end(error: Ended) -> None:
        ends.append(error)
        if app.loop is not None:
            app.loop.call_soon_threadsafe(leave)

    try:
        with ended_by(end):
            return session.prompt(label, pre_run=leave)
    finally:
        if ends:  # it may have come while the prompt ended
            raise ends[0]


def _completer(completions: Callable[[str], Sequence[str] | None]) -> Completer:
    """Completes the word at the cursor. It offers nothing in a message that is not a command."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    class SlashCommands(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            line = document.text_before_cursor
            if not line.startswith("/") or "\n" in line:
                return
            before, space, word = line.rpartition(" ")
            words = completions(before + space)
            if words is None:
                yield from PathCompleter(expanduser=True).get_completions(Document(word), complete_event)
            else:
                yield from (Completion(offer, -len(word)) for offer in words if offer.startswith(word))

    return SlashCommands()


def _history() -> Path | None:
    """Returns the history file, readable by this user only; None if it cannot be written."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "streamglot"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = state / "history"
        path.touch(mode=0o600)
    except OSError:
        return None
    return path
