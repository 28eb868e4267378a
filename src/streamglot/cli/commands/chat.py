"""``streamglot chat``: a conversation. Lines that begin with a slash are commands of the chat itself."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from msgspec import structs

from ...client import Client
from ...engine.turn_recorder import BackgroundRecorder
from ...errors import ConfigError, StreamglotError
from ...messages import Message, Request
from .. import completion
from ..answer import OUTPUT, Answered, answer, display_options, turn_recorder
from ..exit_status import FAILED, INTERRUPTED, Ended, ended_by, stoppable
from ..options import (
    HERE,
    Command,
    completed,
    text,
)
from ..output.printers import DisplayOptions
from ..output.terminal import is_terminal, one_line, print_error, print_status, well_formed
from ..question import QUESTION, Question, attached, question_of
from .ask import last_turn, with_results

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer

    from ...store import TurnDetail

FENCE: Final = '"""'
"""A line with this text begins and ends a message of several lines."""
MESSAGE_CHARS: Final = 2**24
"""Characters of the longest message from a pipe: far more than any model's context, and small enough for memory."""
LABEL_CHARS: Final = 40
"""Characters of a model's name that the prompt shows, so that a long name leaves room for the message."""


def piped_messages() -> Iterator[str]:
    """The lines of a file or a pipe. Each line is a message, unless fences enclose several lines."""
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
    """The messages that the user types, with history, multi-line editing and completion by Tab. ``label`` is shown in the prompt.
    ``completions`` returns the words that may follow the beginning of a line; None if a file name may follow."""
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
    """The text that the user types. A signal that ends the program ends the prompt first, so that the terminal is as it was
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
    """The history file, readable by this user only; None if it cannot be written."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "streamglot"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = state / "history"
        path.touch(mode=0o600)
    except OSError:
        return None
    return path


COMMANDS: Final = {
    "help": ("", "list the commands"),
    "model": ("[NAME]", "show or change the model"),
    "system": ("[TEXT]", "show or change the system message; `clear` removes it"),
    "attach": ("FILE|URL", "send it with the next message"),
    "retry": ("", "ask the last question again"),
    "reset": ("", "forget the conversation and start a new one"),
    "usage": ("", "show tokens and cost of the last answer"),
    "save": ("FILE", "write the conversation as JSON"),
    "exit": ("", "leave; so does Ctrl-D"),
}
"""Each command with its argument and what it does."""
NOTES: Final = (
    f"{FENCE} on a line of its own begins a message of several lines and ends it. At a terminal Alt-Enter starts a new line, "
    "and so does a \\ at the end of a line.",
    "Ctrl-C stops an answer; the partial answer stays in the conversation.",
)
LEAVING: Final = ("exit", "quit", "bye")
CLEAR: Final = "clear"
HELP_WIDTH: Final = 80
"""The greatest width of the help, in columns."""
NARROWEST: Final = 40
"""The smallest width of the help, in columns: below it the second column has no room for a word."""


