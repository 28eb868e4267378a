"""Clients that resume a stream and wait for its first event, its next event or its end."""

from __future__ import annotations

import asyncio
import json
import threading
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.archived import store_of, with_store
from gateway.dialect_clients import body_of, path_of
from gateway.raw import RawClient
from gateway.running import Running
from gateway.stored_turns import keeping, kept, text_script
from gateway.upstream import HostileUpstream, Until, whole
from store.turns import ask, begin, user
from streamglot.events import StreamError
from streamglot.gateway.api.streams import encoded_error
from streamglot.gateway.resumable import EVENT_IDS
from streamglot.store import DatabaseBuffer, Store
from waiting import WAIT_SECONDS, soon, until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kept.db"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A model of the test's own: the upstream is shared, and remembers."""
    return f"waiting-{zlib.crc32(request.node.name.encode())}"


def get(gateway: Running, path: str) -> RawClient:
    client = RawClient(gateway.port)
    client.send(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    return client


def begun(gateway: Running, kind: str, name: str) -> tuple[str, int]:
    """A stream that goes on without its client, and how many of its events came so far."""
    client = RawClient(gateway.port)
    client.post(path_of(kind, f"work/{name}"), {**body_of(kind, f"work/{name}"), "keep": True})
    came = client.read_until(b"first")
    stream = came.split(b"x-streamglot-stream: ")[1].split(b"\r\n")[0].decode()
    buffer = store_of(gateway).buffer
    assert isinstance(buffer, DatabaseBuffer)
    client.hang_up()
    return f"/v1/streams/{stream}", buffer._live[stream].last


@pytest.mark.parametrize("kind", ["openai_chat", "anthropic", "ollama"])
def test_a_waiting_reader_gets_the_headers_at_once(upstream: HostileUpstream, url: str, name: str, kind: str) -> None:
    upstream.scripts[name] = text_script("first", Until(go_on := threading.Event()), " second")
    with keeping(upstream, url) as gateway:
        stream, events = begun(gateway, kind, name)
        reader = get(gateway, f"{stream}?after={events}")
        head = reader.read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        go_on.set()
        assert b"second" in reader.read_all()


@pytest.mark.parametrize("kind", ["openai_chat", "anthropic", "vercel_ui"])
def test_a_waiting_reader_gets_keep_alives(upstream: HostileUpstream, url: str, name: str, kind: str) -> None:
    """Keep-alives are comments, which do not count as events."""
    upstream.scripts[name] = text_script("first", Until(go_on := threading.Event()), " second")
    with keeping(upstream, url, server={"keep_alive_seconds": 0.2}) as gateway:
        stream, events = begun(gateway, kind, name)
        reader = get(gateway, f"{stream}?after={events}")
        came = reader.read_until(b": ping\n\n") + reader.read_until(b": ping\n\n")
        go_on.set()
        came += reader.read_all()
        kept(url)
        numbering = EVENT_IDS["text/event-stream"]
        assert b"second" in came
        assert numbering.count(came) == numbering.count(gateway.ask(stream).body) - events


@pytest.mark.parametrize("waits", [False, True], ids=["before the headers", "after them"])
def test_reading_stops_when_a_waiting_reader_hangs_up(upstream: HostileUpstream, url: str, name: str, waits: bool) -> None:
    upstream.scripts[name] = text_script("first", Until(go_on := threading.Event()))
    with keeping(upstream, url) as gateway:
        stream, events = begun(gateway, "openai_chat", name)
        buffer: Any = store_of(gateway).buffer
        read, reading = buffer.read, []

        async def noted(*asked: Any) -> AsyncIterator[Any]:
            reading.append(asked)
            try:
                async for chunk in read(*asked):
                    yield chunk
            finally:
                reading.remove(asked)

        buffer.read = noted
        reader = get(gateway, f"{stream}?after={events}")
        until(lambda: reading)
        if waits:
            reader.read_until(b"\r\n\r\n")
        reader.hang_up()
        until(lambda: not reading)
        go_on.set()


@pytest.mark.parametrize("fails", [False, True])
def test_a_page_that_is_loaded_again_before_the_first_word(upstream: HostileUpstream, url: str, name: str, fails: bool) -> None:
    """The first reader may still wait: it gets as a status what the other one gets as an event."""
    go_on = threading.Event()
    answer = whole({"error": {"message": "not today"}}, status=400) if fails else text_script("first")
    upstream.scripts[name] = [Until(go_on), *answer]
    with keeping(upstream, url) as gateway:
        client = RawClient(gateway.port)
        client.post("/ui?keep=true", {**body_of("vercel_ui", f"work/{name}"), "id": "chat-8"})
        upstream.wait_for(name)
        kept(url, lambda found: found)
        page = get(gateway, "/ui/chat-8/stream")
        assert page.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        if not fails:
            client.hang_up()
        go_on.set()
        came = page.read_all()
        if fails:
            assert client.read_until(b"not today").startswith(b"HTTP/1.1 400")
            assert b'"errorText":' in came
            assert b"not today" in came
        else:
            assert b"first" in came
            assert b"[DONE]" in came


def test_a_reloaded_page_has_no_stream_to_resume_if_its_answer_was_not_kept(
    upstream: HostileUpstream, url: str, name: str
) -> None:
    upstream.scripts[name] = [Until(threading.Event())]
    with keeping(upstream, url) as gateway:
        client = RawClient(gateway.port)
        client.post("/ui", {**body_of("vercel_ui", f"work/{name}"), "id": "chat-9"})
        upstream.wait_for(name)
        kept(url, lambda found: found)
        assert gateway.ask("/ui/chat-9/stream").status == 204
        client.hang_up()


def test_a_stop_of_a_stream_that_is_not_kept_whole(upstream: HostileUpstream, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in another process, which takes its time to end it."""
    monkeypatch.setattr("streamglot.gateway.api.streams.ENDED_SECONDS", WAIT_SECONDS)
    with keeping(upstream, url) as gateway:

        async def elsewhere(store: Store) -> Any:
            buffer = DatabaseBuffer(store.database, store.writer, bytes=1000)
            turn = await begin(store, ask(user("q")))
            asked = asyncio.Event()
            buffer.open(turn.id, "", asked.set, lambda: None)
            for number in range(1, 21):
                buffer.append(turn.id, number, number, b"x" * 200)
            await store.writer.flush()
            stopping = asyncio.create_task(asyncio.to_thread(gateway.ask, f"/v1/streams/{turn.id}/stop", {}))
            await soon(asked.is_set)
            buffer.append(turn.id, 21, 21, b"the end")
            buffer.end(turn.id)
            await buffer.close()
            return (await stopping).json()

        stopping = with_store(url, elsewhere)
        assert (stopping["ended"], stopping["events"]) == (True, 21)


def test_a_stream_without_events_ends_with_an_error() -> None:
    error = StreamError("stream_lost", "it is lost", "gateway", True, 502)
    (stopping,) = json.loads(encoded_error("gemini", "application/json", "", 0, error))
    assert "it is lost" in stopping["error"]["message"]
