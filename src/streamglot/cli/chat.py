"""``streamglot chat``: a conversation. Lines that begin with a slash are for the command line itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from ..client import Client
from ..engine.background_recorder import BackgroundRecorder
from ..errors import ConfigError
from ..messages import Message, TokenCounts
from .answer import Answered, Look, answer
from .cost import usage_line
from .guard import Ended, stoppable
from .question import Question
from .recording import INTERRUPTED, turn_recorder
from .reply import with_results
from .terminal import complain, is_terminal, neutral

FENCE: Final = '"""'
"""A line of this begins and ends a message of several lines."""
HELP: Final = """\
/help               this
/model [NAME]       show or change the model
/system [TEXT]      show or change the system message
/attach FILE|URL    send it with the next message
/retry              ask again
/reset              forget what was said
/usage              tokens and cost of the last answer
/save FILE          the conversation as JSON
/exit               leave (so does Ctrl-D)

\"\"\" on a line of its own begins a message of several lines and ends it; at a terminal so does Alt-Enter, or a \\ at the end
of a line. Ctrl-C stops an answer; what came of it stays."""


class Chat:
    def __init__(self, client: Client, recorder: BackgroundRecorder, question: Question, look: Look) -> None:
        self._client = client
        self._recorder = recorder
        self._question = question
        self._look = look
        self._messages: list[Message] = []
        self._last: Answered | None = None
        self.status = 0
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: self._say(HELP),
            "model": self._model,
            "system": self._system,
            "attach": self._attach,
            "retry": self._retry,
            "reset": self._reset,
            "usage": self._usage,
            "save": self._save,
        }

    def take(self, text: str) -> bool:
        """One line or message of the user; False at the end of the conversation."""
        if text.startswith("/") and "\n" not in text:
            name, _, rest = text[1:].partition(" ")
            if name in ("exit", "quit", "bye"):
                return False
            command = self._commands.get(name)
            if command is None:
                complain(f"there is no command /{name}; /help lists them")
            else:
                try:
                    command(rest.strip())
                except ConfigError as error:
                    complain(error.message)
        elif text.strip():
            try:
                self._ask(self._question.message(text))
            except ConfigError as error:
                complain(error.message)
                self.status = 1
        return True

    def _ask(self, message: Message) -> None:
        self._messages.append(message)
        request = self._question.request(with_results(self._messages))
        self._question.attachments = []
        self._last = answer(self._client, request, self._look, self._recorder)
        self.status = 0 if self._last.status == INTERRUPTED else self._last.status
        parts = self._last.response.choices[0].parts if self._last.response.choices else []
        if parts:
            self._messages.append(Message("assistant", parts))
        else:
            self._messages.pop()  # a question without an answer would stand before the next one
        if self._last.status > INTERRUPTED:
            raise Ended(self._last.status)

    # --- commands

    def _say(self, text: str) -> None:
        print(neutral(text), file=sys.stderr)

    def _model(self, name: str) -> None:
        self._question.model = name or self._question.model
        self._say(self._question.model or self._client.pool.routes.named("") or "none is set")

    def _system(self, text: str) -> None:
        self._question.system = text or self._question.system
        self._say(self._question.system or "there is none")

    def _attach(self, name: str) -> None:
        from .question import attached

        attached(name)  # what cannot be read is told now
        self._question.attachments.append(name)

    def _retry(self, _: str) -> None:
        while self._messages and self._messages[-1].role != "user":
            self._messages.pop()
        if not self._messages:
            raise ConfigError("nothing was asked yet")
        self._ask(self._messages.pop())

    def _reset(self, _: str) -> None:
        self._messages.clear()
        self._recorder.new_conversation()

    def _usage(self, _: str) -> None:
        response = self._last.response if self._last else None
        usage = response.usage if response else TokenCounts()
        model = response.model if response else ""
        upstream = self._client.pool.routes.find(self._question.model, lambda: 0.0)[0].upstream.name
        self._say(usage_line(usage, model, upstream))

    def _save(self, name: str) -> None:
        if not name:
            raise ConfigError("/save needs the name of a file")
        try:
            Path(name).expanduser().write_bytes(msgspec.json.format(msgspec.json.encode(self._messages)) + b"\n")
        except OSError as error:
            raise ConfigError(f"{name} cannot be written: {error.strerror or error}") from None


@stoppable()
def run(question: Question, look: Look, keeps: bool) -> int:
    at_terminal = is_terminal(sys.stdin) and is_terminal(sys.stderr)
    client = question.tools.client()
    with turn_recorder(client.pool.loaded, enabled=keeps) as recorder, client:
        chat = Chat(client, recorder, structs.replace(question), look)
        for text in _typed() if at_terminal else _given():
            if not chat.take(text):
                break
    return 0 if at_terminal else chat.status


def _given() -> Iterator[str]:
    """Lines of a file or a pipe: each is a message, unless it is fenced."""
    fenced: list[str] | None = None
    for line in sys.stdin:
        bare = line.rstrip("\n")
        if bare.strip() == FENCE:
            if fenced is not None:
                yield "\n".join(fenced)
            fenced = [] if fenced is None else None
        elif fenced is not None:
            fenced.append(bare)
        else:
            yield bare
    if fenced:
        yield "\n".join(fenced)


def _typed() -> Iterator[str]:
    """What a person types, with a history of former lines and several lines where wanted."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import create_output

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
        "> ", multiline=True, key_bindings=keys, history=history, output=create_output(stdout=sys.stderr)
    )
    print("/help lists the commands, Ctrl-D leaves", file=sys.stderr)
    while True:
        try:
            text = session.prompt()
        except Ended:
            raise
        except KeyboardInterrupt:
            continue  # it clears the line
        except EOFError:
            return
        yield text.strip().removeprefix(FENCE).removesuffix(FENCE).strip("\n") if text.strip().startswith(FENCE) else text


def _history() -> Path | None:
    """The file of former lines, for this user only; None if it cannot be had."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "streamglot"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = state / "history"
        path.touch(mode=0o600)
    except OSError:
        return None
    return path
