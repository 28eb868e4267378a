"""Resumable streams: interrupted anywhere, read live or after the end, from another process, on each kind of buffer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from valkey.exceptions import TimeoutError as NoAnswer

from store.servers import started_valkey
from store.tables import add
from store.turns import ask, asynchronous, begin, user
from streamglot.counters import valkey
from streamglot.errors import StreamglotError
from streamglot.store import DatabaseBuffer, Finished, Store, StoreSettings, StreamBuffer, ValkeyBuffer
from streamglot.store.database import StoreUnavailable
from streamglot.store.processes import is_alive
from streamglot.store.streams import database as buffers
from streamglot.store.streams.valkey import KEYS, PREFIX
from streamglot.store.turns import mint_id
from waiting import WAIT_SECONDS, soon

pytestmark = pytest.mark.usefixtures("patient_writers")

KEPT_SECONDS = 600.0
"""Seconds for which a stream is kept: longer than a test takes."""


def nothing() -> None:
    """A callback that does nothing."""


@asynccontextmanager
async def two_sides(
    kind: str, request: pytest.FixtureRequest, **options: Any
) -> AsyncIterator[tuple[StreamBuffer, StreamBuffer]]:
    """The producer's buffer, and the buffer of another worker."""
    if kind == "valkey":
        address = request.getfixturevalue("valkey_url")
        one, two = ValkeyBuffer(address, **options), ValkeyBuffer(address, **options)
        try:
            yield one, two
        finally:
            await one.close()
            await two.close()
        return
    stores = [await Store.open(StoreSettings(url=kind)) for _ in range(2)]
    try:
        yield tuple(DatabaseBuffer(store.database, store.writer, **options) for store in stores)  # type: ignore[misc]  # two buffers
    finally:
        for store in stores:
            await store.close()