class Chat:
    def __init__(self, client: Client, recorder: BackgroundRecorder, question: Question, display: DisplayOptions) -> None:
        self._client = client
        self._recorder = recorder
        self._question = question
        self._display = display
        self._messages: list[Message] = []
        self._tools: Request | None = None
        self._last: Answered | None = None
        self.status = 0
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: print_status(help_text(shutil.get_terminal_size().columns)),
            "model": self._model,
            "system": self._system,
            "attach": self._attach,
            "retry": self._retry,
            "reset": self._reset,
            "usage": self._usage,
            "save": self._save,
        }

    def resume(self, turn: TurnDetail) -> None:
        """Continues the conversation that ended with this turn, with its model, system message and tools."""
        assert turn.request is not None
        messages = [message for message in turn.request.messages if message.role not in ("system", "developer")]
        answers = turn.response.choices if turn.response is not None else []
        self._messages = [*messages, *(Message("assistant", choice.parts) for choice in answers[:1])]
        self._tools = turn.request
        system = "\n\n".join(message.text for message in turn.request.messages if message.role in ("system", "developer"))
        self._question.system = self._question.system or system
        self._question.model = self._question.model or turn.model

    @property
    def model(self) -> str:
        """The model for the next question; empty if none is named."""
        return self._client.pool.routes.named(self._question.model)

    def refuse_unserved_model(self) -> None:
        """Reports a model that no upstream serves, as /model does. The chat then has the default model, or none."""
        try:
            if self._question.model:
                self._client.pool.check(self._question.model)
        except StreamglotError as error:
            print_error(error.message)
            self._question.model = ""

    def print_banner(self) -> None:
        print_status(
            f"{f'model {self.model}' if self.model else 'no model is named: /model NAME'}; /help lists the commands, Ctrl-D leaves"
        )

    def print_last_messages(self) -> None:
        """Shows how a resumed conversation ended."""
        last = next((place for place, message in reversed([*enumerate(self._messages)]) if message.role == "user"), 0)
        print_status(f"resumed after {len(self._messages)} messages; the last of them:")
        for message in self._messages[last:]:
            print_status(textwrap.indent(f"{message.role}: {message.text}".rstrip(), "  "))

    def take(self, text: str) -> bool:
        """Handles one line or message of the user. Returns False at the end of the conversation."""
        is_command = text.startswith("/") and "\n" not in text
        name, _, rest = text[1:].partition(" ") if is_command else ("", "", "")
        if name in LEAVING:
            return False
        try:
            if name in self._commands:
                self._commands[name](rest.strip())
            elif is_command:
                print_error(f"there is no command /{name}; /help lists them")
            elif text.strip():
                self._ask(self._question.message(text))
        except StreamglotError as error:
            print_error(error.message)
            self.status = self.status if is_command else FAILED
        return True

    def completions(self, line: str) -> Sequence[str] | None:
        """The words that may follow the beginning of a line; None if a file name may follow."""
        command = line.partition(" ")[0]
        if not line:
            return [f"/{name}" for name in COMMANDS]
        if command in ("/attach", "/save"):
            return None
        if command == "/model":
            return [model for model, _ in self._client.pool.models()]
        return [CLEAR] if command == "/system" else []

    def _ask(self, message: Message) -> None:
        self._messages.append(message)
        request = self._question.request(with_results(self._messages))
        if self._tools is not None:
            request.tools = request.tools or self._tools.tools
        self._question.attachments = []
        self._last = answer(self._client, request, self._display, self._recorder)
        self.status = 0 if self._last.status == INTERRUPTED else self._last.status
        parts = self._last.response.choices[0].parts if self._last.response.choices else []
        if parts:
            self._messages.append(Message("assistant", parts))
        else:
            self._messages.pop()  # otherwise the next request would have two user messages in a row
        if self._last.status > INTERRUPTED:
            raise Ended(self._last.status)

    # --- commands

    def _model(self, name: str) -> None:
        if name:
            self._client.pool.check(name)  # refuses a model that no upstream serves; the old one stays
            self._question.model = name
        print_status(f"model {self.model}" if self.model else "no model is named: /model NAME")

    def _system(self, text: str) -> None:
        if text == CLEAR:
            self._question.system = ""
            print_status("the system message is removed")
            return
        self._question.system = text or self._question.system
        print_status(f"system message: {self._question.system}" if self._question.system else "there is no system message")

    def _attach(self, name: str) -> None:
        if not name:
            raise ConfigError("/attach needs the name of a file, or an address: /attach FILE")
        attached(name)  # refuses a file that cannot be read at once
        self._question.attachments.append(name)
        print_status(f"{name} is sent with the next message")

    def _retry(self, _: str) -> None:
        while self._messages and self._messages[-1].role != "user":
            self._messages.pop()
        if not self._messages:
            raise ConfigError("nothing was asked yet: send a message first")
        self._ask(self._messages.pop())

    def _reset(self, _: str) -> None:
        count = len(self._messages)
        self._messages.clear()
        self._recorder.new_conversation()
        print_status(f"{count} messages are forgotten; the next question starts a new conversation")

    def _usage(self, _: str) -> None:
        if self._last is None:
            raise ConfigError("nothing was asked yet: send a message first")
        print_status(self._last.usage_line(self.model))

    def _save(self, name: str) -> None:
        if not name:
            raise ConfigError("/save needs the name of a file: /save FILE")
        path = Path(name).expanduser()
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(self._messages)) + b"\n")
        except OSError as error:
            raise ConfigError(f"{name} cannot be written: {error.strerror or error}") from None
        print_status(f"{len(self._messages)} messages are saved in {path}")


def help_text(columns: int) -> str:
    """The commands and the keys, wrapped between words."""
    width = min(max(columns, NARROWEST), HELP_WIDTH) - 1
    names = {f"/{name} {argument}".rstrip(): about for name, (argument, about) in COMMANDS.items()}
    indent = max(map(len, names)) + 2
    rows = [
        textwrap.fill(about, width, initial_indent=name.ljust(indent), subsequent_indent=" " * indent)
        for name, about in names.items()
    ]
    return "\n".join((*rows, "", *(textwrap.fill(note, width, break_on_hyphens=False) for note in NOTES)))


@click.command(
    cls=Command,
    examples=(
        "streamglot chat -m local",
        "streamglot chat --continue             # resume the last conversation",
        "streamglot chat --continue 06605008c9  # one of `streamglot sessions list`",
    ),
)
@click.option(
    "-c",
    "--continue",
    "resume",
    type=text,
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[SESSION]",
    help="Resume the last conversation, or the one with this id or the beginning of it.",
    shell_complete=completed(completion.sessions),
)
@HERE
@QUESTION
@OUTPUT
@stoppable()
def chat(resume: str | None, here: bool, no_log: bool, **given: Any) -> int:  # Any: Click passes the options by their names
    """Hold a conversation.

    Alt-Enter starts a new line, the arrow keys recall earlier lines, Tab completes commands, and /help lists them.
    """
    if resume and here:
        raise click.UsageError("--continue SESSION and --here select different conversations: use only one of them")
    session_id = "" if here else resume
    question, display = question_of(given), display_options(given)
    at_terminal = is_terminal(sys.stdin) and is_terminal(sys.stderr)
    client = question.tools.client()
    with turn_recorder(client.pool.loaded, enabled=not no_log) as recorder:
        past = None
        if session_id is not None:
            past, session, answers = recorder.ask(lambda store: last_turn(store, session_id, here))
            recorder.resume(session, answers)
        with client:
            conversation = Chat(client, recorder, structs.replace(question), display)
            if at_terminal:  # lines of a pipe must not go to another model than the named one
                conversation.refuse_unserved_model()
            if past is not None:
                conversation.resume(past)
            if at_terminal:
                conversation.refuse_unserved_model()  # the model of the resumed conversation
                conversation.print_banner()
                if past is not None:
                    conversation.print_last_messages()
            for text in typed_messages(lambda: conversation.model, conversation.completions) if at_terminal else piped_messages():
                if not conversation.take(text):
                    break
    return 0 if at_terminal else conversation.status
