"""The life of a stream: clients that hang up or do not read, silence, deadlines, shutdown of the gateway."""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.conftest import LONG_TIMEOUTS, upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, asked, body_of, path_of, understood
from gateway.raw import raw
from gateway.running import Answer, Running, running
from gateway.scenarios import DONE, END, PLAIN, TEXT_AND_CALL, text_chunk
from gateway.stored_turns import kept
from gateway.upstream import (
    UPSTREAM_NAMES,
    Hang,
    HostileUpstream,
    Pause,
    Script,
    Until,
    head,
    piece,
    sse,
    streamed,
    unfinished,
    whole,
)
from streamglot.gateway import lifecycle
from waiting import WAIT_SECONDS, until

# --- before the first text


def test_keep_alives_before_the_first_event_are_not_held(gateway: Running, upstream: HostileUpstream) -> None:
    comments = b": one of many\n\n" * 5_000
    upstream.scripts["patient"] = streamed(comments, sse(text_chunk("Hello"), END, DONE))
    answer = gateway.ask(path_of("openai_chat", "work/patient"), body_of("openai_chat", "work/patient"))
    assert b"Hello" in answer.body
    assert b"one of many" not in answer.body


def test_an_answer_that_begins_with_many_other_events_is_sent_as_it_comes(
    gateway: Running, upstream: HostileUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamglot.engine.answer.PRELUDE_EVENTS", 10)
    go_on = threading.Event()
    numbers = [{"id": "x", "model": "m", "choices": [{"delta": {"executed_tools": {"number": number}}}]} for number in range(20)]
    upstream.scripts["talkative"] = streamed(sse(*numbers), Until(go_on), sse(text_chunk("Hello"), END, DONE))
    with raw(gateway.port) as one:
        one.post(path_of("openai_chat", "work/talkative"), body_of("openai_chat", "work/talkative"))
        one.read_until(b'"number":1')
        go_on.set()
        one.read_until(b"Hello")


def test_text_in_a_field_that_nobody_knows_is_named(gateway: Running, upstream: HostileUpstream) -> None:
    unknown = {"id": "x", "model": "m", "choices": [{"delta": {"musing": "hm"}}]}
    upstream.scripts["muses"] = streamed(sse(unknown, text_chunk("Hello"), END, DONE))
    asked = body_of("openai_chat", "work/muses")
    assert gateway.ask(path_of("openai_chat", ""), asked).headers["x-streamglot-dropped"] == "delta.musing"
    body = {"id": "x", "choices": [{"message": {"content": "Hi", "musing": "hm"}, "finish_reason": "stop"}]}
    upstream.scripts["muses"] = whole(body)
    found = gateway.ask(path_of("anthropic", ""), body_of("anthropic", "work/muses", stream=False))
    assert found.headers["x-streamglot-dropped"] == "delta.musing"
    assert gateway.line(found.headers["x-request-id"])["dropped"] == ["delta.musing"]


@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "ollama"])
def test_a_whole_answer_without_an_end_is_an_error(gateway: Running, upstream: HostileUpstream, client: str) -> None:
    upstream.scripts["unended"] = whole({"id": "x", "choices": [{"message": {"content": "Hi"}, "finish_reason": None}]})
    found = gateway.ask(path_of(client, ""), body_of(client, "work/unended", stream=False))
    assert (found.status, b"finish_reason" in found.body) == (502, True)


# --- the client disconnects: the upstream request is cancelled long before any timeout


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "reset"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "gemini", "ollama"])
def test_a_hang_up_before_the_first_byte_stops_the_upstream(
    gateway: Running, upstream: HostileUpstream, client: str, stream: bool, reset: bool
) -> None:
    model = f"gone-before-{client}-{stream}-{reset}"
    upstream.scripts[model] = [Hang()]
    with raw(gateway.port) as one:
        one.post(
            path_of(client, f"work/{model}", stream),
            body_of(client, f"work/{model}", stream),
            {"x-request-id": model},
        )
        upstream.wait_for(model)
        one.hang_up(reset)
    upstream.wait_for(model, lambda seen: seen.closed)
    assert gateway.line(model)["ending"] == "client_gone"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "ollama"])
