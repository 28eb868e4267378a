"""Background tasks survive their own faults and log them."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from collections.abc import Mapping
from typing import Any

import pytest

from streamglot import tasks
from streamglot.tasks import REPEAT_SECONDS, TaskSupervisor, patient_timeout
from waiting import soon

Lines = list[Mapping[str, Any]]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_PAUSE", 0.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_work_that_fails_starts_again_until_it_returns() -> None:
    lines: Lines = []
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise ValueError(f"fault {runs}")

    async def within() -> None:
        supervisor = TaskSupervisor(lines.append)
        task = supervisor.start("clock", work)
        assert supervisor.running == ["clock"]
        await task
        assert supervisor.running == []

    asyncio.run(within())
    assert runs == 4
    assert [(line["event"], line["task"], line["message"]) for line in lines] == [("task_failed", "clock", "ValueError: fault 1")]
    assert any("test_tasks.py" in frame and frame.endswith(" work") for frame in lines[0]["trace"])


@pytest.mark.filterwarnings("error")
def test_work_that_is_cancelled_before_its_first_step_leaves_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        raise AssertionError("it must not begin")

    async def within() -> None:
        supervisor = TaskSupervisor()
        spawned = supervisor.spawn("once", work())
        await supervisor.close()
        assert spawned.cancelled()
        del spawned
        gc.collect()

    asyncio.run(within())
    assert "never awaited" not in capsys.readouterr().err


def test_a_cancelled_part_does_not_end_the_work() -> None:
    """The work waits for something that another task cancels; the work itself was not cancelled."""
    lines: Lines = []
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            part = asyncio.ensure_future(asyncio.sleep(3600))
            asyncio.get_running_loop().call_soon(part.cancel)
            await part

    asyncio.run(_until_done(TaskSupervisor(lines.append), work))
    assert runs == 2
    assert lines[0]["message"].startswith("CancelledError")


async def _until_done(supervisor: TaskSupervisor, work: Any) -> None:
    await supervisor.start("part", work)


def test_a_cancelled_task_ends_and_close_waits_for_it() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("forever")

    async def within() -> None:
        supervisor = TaskSupervisor()
        task = supervisor.start("forever", forever)
        spawned = supervisor.spawn("once", forever())
        await asyncio.sleep(0)
        await supervisor.close()
        assert task.cancelled()
        assert spawned.cancelled()
        assert supervisor.running == []

    asyncio.run(within())
    assert ended == ["forever", "forever"]


def test_the_same_fault_is_logged_once_in_a_while_with_a_count() -> None:
    lines: Lines = []
    clock = Clock()
    supervisor = TaskSupervisor(lines.append, clock)

    def step(_: object) -> None:
        raise KeyError("x")

    for _ in range(5):
        supervisor.attempt("metrics", step, 1)
    assert [line["times"] for line in lines] == [1]
    clock.now = REPEAT_SECONDS
    supervisor.attempt("metrics", step, 1)
    supervisor.attempt("memory", step, 1)
    assert [(line["task"], line["times"]) for line in lines] == [("metrics", 1), ("metrics", 5), ("memory", 1)]


def test_a_step_that_fails_does_not_prevent_the_next() -> None:
    taken: list[int] = []
    supervisor = TaskSupervisor(lambda line: None)
    supervisor.attempt("one", [].pop)
    supervisor.attempt("two", taken.append, 2)
    assert taken == [2]


def test_a_log_that_cannot_be_written_does_not_end_the_task() -> None:
    def write(_: Mapping[str, Any]) -> None:
        raise BrokenPipeError

    async def failing() -> None:
        raise ValueError

    async def within() -> None:
        await TaskSupervisor(write).spawn("once", failing())

    asyncio.run(within())


def test_the_pause_grows_and_a_long_life_resets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_PAUSE", 1.0)
    pauses: list[float] = []
    clock = Clock()

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    lives = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, tasks.LONGEST_PAUSE + 1]

    async def work() -> None:
        if lives:
            clock.now += lives.pop(0)
            raise ValueError

    asyncio.run(_until_done(TaskSupervisor(lambda line: None, clock, noted), work))
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 1.0]


def test_without_a_log_of_its_own_the_standard_one_is_used(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "streamglot"):
        TaskSupervisor().attempt("sweep", [].pop)
    assert '"task":"sweep"' in caplog.text


def test_tasks_are_named_for_debugging() -> None:
    async def within() -> None:
        event = asyncio.Event()
        supervisor = TaskSupervisor()
        supervisor.start("named", event.wait)
        assert "named" in {task.get_name() for task in asyncio.all_tasks()}
        event.set()
        await soon(lambda: not supervisor.running)

    asyncio.run(within())


def test_a_wait_for_an_event_ends_with_the_event_or_with_the_time() -> None:
    async def waits() -> tuple[bool, bool]:
        event = asyncio.Event()
        late = await tasks.within(event, 0.0)
        event.set()
        return late, await tasks.within(event, 60.0)

    assert asyncio.run(waits()) == (False, True)


# --- timeouts


def test_what_arrives_while_the_process_stands_still_is_in_time() -> None:
    """The timer and the data are due in the same turn of the event loop."""

    async def receive() -> bytes:
        loop = asyncio.get_running_loop()
        one, other = socket.socketpair()
        with one, other:
            one.setblocking(False)

            def stand_still() -> None:
                other.send(b"x")
                time.sleep(0.2)

            async with patient_timeout(0.1):
                loop.call_soon(stand_still)
                return await loop.sock_recv(one, 1)

    assert asyncio.run(receive()) == b"x"


def test_a_patient_timeout_ends_a_wait_without_end() -> None:
    async def wait() -> None:
        async with patient_timeout(0.01):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
