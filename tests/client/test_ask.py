"""``Client.ask`` and the answers of streams: awaited in an asynchronous program, plain in a plain one, wherever programs run."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest

import streamglot
from client.scripted_upstreams import LAST, chunk_server, recording, text
from response_server import serve_response
from streamglot import (
    Client,
    ConfigError,
    PlainClient,
    PlainStream,
    Stream,
    StreamglotError,
    Upstream,
    UpstreamRefused,
    UpstreamTruncated,
    collect,
    run_in_thread,
    write,
)
from vocabulary import *
from waiting import WAIT_SECONDS


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return recording(tmp_path, "song", [*text("la ", "la"), LAST])


async def asked(upstream: Upstream) -> Response:
    async with Client(upstreams=[upstream]) as client:
        return await client.ask("sing", model="song")


# --- ask


def test_a_plain_program_asks(upstream: Upstream) -> None:
    with Client(upstreams=[upstream]) as client:
        assert isinstance(client, PlainClient)
        assert isinstance(client, Client)
        answer = client.ask("sing", model="song")
        assert (answer.text, answer.complete, answer.stop_reason) == ("la la", True, "end")
        assert client.ask(Request("song", "sing")) == client.ask(model="song", messages=[Message("user", "sing")])


def test_an_asynchronous_program_asks(upstream: Upstream) -> None:
    async def work() -> None:
        async with Client(upstreams=[upstream]) as client:
            assert not isinstance(client, PlainClient)
            asking = client.ask("sing", model="song")
            assert inspect.isawaitable(asking)
            answers = await asyncio.gather(asking, *(client.ask("sing", model="song") for _ in range(5)))
            assert [answer.text for answer in answers] == ["la la"] * 6

    asyncio.run(work())


def test_the_object_that_was_opened_and_its_view_are_one_client(upstream: Upstream) -> None:
    client = Client(upstreams=[upstream])
    with client as view:
        assert view.pool is client.pool
        assert view.loop is client.loop
        assert client.ask("sing", model="song") == view.ask("sing", model="song")  # type: ignore[comparison-overlap]  # the type of the object cannot know how it was opened
        assert [type(event) for event in client.stream("sing", model="song")] == [
            type(event) for event in view.stream("sing", model="song")
        ]
    with pytest.raises(ConfigError, match="not open"):
        view.ask("sing", model="song")
    with pytest.raises(ConfigError, match="not open"):
        _ = client.ask("sing", model="song")
    with client as again:
        assert again.ask("sing", model="song").text == "la la"


def test_an_answer_that_breaks_off_has_its_error(tmp_path: Path) -> None:
    broken = recording(tmp_path, "song", text("la ", "la"))
    with Client(upstreams=[broken]) as client:
        answer = client.ask("sing", model="song")
        assert answer.text == "la la"
        assert not answer.complete
        with pytest.raises(UpstreamTruncated):
            answer.raise_for_error()


def test_an_error_before_the_answer_is_raised() -> None:
    refused = b'{"error": {"message": "no such key", "code": "invalid_api_key"}}'
    with serve_response(refused, "application/json", 401) as url:
        given = Upstream(name="strict", base_url=f"{url}/v1", attempts=1)
        with Client(upstreams=[given]) as client, pytest.raises(UpstreamRefused, match="no such key"):
            client.ask("sing", model="song")
        with pytest.raises(UpstreamRefused, match="no such key"):
            asyncio.run(asked(given))


def test_a_question_that_is_no_longer_waited_for_ends_at_the_upstream() -> None:
    with chunk_server(0.01) as server:

        async def work() -> None:
            async with Client(upstreams=[server.upstream()]) as client:
                asking = asyncio.ensure_future(client.ask("talk", model="m"))
                while not server.sent:
                    await asyncio.sleep(0.01)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                assert await asyncio.to_thread(server.gone.wait, WAIT_SECONDS)

        asyncio.run(work())


@pytest.mark.parametrize("wrong", [5, b"sing", ["sing"], {"messages": []}], ids=repr)
def test_a_request_is_a_request_or_one_text(upstream: Upstream, wrong: Any) -> None:
    with Client(upstreams=[upstream]) as client:
        with pytest.raises(TypeError, match="a request is a Request, or one text"):
            client.ask(wrong, model="song")
        with pytest.raises(TypeError, match="one text without `messages`"):
            client.ask("sing", model="song", messages="dance")


def test_a_tool_that_the_client_ran_is_not_a_call_to_run() -> None:
    from tools.chat_model import ChatModel

    def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    model = ChatModel()
    try:
        with Client(upstreams=[model.upstream()], tools=[weather]) as client:
            answer = client.ask("How is the weather?", model="m")
            left = client.ask("How is the weather?", model="m", run_tools=False)
    finally:
        model.close()
    assert answer.complete
    assert "rain in" in answer.text
    assert answer.tool_calls == []
    assert [call.name for call in left.tool_calls] == ["weather", "weather"]
    assert all(call.json()["city"] for call in left.tool_calls)


# --- streams


def test_a_stream_keeps_its_answer(upstream: Upstream) -> None:
    with Client(upstreams=[upstream]) as client:
        stream = client.stream("sing", model="song")
        assert isinstance(stream, PlainStream)
        events = []
        for event in stream:
            events.append(event)
            assert stream.snapshot().text.startswith("".join(one.text for one in events if isinstance(one, TextDelta)))
        assert stream.response() == collect(events)
        assert stream.response() is stream.response()

    async def work() -> None:
        async with Client(upstreams=[upstream]) as client:
            stream = client.stream("sing", model="song")
            assert isinstance(stream, Stream)
            assert not stream.plain
            with pytest.raises(StreamglotError, match="the stream has not ended"):
                stream.response()
            kept = [event async for event in stream]
            assert stream.response() == collect(kept)

    asyncio.run(work())


def test_a_stream_that_was_closed_early_has_the_answer_so_far() -> None:
    with chunk_server(0.01) as server:
        with Client(upstreams=[server.upstream()]) as client, client.stream("talk", model="m") as stream:
            for event in stream:
                if isinstance(event, TextDelta):
                    break
        assert stream.response().text
        assert not stream.response().complete

        async def work() -> None:
            async with Client(upstreams=[server.upstream()]) as later:
                again = later.stream("talk", model="m")
                await again.aclose()
                assert again.response() == Response()

        asyncio.run(work())


def test_the_events_of_a_client_are_written(upstream: Upstream) -> None:
    with Client(upstreams=[upstream]) as client:
        plain = b"".join(write(client.stream("sing", model="song"), "anthropic", id="i"))

    async def work() -> bytes:
        async with Client(upstreams=[upstream]) as client:
            return b"".join([data async for data in write(client.stream("sing", model="song"), "anthropic", id="i")])

    assert asyncio.run(work()) == plain
    assert b"message_stop" in plain


def test_closing_what_is_written_closes_the_stream_of_the_upstream() -> None:
    with chunk_server(0.01) as server, Client(upstreams=[server.upstream()]) as client:
        written = write(client.stream("talk", model="m"), "anthropic")
        next(written)
        written.close()
        assert server.gone.wait(WAIT_SECONDS)


# --- where programs run


def of_a_notebook(upstream: Upstream) -> Response:
    """A cell awaits inside a loop that runs already, and a plain ``with`` works there too."""

    async def cell() -> Response:
        with Client(upstreams=[upstream]) as plain:
            assert plain.ask("sing", model="song").text == "la la"
            assert [event for event in plain.stream("sing", model="song") if isinstance(event, TextDelta)]
        return await asked(upstream)

    return asyncio.run(cell())


def of_a_thread(upstream: Upstream) -> Response:
    found: list[Response] = []

    def work() -> None:
        with Client(upstreams=[upstream]) as plain:
            assert plain.ask("sing", model="song").text == "la la"
        found.append(asyncio.run(asked(upstream)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(WAIT_SECONDS)
    return found[0]


def of_uvloop(upstream: Upstream) -> Response:
    uvloop = pytest.importorskip("uvloop")
    answer: Response = uvloop.run(asked(upstream))
    return answer


def of_anyio(upstream: Upstream) -> Response:
    async def work() -> Response:
        found: list[Response] = []

        async def one() -> None:
            with anyio.fail_after(WAIT_SECONDS):
                found.append(await asked(upstream))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
        return found[1]

    return anyio.run(work)


@pytest.mark.parametrize("place", [of_a_notebook, of_a_thread, of_uvloop, of_anyio])
def test_the_client_works_where_people_work(place: Callable[[Upstream], Response], upstream: Upstream) -> None:
    assert place(upstream).text == "la la"


def test_one_plain_client_serves_several_threads(upstream: Upstream) -> None:
    found: list[str] = []
    with Client(upstreams=[upstream]) as client:
        threads = [threading.Thread(target=lambda: found.append(client.ask("sing", model="song").text)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        running = run_in_thread("sing", client=client, model="song")
        assert collect(running).text == "la la"
    assert found == ["la la"] * 4


@pytest.mark.parametrize("run", [asyncio.run, anyio.run], ids=["asyncio", "anyio"])
def test_asynchronous_streams_need_no_loop_of_a_kind(run: Callable[..., Any]) -> None:
    body = (Path(__file__).parents[2] / "examples" / "anthropic.sse").read_bytes()

    async def work() -> str:
        async def chunks() -> AsyncIterator[bytes]:
            for place in range(0, len(body), 70):
                await anyio.sleep(0)
                yield body[place : place + 70]

        stream = streamglot.read(chunks(), "anthropic")
        async for _data in streamglot.write(stream, "openai_chat"):
            pass
        return stream.response().text

    text: str = run(work) if run is anyio.run else run(work())
    assert text == collect(streamglot.read(body, "anthropic")).text


@pytest.mark.slow
@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_an_editor_knows_which_client_it_has(mypy_cache: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import streamglot\n"
        "from streamglot import Client\n"
        "async def later() -> None:\n"
        "    async with Client() as client:\n"
        "        reveal_type(await client.ask('x'))\n"
        "        reveal_type(client.stream('x'))\n"
        "        reveal_type(streamglot.write(client.stream('x'), 'anthropic'))\n"
        "with Client() as client:\n"
        "    reveal_type(client)\n"
        "    reveal_type(client.ask('x'))\n"
        "    reveal_type(client.stream('x'))\n"
        "    reveal_type(streamglot.write(client.stream('x'), 'anthropic'))\n"
        "reveal_type(streamglot.read(b'', 'anthropic'))\n"
        "reveal_type(streamglot.dialect('anthropic').parse_request)\n"
    )
    expected = ["Response", "Stream", "AsyncByteStream", "PlainClient", "Response", "PlainStream", "ByteStream", "EventStream"]
    for checker in (
        ["mypy", "--strict", "--config-file", "", "--cache-dir", str(mypy_cache)],
        ["basedpyright", "--pythonpath", sys.executable],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *checker, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        shown = [line for line in done.stdout.splitlines() if "evealed type" in line or 'information: Type of "' in line]
        kinds = [line.rpartition(" is ")[2].strip('"').rpartition(".")[2].strip('"') for line in shown]
        assert kinds[:8] == expected, done.stdout
        assert "JsonObject" in shown[8] or "dict[str, Any]" in shown[8], shown[8]


def test_the_signature_of_ask_is_that_of_stream() -> None:
    kinds: list[Callable[..., Coroutine[object, object, Response] | Response]] = [Client.ask, PlainClient.ask]
    for kind in kinds:
        assert list(inspect.signature(kind).parameters) == list(inspect.signature(Client.stream).parameters)