def test_a_hang_up_in_the_middle_stops_the_upstream(
    gateway: Running, upstream: HostileUpstream, client: str, stream: bool
) -> None:
    model = f"gone-middle-{client}-{stream}"
    upstream.scripts[model] = [head(), sse(text_chunk("Hello")), Hang()]
    with raw(gateway.port) as one:
        one.post(
            path_of(client, f"work/{model}", stream),
            body_of(client, f"work/{model}", stream),
            {"x-request-id": model},
        )
        if stream:
            one.read_until(b"Hello")
        else:
            begun(gateway, model)
        one.hang_up()
    upstream.wait_for(model, lambda seen: seen.closed)
    assert gateway.line(model)["ending"] == "client_gone"


def begun(gateway: Running, request_id: str) -> None:
    """The gateway has read the first of the answer to this request, whether or not its client has heard of it."""
    live = gateway.gateway.requests.running
    until(lambda: any(one.record.request_id == request_id and one.record.reads for one in list(live)))


def test_a_hang_up_while_the_previous_answer_drains_stops_the_upstream(gateway: Running, upstream: HostileUpstream) -> None:
    """The first upstream lingers after its last word, so its call ends when the connection is another call's already."""
    hang_up = threading.Event()
    upstream.scripts["lingering"] = streamed(PLAIN, Until(hang_up))
    upstream.scripts["gone-next"] = [head(), sse(text_chunk("Hello")), Hang()]
    with raw(gateway.port) as one:
        path = path_of("openai_chat", "work/lingering", True)
        one.post(path, body_of("openai_chat", "work/lingering", True), {"x-request-id": "lingering"})
        one.read_until(b"0\r\n\r\n")
        one.post(path, body_of("openai_chat", "work/gone-next", True), {"x-request-id": "gone-next"})
        one.read_until(b"Hello")
        hang_up.set()
        assert gateway.line("lingering")["ending"] == "end"
        one.hang_up()
    upstream.wait_for("gone-next", lambda seen: seen.closed)
    assert gateway.line("gone-next")["ending"] == "client_gone"


def test_a_hang_up_during_a_retry_delay_ends_the_request(upstream: HostileUpstream) -> None:
    upstream.scripts["gone-pause"] = [head(503, content_length="0", retry_after="8")]
    with (
        running({"upstreams": upstreams_at(upstream.url, attempts=5)}) as gateway,
        raw(gateway.port) as one,
    ):
        one.post("/v1/chat/completions", body_of("openai_chat", "work/gone-pause"), {"x-request-id": "gone-pause"})
        upstream.wait_for("gone-pause", lambda seen: seen.over)
        until(lambda: any(one.record.wait for one in gateway.gateway.requests.seen_by(None)))
        one.hang_up()
        assert gateway.line("gone-pause")["ending"] == "client_gone"
    assert len(upstream.requests("gone-pause")) == 1


