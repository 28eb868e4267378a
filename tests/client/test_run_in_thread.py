"""Streams in a worker thread are bounded, can be stopped from any thread, report errors as events, and never hang."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from client.scripted_upstreams import LAST, chunk_server, recording, text
from streamglot import Client, ConfigError, Event, StreamEnd, StreamError, TextDelta, Upstream, check, collect, run_in_thread
from waiting import WAIT_SECONDS, until

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_loop_that_never_waits(tmp_path: Path) -> None:
    upstream = recording(tmp_path, "song", [*text(*("la " for _ in range(30))), LAST], gap=0.005)
    with Client(upstreams=[upstream]) as client:
        running = run_in_thread(client=client, model="song", messages="sing")
        events: list[Event] = []
        while not running.finished:
            events += running.drain()
            time.sleep(0.002)
    check(events)
    assert collect(events).choices[0].text == "la " * 30
    assert list(running.drain()) == []


def test_without_a_client_of_its_own() -> None:
    running = run_in_thread(model="replay", messages="hello")
    assert collect(running).choices[0].text == "You said: hello"
    assert running.join(WAIT_SECONDS)


def test_the_queue_of_events_is_bounded() -> None:
    with chunk_server(gap=0) as server, Client(upstreams=[server.upstream()]) as client:
        running = run_in_thread(client=client, size=8, model="m", messages="talk")
        until(lambda: server.sent > 100)
        assert len(list(running.drain())) <= 8
        running.stop()
        assert running.join(WAIT_SECONDS)
        assert server.gone.wait(WAIT_SECONDS)


def test_stop_from_another_thread() -> None:
    with chunk_server() as server, Client(upstreams=[server.upstream()]) as client:
        running = run_in_thread(client=client, model="m", messages="talk")
        events: list[Event] = []
        for event in running:
            events.append(event)
            if isinstance(event, TextDelta):
                threading.Thread(target=running.stop).start()
        check(events)
        assert events[-1] == StreamEnd("cancelled")
        assert server.gone.wait(WAIT_SECONDS)
        running.stop()  # again, and nothing happens


def test_stop_while_nobody_reads() -> None:
    with chunk_server(gap=0) as server, Client(upstreams=[server.upstream()]) as client:
        running = run_in_thread(client=client, size=4, model="m", messages="talk")
        until(lambda: server.sent > 100)
        running.stop()
        assert server.gone.wait(WAIT_SECONDS)
        events = list(running)
        assert events[-1] == StreamEnd("cancelled")
        check(events)


def test_stop_before_the_answer_has_begun(tmp_path: Path) -> None:
    with Client(upstreams=[recording(tmp_path, "late", ["", *text("x")], gap=30)]) as client:
        running = run_in_thread(client=client, model="late", messages="hi")
        assert list(running.drain()) == [], "drain does not wait"
        assert not running.finished
        running.stop()
        events = list(running)
        check(events)
        assert events[-1] == StreamEnd("cancelled")


@pytest.mark.parametrize("model", ["nowhere/m", "none/such", ""])
def test_every_error_is_an_event(model: str) -> None:
    nowhere = Upstream(name="nowhere", base_url="http://127.0.0.1:9/v1", attempts=1, models=["m"])
    other = Upstream(name="other", base_url="http://127.0.0.1:9/v1", attempts=1, models=["n"])
    with Client(upstreams=[nowhere, other]) as client:
        events = list(run_in_thread(client=client, model=model, messages="hi"))
    check(events)
    assert isinstance(events[-1], StreamError)


def test_errors_of_the_request_itself_too() -> None:
    events = list(run_in_thread(model="replay", messages=[{"role": "clown", "content": "hi"}]))
    check(events)
    assert isinstance(events[-1], StreamError)
    events = list(run_in_thread(model="replay", messages="hi", temperature=object()))
    assert isinstance(events[-1], (StreamError, StreamEnd))


def test_a_client_that_is_not_open() -> None:
    with pytest.raises(ConfigError, match="must be open"):
        run_in_thread(client=Client(upstreams=[Upstream()]), messages="hi")


def test_a_stream_that_is_garbage_collected_stops() -> None:
    with chunk_server() as server, Client(upstreams=[server.upstream()]) as client:
        running = run_in_thread(client=client, model="m", messages="talk")
        assert running.get(WAIT_SECONDS) is not None
        del running
        gc.collect()
        assert server.gone.wait(WAIT_SECONDS)


def test_a_client_that_closes_ends_its_streams() -> None:
    with chunk_server() as server:
        with Client(upstreams=[server.upstream()]) as client:
            running = run_in_thread(client=client, model="m", messages="talk")
            assert running.get(WAIT_SECONDS) is not None
        assert server.gone.wait(WAIT_SECONDS)
        last = None
        while (event := running.get(WAIT_SECONDS)) is not None:
            last = event
        assert isinstance(last, (StreamEnd, StreamError))


def test_a_program_that_leaves_does_not_wait_for_it() -> None:
    code = "import streamglot; streamglot.run_in_thread(model='replay', messages='word ' * 100_000).get(5); print('left')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=WAIT_SECONDS, check=True)
    assert done.stdout == b"left\n"


def test_the_example() -> None:
    command = [sys.executable, str(EXAMPLES / "plain_loop.py"), "--model", "replay", "hello", "there"]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_SECONDS, check=False, text=True)
    assert done.returncode == 0, done.stderr
    assert "You said: hello there" in done.stdout