@pytest.fixture(params=["sqlite", "postgresql", "valkey"])
def kind(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if request.param == "valkey":
        request.getfixturevalue("valkey_url")
        return "valkey"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/s.db"
    return str(asyncio.run(request.getfixturevalue("postgres").database()))


async def gathered(buffer: StreamBuffer, stream_id: str, after: int = 0, caller: str | None = None) -> list[bytes]:
    found: list[bytes] = []
    async for chunk in buffer.read(stream_id, after, caller):
        after += 1
        assert (chunk.first, chunk.last) == (after, after)
        found.append(chunk.data)
    return found


async def there(buffer: StreamBuffer, stream_id: str) -> None:
    """Waits until the stream is visible on this side."""
    while True:
        try:
            await buffer.head(stream_id)
        except StreamglotError:
            await asyncio.sleep(0.05)
        else:
            return


def name() -> str:
    """A new id. Readers wait for its stream, because the stream may be on its way."""
    return mint_id("stream_", time.time())


@asynchronous
async def test_a_stream_is_continued_from_any_number(kind: str, request: pytest.FixtureRequest) -> None:
    """Readers on both sides start at random numbers, some while the stream runs and some after its end."""
    source = random.Random(1)
    chunks = [source.randbytes(source.randint(0, 200)) for _ in range(300)]
    async with two_sides(kind, request) as (one, two):
        ident = name()
        one.open(ident, "me", nothing, nothing)
        readers = []
        for number, data in enumerate(chunks, 1):
            one.append(ident, number, number, data)
            if number % 10 == 0:
                await asyncio.sleep(0.02)
                if number > 20:
                    side, after = source.choice((one, two)), source.randint(0, number)
                    readers.append((after, asyncio.create_task(gathered(side, ident, after, "me"))))
                    await asyncio.sleep(0)
            if number == 20:
                await there(two, ident)
        one.end(ident)
        for after, reader in readers:
            assert await reader == chunks[after:]
        for after in [0, 299, 300, *(source.randint(0, 300) for _ in range(200))]:
            assert await gathered(source.choice((one, two)), ident, after) == chunks[after:]


@asynchronous
async def test_a_chunk_of_several_events_is_delivered_whole(kind: str, request: pytest.FixtureRequest) -> None:
    """A reader whose number is inside a chunk gets the whole chunk, because the buffer does not know where events end."""
    async with two_sides(kind, request) as (one, two):
        ident = name()
        one.open(ident, "me", nothing, nothing, "the head")
        written = [(1, 3, b"abc"), (4, 4, b"d"), (5, 9, b"efghi")]
        for first, last, data in written:
            one.append(ident, first, last, data)
        one.end(ident)
        for side in (one, two):
            assert await side.head(ident, "me") == "the head"
            with pytest.raises(StreamglotError):
                await side.head(ident, "you")
            for after in range(10):
                found = [(chunk.first, chunk.last, chunk.data) async for chunk in side.read(ident, after, "me")]
                assert found == [chunk for chunk in written if chunk[1] > after]


@asynchronous
async def test_other_callers_see_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    async with two_sides(kind, request) as (one, two):
        ident = name()
        one.open(ident, "me", nothing, nothing)
        one.append(ident, 1, 1, b"x")
        one.end(ident)
        assert await gathered(one, ident, 0, "me") == [b"x"]
        for stream, caller in ((ident, "you"), ("none", None), ("none", "me")):
            with pytest.raises(StreamglotError) as refused:
                await gathered(two, stream, 0, caller)
            assert (refused.value.code, refused.value.status) == ("stream_not_found", 404)
            assert not await two.stop(stream, caller)
        assert await gathered(two, ident, 0, "me") == [b"x"]


@asynchronous
async def test_a_stop_reaches_the_producer(kind: str, request: pytest.FixtureRequest) -> None:
    async with two_sides(kind, request) as (one, two):
        here, stopped_elsewhere = asyncio.Event(), asyncio.Event()
        first, second = name(), name()
        one.open(first, "me", here.set, nothing)
        one.open(second, "me", stopped_elsewhere.set, nothing)
        assert await one.stop(first, "me")
        assert here.is_set()
        await there(two, second)
        assert await two.stop(second, "me")
        await stopped_elsewhere.wait()


@asynchronous
async def test_a_stream_that_is_read_while_it_runs_is_written_more_often(url: str, request: pytest.FixtureRequest) -> None:
    async with two_sides(url, request) as (one, two):
        for side in (one, two):
            ident = name()
            asked_for = asyncio.Event()
            one.open(ident, "me", nothing, asked_for.set)
            one.append(ident, 1, 1, b"x")
            assert not one.has_reader(ident)
            reader = asyncio.create_task(gathered(side, ident))
            await asked_for.wait()
            assert one.has_reader(ident)
            one.append(ident, 2, 2, b"y")
            one.end(ident)
            assert await reader == [b"x", b"y"]


@asynchronous
async def test_chunks_of_an_older_version_can_be_read(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    ident = name()
    row = {"id": ident, "caller": "", "started": 0.0, "seen": time.time(), "last": 2, "stopped": False, "head": ""}
    body = msgspec.msgpack.encode([(1, b"a"), (2, b"b")])
    await add(store.database, "streams", row)
    await add(store.database, "chunks", {"stream_id": ident, "number": 1, "last": 2, "body": body})
    assert await gathered(store.buffer, ident) == [b"a", b"b"]
    assert await gathered(store.buffer, ident, 1) == [b"b"]
    await store.close()


@asynchronous
async def test_old_chunks_are_trimmed(kind: str, request: pytest.FixtureRequest) -> None:
    async with two_sides(kind, request, bytes=10_000) as (one, two):
        ident = name()
        one.open(ident, "", nothing, nothing)
        for number in range(1, 101):
            one.append(ident, number, number, b"x" * 1000)
            if number % 5 == 0:
                await asyncio.sleep(0.15 if number % 25 == 0 else 0)
        one.end(ident)
        await there(two, ident)
        assert len(await gathered(two, ident, 98)) == 2
        with pytest.raises(StreamglotError) as refused:
            await gathered(two, ident)
        assert (refused.value.code, refused.value.status) == ("stream_incomplete", 410)
        with pytest.raises(StreamglotError) as refused:
            await gathered(two, ident, 200)
        assert (refused.value.code, refused.value.status) == ("no_such_event", 400)
        assert refused.value.detail == {"events": 100}


@asynchronous
async def test_a_producer_that_died_is_noticed(kind: str, request: pytest.FixtureRequest) -> None:
    async with two_sides(kind, request, lost=1.0) as (one, two):
        ident = name()
        one.open(ident, "", nothing, nothing)
        one.append(ident, 1, 1, b"x")
        await there(two, ident)
        kill(one)
        found: list[bytes] = []
        code = ""
        try:
            async for chunk in two.read(ident):
                found.append(chunk.data)
        except StreamglotError as error:
            code = error.code
        assert (found, code) == ([b"x"], "stream_lost")


@asynchronous
async def test_a_reader_does_not_wait_for_a_producer_whose_turn_another_process_ended(url: str) -> None:
    """The process that found it dead wrote the ending; chunks that were written before can still be read."""
    store = await Store.open(StoreSettings(url=url))
    buffer = DatabaseBuffer(store.database, store.writer, lost=3600.0)
    ident = name()
    buffer.open(ident, "", nothing, nothing)
    buffer.append(ident, 1, 1, b"x")
    await store.writer.flush()
    kill(buffer)
    reader = aiter(buffer.read(ident))
    assert (await anext(reader)).data == b"x"
    await add(store.database, "endings", {"turn_id": ident, "ended": 1.0, "ending": "interrupted"})
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(StreamglotError) as refused:
            await anext(reader)
    assert refused.value.code == "stream_lost"
    await store.close()


@asynchronous
async def test_a_reader_continues_after_an_outage_of_the_database(url: str, request: pytest.FixtureRequest) -> None:
    async with two_sides(url, request, lost=WAIT_SECONDS) as (one, two):
        ident = name()
        one.open(ident, "", nothing, nothing)
        one.append(ident, 1, 1, b"x")
        await there(two, ident)
        found: list[bytes] = []

        async def read() -> None:
            async for chunk in two.read(ident):
                found.append(chunk.data)

        reader = asyncio.create_task(read())
        await soon(lambda: found)
        database = two._database  # type: ignore[attr-defined]  # the buffer of a database
        fetch, refused = database.fetch, []

        async def away(*_: Any, **_named: Any) -> Any:
            refused.append(True)
            raise StoreUnavailable("not now")

        database.fetch = away
        await soon(lambda: len(refused) > 2)
        database.fetch = fetch
        one.append(ident, 2, 2, b"y")
        one.end(ident)
        await reader
        assert found == [b"x", b"y"]


@asynchronous
async def test_a_database_that_stays_away_is_reported(url: str, request: pytest.FixtureRequest) -> None:
    async with two_sides(url, request, lost=0.5) as (one, two):
        ident = name()
        one.open(ident, "", nothing, nothing)
        one.append(ident, 1, 1, b"x")
        await there(two, ident)
        reader = aiter(two.read(ident))
        await anext(reader)
        database = two._database  # type: ignore[attr-defined]  # the buffer of a database
        fetch = database.fetch

        async def away(*_: Any, **_named: Any) -> Any:
            raise StoreUnavailable("not now")

        database.fetch = away
        with pytest.raises(StoreUnavailable):
            await anext(reader)
        database.fetch = fetch


@asynchronous
async def test_only_streams_of_dead_processes_are_lost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot send heartbeats because the database accepts nothing may still be alive."""
    asked: list[bool] = []

    def noted(row: Any, now: float) -> bool:
        asked.append(is_alive(row, now))
        return asked[-1]

    monkeypatch.setattr(buffers, "is_alive", noted)
    stores = [await Store.open(StoreSettings(url=url)) for _ in range(2)]
    one, two = (DatabaseBuffer(store.database, store.writer, lost=0.2) for store in stores)
    turn = await begin(stores[0], ask(user("q")))
    one.open(turn.id, "", nothing, nothing)
    one.append(turn.id, 1, 1, b"x")
    await stores[0].writer.flush()
    silenced = dict(one._live)
    kill(one)
    reader = asyncio.create_task(gathered(two, turn.id))
    await soon(lambda: len(asked) > 2)
    assert all(asked)
    one._live.update(silenced)
    one.append(turn.id, 2, 2, b"y")
    await stores[0].writer.flush()
    kill(one)
    await stores[0].database.execute("UPDATE processes SET born = 'never' WHERE id = :id", id=stores[0].process.id)
    with pytest.raises(StreamglotError) as refused:
        await reader
    assert refused.value.code == "stream_lost"
    assert [chunk.data async for chunk in beginning(two, turn.id, 2)] == [b"x", b"y"]
    for store in stores:
        await store.close()


async def beginning(buffer: StreamBuffer, stream_id: str, count: int) -> AsyncIterator[Any]:
    async for chunk in buffer.read(stream_id):
        yield chunk
        count -= 1
        if not count:
            return


@asynchronous
async def test_a_reader_in_the_producing_process_is_woken(
    url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "WANTED_SECONDS", 3600.0)
    async with two_sides(url, request) as (one, _):
        ident = name()
        one.open(ident, "", nothing, nothing)
        live = one._live[ident]  # type: ignore[attr-defined]  # the buffer of a database
        readers = [asyncio.create_task(gathered(one, ident)) for _ in range(3)]
        for number in (1, 2):
            await soon(lambda: len(live.changed._waiters) == len(readers))
            one.append(ident, number, number, b"%d" % number)
        await soon(lambda: len(live.changed._waiters) == len(readers))
        one.end(ident)
        assert await asyncio.gather(*readers) == [[b"1", b"2"]] * len(readers)


@asynchronous
async def test_a_new_stream_of_another_process_is_awaited(kind: str, request: pytest.FixtureRequest) -> None:
    """Its process or the database is so busy that the stream appears after the usual wait."""
    async with two_sides(kind, request, lost=WAIT_SECONDS) as (one, two):
        ident = name()
        heads = [asyncio.create_task(two.head(ident, caller)) for caller in ("me", "you")]
        reader = asyncio.create_task(gathered(two, ident, 0, "me"))
        with pytest.raises(StreamglotError):
            await two.head("none")  # longer than for an id that is not new
        with pytest.raises(StreamglotError):
            await two.head(ident, wait=False)
        one.open(ident, "me", nothing, nothing, "the head")
        one.append(ident, 1, 1, b"x")
        one.end(ident)
        mine, foreign = await asyncio.gather(*heads, return_exceptions=True)
        assert mine == "the head"
        assert isinstance(foreign, StreamglotError)
        assert await reader == [b"x"]


@asynchronous
async def test_a_turn_that_ended_without_a_stream_is_not_waited_for(url: str, request: pytest.FixtureRequest) -> None:
    async with two_sides(url, request, lost=3600.0) as (_, two):
        store = await Store.open(StoreSettings(url=url))
        turn = await begin(store, ask(user("q")))
        turn.finish(Finished(ending="end"))
        await store.writer.flush()
        with pytest.raises(StreamglotError) as refused:
            await two.head(turn.id)
        assert refused.value.status == 404
        await store.close()


@asynchronous
async def test_a_stream_of_this_process_is_awaited_however_late_its_row_is(
    url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "opened_until", lambda *_: 0.0)
    async with two_sides(url, request) as (one, two):
        ident = name()
        status = one._status  # type: ignore[attr-defined]  # the buffer of a database
        looks = 0

        async def late(*arguments: Any) -> Any:
            nonlocal looks
            looks += 1
            return None if looks < 4 else await status(*arguments)

        one.open(ident, "anna", nothing, nothing)
        await one._writer.flush()  # type: ignore[attr-defined]  # the buffer of a database
        monkeypatch.setattr(one, "_status", late)
        reader = asyncio.create_task(gathered(one, ident, caller="anna"))
        await soon(lambda: looks > 4)
        one.append(ident, 1, 1, b"x")
        one.end(ident)
        assert await reader == [b"x"]
        with pytest.raises(StreamglotError, match="no stream"):
            await gathered(two, "none")


@asynchronous
async def test_no_step_of_a_claim_shows_the_end_of_an_earlier_stream(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier one ended without events, as that of a gateway that stops. A process that follows it must wait, not find its end."""
    from valkey.asyncio.connection import Connection

    one, two = ValkeyBuffer(valkey_url), ValkeyBuffer(valkey_url)
    ident, looks = name(), 0
    key = f"{PREFIX}{ident}"
    one.open(ident, "anna", nothing, nothing, "earlier")
    one.end(ident)
    await soon(lambda: not one.report().queued)
    send = Connection.send_packed_command

    async def looked_at(connection: Connection, *given: Any, **more: Any) -> None:
        """Before each command of the first client, the other one looks."""
        nonlocal looks
        if connection in one._client.connection_pool._in_use_connections:
            looks += 1
            alive = await two._client.exists(f"{key}:live")
            assert not (alive and await two._last(key) is not None)
            assert not alive or await two._client.get(f"{key}:head") == b"later"
        await send(connection, *given, **more)

    await one.head(ident)  # it is connected
    monkeypatch.setattr(Connection, "send_packed_command", looked_at)
    assert await one.claim(ident, "anna", "later")
    assert await one.head(ident) == "later"
    assert looks > 1
    assert not await two.claim(ident, "anna", "later")
    monkeypatch.undo()
    for buffer in (one, two):
        await buffer.close()


def kill(buffer: Any) -> None:
    """Stops the heartbeats, as if the process were gone."""
    buffer._live.clear()


@asynchronous
async def test_old_streams_are_forgotten(kind: str, request: pytest.FixtureRequest) -> None:
    async with two_sides(kind, request, keep=KEPT_SECONDS) as (one, two):
        ident = f"old_{random.getrandbits(64):x}"
        one.open(ident, "", nothing, nothing)
        one.append(ident, 1, 1, b"x")
        one.end(ident)
        await there(two, ident)
        await two.expire()
        assert await gathered(two, ident) == [b"x"]
        await time_passed(two, ident)
        with pytest.raises(StreamglotError) as refused:
            await gathered(two, ident)
        assert refused.value.status == 404


async def time_passed(buffer: StreamBuffer, stream_id: str) -> None:
    """Lets the time for which a stream is kept be over. The server of Valkey counts it itself."""
    if isinstance(buffer, DatabaseBuffer):
        await DatabaseBuffer(buffer._database, buffer._writer, keep=0.0).expire()
        return
    assert isinstance(buffer, ValkeyBuffer)
    for key in (f"{PREFIX}{stream_id}{suffix}" for suffix in KEYS):
        while (left := await buffer._client.ttl(key)) < 0:  # its expiry is set by the last commands of the producer
            await asyncio.sleep(0.01)
        assert 0 < left <= KEPT_SECONDS
        await buffer._client.expire(key, 0)


@pytest.mark.usefixtures("valkey_url")
@asynchronous
async def test_a_valkey_server_that_did_not_answer_gets_the_chunks_later() -> None:
    """Chunks wait for the server; those that do not fit are counted, and all of it is logged."""
    server = started_valkey()
    port = server.port
    logged: list[Any] = []
    buffer = ValkeyBuffer(server.connection_url, queue=10_000, log=logged.append)
    ident = name()
    buffer.open(ident, "", nothing, nothing)
    buffer.append(ident, 1, 1, b"x")
    await soon(lambda: not buffer.report().queued)
    await asyncio.to_thread(server.stop)
    for number in range(2, 5):
        buffer.append(ident, number, number, b"y")
    with pytest.raises(StreamglotError) as refused:
        await gathered(buffer, ident)
    assert refused.value.code == "store_unavailable"
    with pytest.raises(StreamglotError):
        await buffer.stop("other")
    await soon(lambda: buffer.report().failing)
    again = started_valkey(port)
    await soon(lambda: not buffer.report().queued)
    assert not buffer.report().failing
    assert [line["event"] for line in logged] == ["store_failing", "store_back"]
    buffer.open(ident, "", nothing, nothing)
    buffer.append(ident, 5, 5, b"z")
    buffer.append(ident, 6, 6, b"z" * 10_000)
    assert buffer.report().dropped == {"chunks": 1}
    buffer.end(ident)
    found = []
    code = ""
    try:
        async for chunk in buffer.read(ident, 1):
            found.append(chunk.data)
    except StreamglotError as error:
        code = error.code
    assert (found, code) == ([b"y", b"y", b"y", b"z"], "stream_incomplete")
    await buffer.close()
    await asyncio.to_thread(again.stop)


def test_a_stream_whose_stop_fails_keeps_no_other_from_being_stopped(kind: str, request: pytest.FixtureRequest) -> None:
    """The task that looks for stop requests continues after a fault."""

    def fail() -> None:
        raise ZeroDivisionError("a fault")

    async def drive() -> None:
        async with two_sides(kind, request) as (one, two):
            stopped: list[str] = []
            ids = [f"turn_{time.time_ns()}_{number}" for number in range(2)]
            one.open(ids[0], "", fail, nothing)
            one.open(ids[1], "", lambda: stopped.append(ids[1]), nothing)
            for stream_id in ids:
                await there(two, stream_id)
                assert await two.stop(stream_id)
            await soon(lambda: stopped == [ids[1]])
            for stream_id in ids:
                one.end(stream_id)

    asynchronous(drive)()


# --- a process that stands still


@asynchronous
async def test_a_connection_to_valkey_that_took_too_long_is_tried_again(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, tries = asyncio.open_connection, 0

    async def slow_once(*arguments: Any, **options: Any) -> Any:  # as asyncio gives and takes them
        nonlocal tries
        tries += 1
        if tries == 1:
            raise TimeoutError
        return await connect(*arguments, **options)

    monkeypatch.setattr(asyncio, "open_connection", slow_once)
    client, _ = valkey.connect(valkey_url)
    try:
        assert await client.ping()
        assert tries == 2
    finally:
        await client.aclose()


@asynchronous
async def test_a_reader_asks_valkey_again_for_an_answer_that_it_could_not_read_in_time(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = ValkeyBuffer(valkey_url)
    try:
        ident = name()
        buffer.open(ident, "me", nothing, nothing)
        buffer.append(ident, 1, 1, b"one")
        read, tries = buffer._client.xread, 0

        async def slow_once(*arguments: Any, **options: Any) -> Any:  # as the client gives and takes them
            nonlocal tries
            tries += 1
            if tries == 1:
                raise NoAnswer
            return await read(*arguments, **options)

        monkeypatch.setattr(buffer._client, "xread", slow_once)
        async for chunk in buffer.read(ident):
            assert chunk.data == b"one"
            break
        assert tries == 2
    finally:
        await buffer.close()