def test_a_hang_up_with_a_large_body_stops_the_upstream(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["gone-large"] = [Hang()]
    body = body_of("openai_chat", "work/gone-large")
    body["messages"] = [{"role": "user", "content": "x" * 2_000_000}]
    with raw(gateway.port) as one:
        one.post("/v1/chat/completions", body)
        upstream.wait_for("gone-large")
        one.hang_up()
    upstream.wait_for("gone-large", lambda seen: seen.closed)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/messages/count_tokens"])
def test_a_hang_up_stops_forwarded_requests(gateway: Running, upstream: HostileUpstream, path: str) -> None:
    model = f"gone-{path.rpartition('/')[2]}"
    upstream.scripts[model] = [Hang()]
    wire = "anthropic" if "messages" in path else "openai_chat"
    with raw(gateway.port) as one:
        one.post(path, {"model": f"{UPSTREAM_NAMES[wire]}/{model}", "input": "q", "messages": [{"role": "user", "content": "q"}]})
        upstream.wait_for(model)
        one.hang_up()
    upstream.wait_for(model, lambda seen: seen.closed)


# --- the client does not read


def test_a_client_that_stops_reading_stops_the_upstream(gateway: Running, upstream: HostileUpstream) -> None:
    part = piece(sse(*[text_chunk("x" * 1000) for _ in range(60)]))
    script: Script = [head(transfer_encoding="chunked"), *[part] * 1000, piece(sse(END, DONE)), b"0\r\n\r\n"]
    upstream.scripts["slow-reader"] = script
    with raw(gateway.port, 4096) as one:
        one.post("/v1/chat/completions", body_of("openai_chat", "work/slow-reader"))
        seen = upstream.wait_for("slow-reader", lambda seen: seen.sent > 0)
        before = 0
        while seen.sent != before:
            before = seen.sent
            time.sleep(0.5)
        assert seen.sent < len(part) * 300, "the upstream was still read"
        one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        data = one.read_until(b"[DONE]")
    assert data.count(b"x" * 1000) == 60_000, "nothing is lost when it reads again"
    assert b"[DONE]" in data


def test_a_client_that_never_reads_is_disconnected(upstream: HostileUpstream) -> None:
    part = piece(sse(*[text_chunk("x" * 1000) for _ in range(60)]))
    upstream.scripts["no-reader"] = [head(transfer_encoding="chunked"), *[part] * 500, b"0\r\n\r\n"]
    with (
        running({"server": {"stall_seconds": 0.3}, "upstreams": upstreams_at(upstream.url)}) as gateway,
        raw(gateway.port, 4096) as one,
    ):
        one.post("/v1/chat/completions", body_of("openai_chat", "work/no-reader"), {"x-request-id": "stalled"})
        assert gateway.line("stalled")["ending"] == "client_gone"
        assert upstream.wait_for("no-reader", lambda seen: bool(seen.closed))


def test_a_deadline_ends_a_stream_that_nobody_reads(upstream: HostileUpstream) -> None:
    part = piece(sse(*[text_chunk("x" * 1000) for _ in range(60)]))
    upstream.scripts["late-reader"] = [head(transfer_encoding="chunked"), *[part] * 500, b"0\r\n\r\n"]
    limits = {**LONG_TIMEOUTS, "total": 0.4}
    with running({"upstreams": upstreams_at(upstream.url, timeouts=limits)}) as gateway, raw(gateway.port, 4096) as one:
        one.post("/v1/chat/completions", body_of("openai_chat", "work/late-reader"), {"x-request-id": "late"})
        line = gateway.line("late")
        assert line["ending"] == "error"
        assert "timeouts.total" in line["message"]


# --- silence


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
@pytest.mark.parametrize("name", ["keep-alive-text", "keep-alive-call"])
def test_keep_alives_are_sent_between_frames(upstream: HostileUpstream, quiet: Running, client: str, name: str) -> None:
    """Before the first event, in a block and between blocks: the client must ignore what fills the silence."""
    body = PLAIN if name == "keep-alive-text" else TEXT_AND_CALL
    frames = [frame + b"\n\n" for frame in body.split(b"\n\n") if frame]
    steps: list[Any] = [step for frame in frames for step in (Pause(0.2), frame[:10], Pause(0.01), frame[10:])]
    upstream.scripts[name] = streamed(*steps)
    answer = quiet.ask(path_of(client, f"work/{name}"), body_of(client, f"work/{name}", True, ("weather",)))
    found = understood(client, answer)
    assert found.error is None
    if name == "keep-alive-text":
        assert found.text == "Hello world"
    else:
        assert found.text == "Let me look."
        assert client == "openai_completions" or found.calls == [("weather", {"city": "Paris"})]
    marks = {"anthropic": b"event: ping", "gemini": b'"text":""', "ollama": b'"content":""', "vercel_ui": b": keep-alive"}
    assert answer.body.count(marks.get(client, b": ping")) >= 2


@pytest.fixture(scope="module")
def quiet(upstream: HostileUpstream) -> Any:
    """It checks its clock often enough to notice every silence of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "TICK_SECONDS", 0.01)
        with running({"server": {"keep_alive_seconds": 0.01}, "upstreams": upstreams_at(upstream.url)}) as gateway:
            yield gateway


def test_an_error_after_a_keep_alive_is_in_the_stream(upstream: HostileUpstream, quiet: Running) -> None:
    def told() -> bool:
        """Whether the client got a keep-alive."""
        return any(one._response._last_keep_alive > one.record.began for one in quiet.handlers)

    for client in ("openai_chat", "anthropic", "openai_responses", "agui", "vercel_ui"):
        go_on = threading.Event()
        upstream.scripts["late-refusal"] = [Until(go_on), head(429, content_length="0")]
        answers: dict[str, Answer] = {}
        asking = streaming(quiet, client, "work/late-refusal", answers)
        until(told)
        go_on.set()
        asking.join(WAIT_SECONDS)
        found = understood(client, answers[client])
        assert found.status == 200
        assert found.error is not None
        assert "429" in found.error


def test_the_total_timeout_ends_an_answer(upstream: HostileUpstream) -> None:
    upstream.scripts["endless"] = [head(), *[step for _ in range(2000) for step in (sse(text_chunk("x")), Pause(0.05))]]
    limits = {**LONG_TIMEOUTS, "total": 1.0}
    with running({"upstreams": upstreams_at(upstream.url, timeouts=limits)}) as gateway:
        found = asked(gateway, "anthropic", "work/endless")
        assert found.error is not None
        assert "timeouts.total" in found.error
        assert found.text.startswith("x")
        assert asked(gateway, "openai_chat", "work/endless", False).status == 504


# --- the end of the gateway


def streaming(gateway: Running, client: str, model: str, answers: dict[str, Answer]) -> threading.Thread:
    def run() -> None:
        answers[client] = gateway.ask(path_of(client, model), body_of(client, model))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_shutdown_waits_for_running_streams(upstream: HostileUpstream) -> None:
    go_on = threading.Event()
    upstream.scripts["finishing"] = streamed(sse(text_chunk("Hello")), Until(go_on), sse(text_chunk(" world"), END, DONE))
    answers: dict[str, Answer] = {}
    with running({"server": {"shutdown_seconds": 60}, "upstreams": upstreams_at(upstream.url)}) as gateway:
        threads = [streaming(gateway, client, "work/finishing", answers) for client in ("openai_chat", "anthropic")]
        until(lambda: sum(one.record.reads for one in list(gateway.gateway.requests.running)) == 2)
        threading.Timer(0.5, go_on.set).start()
    for thread in threads:
        thread.join()
    assert {client: understood(client, answer).text for client, answer in answers.items()} == {
        "openai_chat": "Hello world",
        "anthropic": "Hello world",
    }


def test_after_the_deadline_streams_end_with_an_error(upstream: HostileUpstream) -> None:
    upstream.scripts["unending"] = [head(), sse(text_chunk("Hello")), Hang()]
    answers: dict[str, Answer] = {}
    with running({"server": {"shutdown_seconds": 0.3}, "upstreams": upstreams_at(upstream.url)}) as gateway:
        threads = [streaming(gateway, client, "work/unending", answers) for client in CLIENT_DIALECTS]
        until(lambda: sum(one.record.reads for one in list(gateway.gateway.requests.running)) == len(CLIENT_DIALECTS))
        with raw(gateway.port) as kept:  # a connection that is open already may still send a request, and gets the error
            kept.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"200" in kept.read_until(b"}")
    for thread in threads:
        thread.join()
    assert set(answers) == set(CLIENT_DIALECTS)
    for client, answer in answers.items():
        found = understood(client, answer)
        assert found.text == "Hello"
        assert found.error is not None
        assert "shutting down" in found.error


def test_no_exchange_slot_or_task_is_leaked(gateway: Running) -> None:
    """Runs after the tests above: no exchange, slot or task is left, but those of a gateway that nobody has asked."""
    core = gateway.gateway
    with running() as unused:
        until(
            lambda: not core.requests.running and "clock" in core.services.tasks.running == unused.gateway.services.tasks.running
        )
    assert core.access._limit.taken == 0
    assert all(turns.taken == 0 for turns in core.services.pool._limits.values())
    page = gateway.ask("/metrics").body
    assert b"streamglot_streams_open 0.0" in page
    assert msgspec.json.decode(gateway.ask("/ready").body)["status"] == "ready"


def test_keep_alives_do_not_hide_the_silence_of_an_upstream(upstream: HostileUpstream) -> None:
    upstream.scripts["silent-long"] = [head(), sse(text_chunk("Hello")), Hang()]
    limits = {**LONG_TIMEOUTS, "idle": 0.9}
    with running({"server": {"keep_alive_seconds": 0.1}, "upstreams": upstreams_at(upstream.url, timeouts=limits)}) as gateway:
        for client in ("openai_chat", "gemini"):
            found = asked(gateway, client, "work/silent-long")
            assert found.text == "Hello"
            assert found.error is not None
            assert "timeouts.idle" in found.error


# --- server.broken_stream


@pytest.fixture(scope="module")
def aborting(upstream: HostileUpstream) -> Iterator[Running]:
    with running({"server": {"broken_stream": "abort"}, "upstreams": upstreams_at(upstream.url)}) as started:
        yield started


STREAMS = ["openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "agui", "vercel_ui", "openai_completions"]


@pytest.mark.parametrize("client", STREAMS)
def test_a_broken_stream_is_cut_after_its_error(
    aborting: Running, gateway: Running, upstream: HostileUpstream, client: str
) -> None:
    upstream.scripts["breaks"] = unfinished(sse(text_chunk("Hello")))
    upstream.scripts["ends"] = streamed(sse(text_chunk("Hello"), END, DONE))
    broken, whole_one = ((path_of(client, f"work/{name}"), body_of(client, f"work/{name}")) for name in ("breaks", "ends"))
    usual = gateway.ask(*broken).body
    with pytest.raises(http.client.IncompleteRead) as failed:
        aborting.ask(*broken)
    assert b"Hello" in failed.value.partial
    assert b"truncated" in failed.value.partial or b"without the end" in failed.value.partial
    assert (b"[DONE]" in failed.value.partial, b"finishReason" in failed.value.partial) == (False, False)
    assert len(failed.value.partial) <= len(usual)
    assert aborting.ask(*whole_one).body.count(b"Hello") >= 1, "a stream that is whole ends as usual"


def test_an_interrupted_stream_is_cut_after_its_error(upstream: HostileUpstream) -> None:
    upstream.scripts["hangs"] = unfinished(sse(text_chunk("Hello")), end=Hang())
    upstreams = upstreams_at(upstream.url, timeouts={**LONG_TIMEOUTS, "idle": 0.4})
    asked = path_of("openai_chat", ""), body_of("openai_chat", "work/hangs")
    aborts = {"server": {"broken_stream": "abort"}, "upstreams": upstreams}
    with running(aborts) as gateway, pytest.raises(http.client.IncompleteRead) as failed:
        gateway.ask(*asked)
    assert (b"error" in failed.value.partial, b"[DONE]" in failed.value.partial) == (True, False)


@pytest.mark.parametrize("client", STREAMS)
def test_a_resumed_stream_is_cut_after_its_error(upstream: HostileUpstream, tmp_path: Path, client: str) -> None:
    upstream.scripts["breaks"] = unfinished(sse(text_chunk("Hello")))
    upstream.scripts["ends"] = streamed(sse(text_chunk("Hello"), END, DONE))
    store = {"url": f"sqlite:///{tmp_path}/kept.db"}
    settings = {"server": {"broken_stream": "abort"}, "store": store, "upstreams": upstreams_at(upstream.url)}
    asked = {name: (path_of(client, f"work/{name}"), body_of(client, f"work/{name}")) for name in ("breaks", "ends")}
    with running(settings) as gateway:
        finished = gateway.ask(*asked["ends"])
        again = gateway.ask(f"/v1/streams/{finished.headers['x-streamglot-stream']}")
        assert again.body == finished.body, "a stream that is whole ends as usual"
        with pytest.raises(http.client.IncompleteRead) as failed:
            gateway.ask(*asked["breaks"])
        broken = kept(store["url"], lambda found: len(found) == 2 and found[-1].ending)[-1].id
        with pytest.raises(http.client.IncompleteRead) as resumed:
            gateway.ask(f"/v1/streams/{broken}")
        assert resumed.value.partial == failed.value.partial
        assert "cut" not in again.headers
    with running(settings) as gateway, pytest.raises(http.client.IncompleteRead):  # another process
        gateway.ask(f"/v1/streams/{broken}?after=1")
    with running({**settings, "server": {}}) as gateway:
        assert gateway.ask(f"/v1/streams/{broken}").body == failed.value.partial


def test_a_retrieved_response_is_cut_after_its_error(upstream: HostileUpstream, tmp_path: Path) -> None:
    upstream.scripts["breaks"] = unfinished(sse(text_chunk("Hello")))
    store = {"url": f"sqlite:///{tmp_path}/kept.db"}
    settings = {"server": {"broken_stream": "abort"}, "store": store, "upstreams": upstreams_at(upstream.url)}
    with running(settings) as gateway:
        body = body_of("openai_responses", "work/breaks")
        with pytest.raises(http.client.IncompleteRead) as failed:
            gateway.ask(path_of("openai_responses", ""), body)
        ident = re.search(rb'"id":"(resp_[^"]+)"', failed.value.partial)
        assert ident is not None
        stream = f"/v1/responses/{ident[1].decode()}?stream=true"
        with pytest.raises(http.client.IncompleteRead) as resumed:
            gateway.ask(stream)
        assert resumed.value.partial == failed.value.partial
        whole_one = gateway.ask(path_of("openai_responses", ""), {**body, "stream": False})
        assert whole_one.status >= 400


def test_an_old_client_sees_the_cut_of_a_broken_stream(aborting: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["breaks"] = unfinished(sse(text_chunk("Hello")))
    body = msgspec.json.encode(body_of("openai_chat", "work/breaks"))
    with raw(aborting.port) as one:
        one.send(b"POST /v1/chat/completions HTTP/1.0\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        reset = False
        try:
            while one.socket.recv(2**16):
                pass
        except ConnectionResetError:
            reset = True
        assert reset, "a close would be the end of the answer"
