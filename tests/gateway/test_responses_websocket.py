"""The WebSocket mode of the Responses API: responses, continuation, lanes, refusals, ends."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import openai
import pytest
from wsproto.events import CloseConnection, Ping, Pong

from gateway.conftest import upstreams_at
from gateway.running import Running, running
from gateway.scenarios import DONE, END, PLAIN, text_chunk
from gateway.upstream import Cut, Hang, HostileUpstream, Until, sse, streamed, unfinished, whole
from gateway.websocket_client import WebSocketClient, websocket
from streamglot.config import Config, LoadedConfig
from streamglot.gateway.app import Gateway
from streamglot.gateway.http.websocket import WebSocket
from streamglot.gateway.responses_websocket import MAX_LANES, WAITING
from waiting import until

FINE = streamed(PLAIN)


def config(url: str, **server: Any) -> dict[str, Any]:
    """Without a store: these tests are about what a connection remembers by itself."""
    return {"server": server, "store": {"url": "none"}, "upstreams": {"up": upstreams_at(url)["work"]}}


@pytest.fixture
def gateway(upstream: HostileUpstream) -> Iterator[Running]:
    upstream.scripts["m"] = FINE
    with running(config(upstream.url)) as found:
        yield found


def text_of(messages: list[dict[str, Any]]) -> str:
    return "".join(message["delta"] for message in messages if message["type"] == "response.output_text.delta")


def id_of(messages: list[dict[str, Any]]) -> str:
    assert messages[-1]["type"] == "response.completed", messages[-1]
    return str(messages[-1]["response"]["id"])


def roles(body: dict[str, Any]) -> list[tuple[str, str]]:
    def words(content: Any) -> str:
        return content if isinstance(content, str) else "".join(part["text"] for part in content)

    return [(message["role"], words(message["content"])) for message in body["messages"]]


# --- responses


def test_a_response_is_the_stream_of_a_post_without_its_framing(gateway: Running) -> None:
    with websocket(gateway.port) as client:
        assert client.status == 101
        client.create(stream=True, background=False)
        messages = client.response()
    assert text_of(messages) == "Hello world"
    assert [message["type"] for message in messages][:2] == ["response.created", "response.in_progress"]
    assert [message["sequence_number"] for message in messages] == list(range(len(messages)))
    assert not any("stream_id" in message for message in messages)


def test_several_responses_come_in_order_over_one_connection(gateway: Running) -> None:
    with websocket(gateway.port) as client:
        for _ in range(3):
            client.create()
        for _ in range(3):
            messages = client.response()
            assert text_of(messages) == "Hello world"
            assert messages[0]["sequence_number"] == 0


def test_a_long_response_and_a_long_request_pass_whole(gateway: Running, upstream: HostileUpstream) -> None:
    long = "x" * 200_000
    upstream.scripts["long"] = streamed(sse(text_chunk(long), END, DONE))
    with websocket(gateway.port) as client:
        client.create(model="up/long", input=long)
        assert text_of(client.response()) == long
    assert roles(upstream.requests("long")[-1].body) == [("user", long)]


def test_a_message_may_come_in_fragments(gateway: Running) -> None:
    with websocket(gateway.port) as client:
        message = '{"type":"response.create","model":"up/m","input":"grüße"}'
        for character in message[:-1]:
            client.send(character, message_finished=False)
        client.send(message[-1])
        assert text_of(client.response()) == "Hello world"


# --- continuation


@pytest.mark.parametrize("given", ["hi", [{"type": "message", "role": "user", "content": "hi"}]])
def test_a_response_that_nobody_stores_can_be_continued(gateway: Running, upstream: HostileUpstream, given: object) -> None:
    with websocket(gateway.port) as client:
        client.create(input=given, store=False)
        first = id_of(client.response())
        client.create(input="and then?", previous_response_id=first, store=False)
        second = id_of(client.response())
        assert roles(upstream.requests("m")[-1].body) == [("user", "hi"), ("assistant", "Hello world"), ("user", "and then?")]
        client.create(input="more", previous_response_id=second, store=False)
        id_of(client.response())
        assert len(upstream.requests("m")[-1].body["messages"]) == 5
        client.create(input="old", previous_response_id=first)
        assert client.response()[-1]["error"]["code"] == "previous_response_not_found", "only the latest one is kept"


def test_an_unknown_response_is_refused_with_its_own_code(gateway: Running) -> None:
    with websocket(gateway.port) as client:
        client.create(previous_response_id="resp_nobody")
        error = client.response()[-1]
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        client.create()
        assert text_of(client.response()) == "Hello world", "the connection goes on"


def test_a_stored_response_can_be_continued_on_another_connection(upstream: HostileUpstream, tmp_path: Any) -> None:
    upstream.scripts["m"] = FINE
    settings = {**config(upstream.url), "store": {"url": f"sqlite:///{tmp_path / 'store.db'}"}}
    with running(settings) as gateway:
        with websocket(gateway.port) as client:
            client.create()
            first = id_of(client.response())
        with websocket(gateway.port) as client:
            client.create(previous_response_id=first, input="go on")
            id_of(client.response())
        assert roles(upstream.requests("m")[-1].body) == [("user", "hi"), ("assistant", "Hello world"), ("user", "go on")]


def test_a_failed_response_cannot_be_continued(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["cut"] = unfinished(sse(text_chunk("Hel")), end=Cut())
    with websocket(gateway.port) as client:
        client.create(model="up/cut")
        failed = client.response()[-1]
        assert failed["type"] == "response.failed"
        client.create(previous_response_id=failed["response"]["id"])
        assert client.response()[-1]["error"]["code"] == "previous_response_not_found"


def test_a_prewarmed_input_is_prepended(gateway: Running, upstream: HostileUpstream) -> None:
    before = len(upstream.requests("m"))
    with websocket(gateway.port) as client:
        client.create(generate=False, input=[{"type": "message", "role": "developer", "content": "Be brief."}])
        messages = client.response()
        assert messages[-1]["response"]["output"] == []
        assert len(upstream.requests("m")) == before, "no upstream was asked"
        client.create(previous_response_id=id_of(messages), input="hi")
        id_of(client.response())
    assert roles(upstream.requests("m")[-1].body) == [("system", "Be brief."), ("user", "hi")]


def test_a_prewarmed_beginning_needs_the_right_to_its_model(upstream: HostileUpstream) -> None:
    settings = config(upstream.url, keys=[{"name": "a", "key_env": "KEY", "models": ["up/m*"]}])
    with (
        running(settings, environment={"KEY": "the key"}) as gateway,
        websocket(gateway.port, headers={"authorization": "Bearer the key"}) as client,
    ):
        client.create(model="up/other", generate=False)
        assert client.response()[-1]["error"]["code"] == "model_not_allowed"
        client.create(model="up/m", generate=False)
        id_of(client.response())


# --- lanes


def test_lanes_are_answered_at_the_same_time_and_named_on_every_event(gateway: Running, upstream: HostileUpstream) -> None:
    go_on = threading.Event()
    upstream.scripts["slow"] = streamed(sse(text_chunk("slow")), Until(go_on), sse(END, DONE))
    with websocket(gateway.port) as client:
        client.create(model="up/slow", stream_id="a")
        first = client.message()
        client.create(stream_id='b"')
        messages: list[dict[str, Any]] = []
        while not messages or messages[-1]["type"] != "response.completed":
            messages.append(client.message())
        assert messages[-1]["stream_id"] == 'b"'
        go_on.set()
        rest = client.response()
    seen = [first, *messages, *rest]
    assert {message["stream_id"] for message in seen} == {"a", 'b"'}
    assert text_of([message for message in seen if message["stream_id"] == "a"]) == "slow"


def test_lanes_and_what_waits_in_them_have_limits(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["hang"] = unfinished(sse(text_chunk("x")), end=Hang())
    with websocket(gateway.port) as client:
        for number in range(MAX_LANES):
            client.create(model="up/hang", stream_id=str(number))
        client.create(stream_id="one more")
        error = next(message for message in iter(client.message, None) if message["type"] == "error")
        assert (error["status"], error["stream_id"]) == (429, "one more")
    with websocket(gateway.port) as client:
        for _ in range(WAITING + 2):
            client.create(model="up/hang")
        error = next(message for message in iter(client.message, None) if message["type"] == "error")
        assert error["status"] == 429


def test_remembered_responses_and_waiting_requests_have_byte_limits(upstream: HostileUpstream) -> None:
    upstream.scripts["m"] = FINE
    upstream.scripts["hang"] = unfinished(sse(text_chunk("x")), end=Hang())
    with running(config(upstream.url, max_body_bytes=10_000)) as gateway, websocket(gateway.port) as client:
        ids = []
        for lane in "abc":
            client.create(input="x" * 4_000, stream_id=lane)
            ids.append(id_of(client.response()))
        client.create(previous_response_id=ids[0], stream_id="a")
        assert client.response()[-1]["error"]["code"] == "previous_response_not_found", "it made room"
        client.create(previous_response_id=ids[2], stream_id="c")
        id_of(client.response())
        client.create(model="up/hang")
        while client.message()["type"] != "response.output_text.delta":
            pass
        for _ in range(3):
            client.create(input="x" * 4_000)
        assert client.message()["status"] == 429


def test_an_idle_lane_makes_room_for_another(gateway: Running) -> None:
    with websocket(gateway.port) as client:
        for number in range(MAX_LANES + 3):
            client.create(stream_id=f"lane {number}")
            assert client.response()[-1]["type"] == "response.completed"


# --- refusals


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no json", "not_json"),
        ("[]", "not_json"),
        ('{"type":"response.dance"}', "unknown_message"),
        ("{}", "unknown_message"),
        ('{"type":"response.create","model":"up/m","input":3}', None),
        ('{"type":"response.create","model":"up/m","input":"x","stream_id":"' + "y" * 200 + '"}', None),
    ],
)
def test_an_invalid_message_is_an_error_and_the_connection_stays_open(gateway: Running, message: str, code: str | None) -> None:
    with websocket(gateway.port) as client:
        client.send(message)
        error = client.message()
        assert (error["type"], error["status"]) == ("error", 400)
        assert code is None or error["error"]["code"] == code
        client.create()
        assert text_of(client.response()) == "Hello world"


@pytest.mark.parametrize("kind", ["response.steer", "response.inject"])
def test_unsupported_messages_are_answered_with_failed_events(gateway: Running, kind: str) -> None:
    with websocket(gateway.port) as client:
        client.send({"type": kind, "input": [{"role": "user", "content": "stop"}]})
        failed = client.message()
    assert failed["type"] == f"{kind}.failed"
    assert failed["error"]["code"].endswith("_not_supported")


def test_a_refusal_of_an_upstream_has_its_status_and_its_headers(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["busy"] = whole({"error": {"message": "slow down"}}, 429, retry_after="3")
    with websocket(gateway.port) as client:
        client.create(model="up/busy")
        error = client.message()
    assert (error["type"], error["status"], error["headers"]["retry-after"]) == ("error", 429, "3")


def test_a_broken_stream_closes_the_connection_if_it_is_to_be_cut(upstream: HostileUpstream) -> None:
    upstream.scripts["breaks"] = unfinished(sse(text_chunk("Hello")))
    upstream.scripts["m"] = FINE
    for server, code in (({"broken_stream": "abort"}, 1011), ({}, 1000)):
        with running(config(upstream.url, **server)) as gateway, websocket(gateway.port) as client:
            client.create()
            assert text_of(client.response()) == "Hello world"
            client.create(model="up/breaks")
            assert client.response()[-1]["type"] in ("response.failed", "error")
            if not server:
                client.create()
                assert text_of(client.response()) == "Hello world"
                client.socket.sendall(client.frames.send(CloseConnection(code=1000)))
            assert client.closed() == code


def test_an_error_after_keep_alives_still_has_its_status(upstream: HostileUpstream) -> None:
    """Clients ignore an error without a status and go on waiting."""
    go_on = threading.Event()
    upstream.scripts["late"] = [Until(go_on), *whole({"error": {"message": "no"}}, 503)]
    with running(config(upstream.url, keep_alive_seconds=0.01)) as gateway, websocket(gateway.port) as client:
        client.create(model="up/late")
        upstream.wait_for("late", lambda seen: True)
        until(lambda: any(handler._response._last_keep_alive > handler.record.began for handler in gateway.handlers))
        go_on.set()
        error = client.message()
        assert (error["type"], error["status"]) == ("error", 503)


def test_a_long_silence_repeats_that_the_response_is_in_progress(upstream: HostileUpstream) -> None:
    go_on = threading.Event()
    upstream.scripts["slow"] = streamed(sse(text_chunk("slow")), Until(go_on), sse(END, DONE))
    with running(config(upstream.url, keep_alive_seconds=0.01)) as gateway, websocket(gateway.port) as client:
        client.create(model="up/slow", stream_id="a")
        while client.message()["type"] != "response.output_text.delta":
            pass
        again = client.message()
        assert (again["type"], again["stream_id"]) == ("response.in_progress", "a")
        go_on.set()
        assert client.response()[-1]["type"] == "response.completed"


def test_the_official_client_holds_a_conversation(gateway: Running, upstream: HostileUpstream) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k").responses.connect() as connection:
        previous: dict[str, Any] = {}
        for number in range(3):
            connection.response.create(model="up/m", input=f"question {number}", store=False, **previous)
            for event in connection:
                if event.type == "response.completed":
                    previous = {"previous_response_id": event.response.id}
                    assert event.response.output_text == "Hello world"
                    break
    assert len(upstream.requests("m")[-1].body["messages"]) == 5


# --- which clients are accepted


def test_the_upgrade_is_guarded_like_a_post(upstream: HostileUpstream) -> None:
    upstream.scripts["m"] = FINE
    key = "sk-a-0123456789abcdef"
    settings = config(upstream.url, keys=[{"name": "a", "key_env": "KEY"}])
    with running(settings, environment={"KEY": key}) as gateway:
        with websocket(gateway.port) as client:
            assert client.status == 401
        with websocket(gateway.port, headers={"authorization": "Bearer wrong"}) as client:
            assert client.status == 401
        with websocket(gateway.port, headers={"authorization": f"Bearer {key}"}) as client:
            client.create()
            assert text_of(client.response()) == "Hello world"
        assert gateway.log_line(lambda line: line.get("key") == "a")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"host": "evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 101),
        ({"sec-websocket-version": "8"}, 426),
        ({"sec-websocket-key": "short"}, 426),
        ({"content-length": "2"}, 426),
    ],
)
def test_upgrades_that_are_not_accepted(gateway: Running, headers: dict[str, str], status: int) -> None:
    with websocket(gateway.port, headers=headers) as client:
        assert client.status == status


def test_other_addresses_have_no_websocket(gateway: Running) -> None:
    with websocket(gateway.port, "/v1/chat/completions") as client:
        assert client.status == 426


# --- ends


def test_a_client_that_disconnects_stops_the_upstream(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["endless"] = unfinished(sse(text_chunk("x")), end=Hang())
    for reset in (False, True):
        with websocket(gateway.port) as client:
            client.create(model="up/endless")
            while client.message()["type"] != "response.output_text.delta":
                pass
            if not reset:
                client.socket.sendall(client.frames.send(CloseConnection(code=1000)))
                assert client.closed() == 1000
        upstream.wait_for("endless", lambda seen: seen.closed > 0)
    until(lambda: sum(line.get("ending") == "client_gone" for line in gateway.lines) == 2)


def test_binary_and_large_messages_and_broken_frames_end_the_connection(upstream: HostileUpstream) -> None:
    upstream.scripts["m"] = FINE
    with running(config(upstream.url, max_body_bytes=10_000)) as gateway:
        with websocket(gateway.port) as client:
            client.send_bytes(b"{}")
            assert client.closed() == 1003
        with websocket(gateway.port) as client:
            client.create(input="x" * 10_001)
            assert client.closed() == 1009
        with websocket(gateway.port) as client:
            client.socket.sendall(b"\x81\x02hi")  # not masked
            assert client.closed() == 1002
        assert gateway.ask("/health").status == 200


def test_a_silent_client_is_pinged_and_then_given_up(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def alive() -> list[WebSocket]:
        return [one for one in list(gateway.server.connections) if isinstance(one, WebSocket) and not one.closing]

    monkeypatch.setattr(WebSocket, "pong_seconds", 0.05)
    with websocket(gateway.port) as client:
        client.pongs = False
        until(lambda: len(alive()) == 1)
        alive()[0].deadline = 0.0
        assert client.closed() == 1006
        assert client.pings == 1
    until(lambda: not gateway.server.connections)


def test_a_stopping_gateway_closes_idle_connections_and_lets_responses_end(upstream: HostileUpstream) -> None:
    go_on = threading.Event()
    upstream.scripts["slow"] = streamed(sse(text_chunk("slow")), Until(go_on), sse(END, DONE))
    with running(config(upstream.url)) as gateway, websocket(gateway.port) as idle, websocket(gateway.port) as busy:
        busy.create(model="up/slow")
        while busy.message()["type"] != "response.output_text.delta":
            pass
        gateway.server.stop()
        assert idle.closed() == 1001
        busy.create()
        go_on.set()
        assert busy.response()[-1]["type"] == "response.completed"
        assert busy.response()[-1]["status"] == 503
        assert busy.closed() == 1001


def test_a_client_that_does_not_read_slows_the_upstream_down(gateway: Running, upstream: HostileUpstream) -> None:
    piece = sse(text_chunk("x" * 60_000))
    upstream.scripts["flood"] = streamed(*[piece] * 800, sse(END, DONE))
    client = WebSocketClient(gateway.port)
    try:
        client.create(model="up/flood")
        found = upstream.wait_for("flood", lambda seen: seen.sent > 0)
        until(lambda: any(isinstance(one, WebSocket) and one.paused for one in list(gateway.server.connections)))
        assert not found.over, "the upstream is read no faster than the client reads"
        assert len(text_of(client.response())) == 800 * 60_000
    finally:
        client.socket.close()


# --- any other server


@pytest.mark.parametrize("able", [True, False])
def test_an_asgi_server_refuses_websockets(able: bool) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "extensions": {"websocket.http.response": {}} if able else {}}
    asyncio.run(Gateway(LoadedConfig(Config()), {})(scope, _never, send))
    assert sent[0].get("status") == (426 if able else None)
    assert sent[-1]["type"] == ("websocket.http.response.body" if able else "websocket.close")


async def _never() -> Any:
    raise AssertionError("nothing is read")


# --- hostile clients


def test_any_bytes_after_the_upgrade_are_handled(gateway: Running) -> None:
    chance = random.Random(7)
    openings = (b"\x81", b"\x01", b"\x80", b"\x88", b"\x89", b"\x8a", b"\x82", b"\xf1", b"\x83", b"")
    for _ in range(150):
        pieces = []
        for _ in range(chance.randrange(1, 4)):
            size = chance.choice((0, 1, 5, 125))
            frame = bytes((0x80 | size,)) + chance.randbytes(4 + size)
            pieces.append(chance.choice(openings) + chance.choice((frame, chance.randbytes(9))))
        # the gateway may hang up after the first piece, before the next one is sent
        with websocket(gateway.port) as client, suppress(BrokenPipeError, ConnectionResetError):
            for data in pieces:
                client.socket.sendall(data)
    until(lambda: not gateway.server.connections)
    assert gateway.ask("/health").status == 200
    assert not [line for line in gateway.lines if line.get("event") == "fault"]


def test_pings_between_fragments_are_answered_and_a_flood_of_them_is_not_stored(gateway: Running) -> None:
    with websocket(gateway.port) as client:
        message = '{"type":"response.create","model":"up/m","input":"hi"}'
        client.send(message[:20], message_finished=False)
        client.socket.sendall(client.frames.send(Ping(payload=b"there?")))
        client.send(message[20:])
        first = client.event()
        assert isinstance(first, Pong)
        assert first.payload == b"there?"
        assert text_of(client.response()) == "Hello world"
        flood = client.frames.send(Ping(payload=b"x" * 125)) * 2_000
        client.socket.settimeout(0.2)
        with suppress(TimeoutError):  # the client reads nothing, so the pongs fill the sockets
            for _ in range(200):
                client.socket.sendall(flood)
        (connection,) = gateway.server.connections
        assert isinstance(connection, WebSocket)
        assert connection._transport.get_write_buffer_size() < 2**20
