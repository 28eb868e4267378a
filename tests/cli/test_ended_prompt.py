"""Signals that come while the prompt of a chat is shown."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

import pytest
from prompt_toolkit.application import create_app_session, get_app
from prompt_toolkit.input import PipeInput, create_pipe_input

from streamglot.cli.commands.chat import typed_messages
from streamglot.cli.exit_status import Ended, stoppable


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    """What is typed. Before and afterwards the signals end this process, also one that was started to ignore them (``nohup``)."""
    signals = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_DFL) for number in signals]
    with create_pipe_input() as typed, create_app_session(input=typed):
        yield typed
    for number, handler in zip(signals, before, strict=True):
        signal.signal(number, handler)


def no_words(_: str) -> Sequence[str]:
    return []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_inside_a_task_of_the_prompt_ends_it_silently(
    keys: PipeInput, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    async def background() -> None:
        os.kill(os.getpid(), number)

    def complete(_: str) -> Sequence[str]:
        get_app().create_background_task(background())
        return []

    keys.send_text("/x\t")
    with stoppable(), pytest.raises(Ended) as ended:
        next(typed_messages(lambda: "m", complete))
    assert ended.value.status == 128 + number
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_around_a_prompt_is_not_lost(keys: PipeInput, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Before its event loop runs, and after the user has ended the line."""
    from prompt_toolkit import PromptSession

    prompt = PromptSession.prompt

    def signalled(session: PromptSession[str], *given: object, **more: object) -> str:
        if when == "before":
            os.kill(os.getpid(), signal.SIGTERM)
        text: str = prompt(session, *given, **more)  # type: ignore[arg-type]  # passed on as they are
        os.kill(os.getpid(), signal.SIGTERM)
        return text

    monkeypatch.setattr(PromptSession, "prompt", signalled)
    if when == "after":
        keys.send_text("hi\r")
    with stoppable(), pytest.raises(Ended):
        next(typed_messages(lambda: "m", no_words))
