"""Streams that are resumed, completed without a client, and stopped."""

from __future__ import annotations

import random
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from gateway.archived import inside, store_of, with_store
from gateway.dialect_clients import CLIENT_DIALECTS, body_of, path_of, understood
from gateway.raw import RawClient
from gateway.running import Running
from gateway.stored_turns import keeping, kept, text_script
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, Until, whole
from store.turns import ask, begin, user
from streamglot.gateway.resumable import EVENT_IDS, Elements, Frames, NdjsonLines
from waiting import WAIT_SECONDS, until

WORDS = tuple(f"word {number} – „ü“\n" for number in range(30))
ARRAY = "/v1beta/models/{}:streamGenerateContent"
STREAM = "x-streamglot-stream"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway waits for the end of a stopped stream, and for the rest of an upstream's answer, as long as a busy machine needs."""
    for place in ("gateway.api.streams.ENDED_SECONDS", "upstream.http.connection.DRAIN_SECONDS"):
        monkeypatch.setattr(f"streamglot.{place}", WAIT_SECONDS)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kept.db"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A model of the test's own: the upstream is shared, and remembers."""
    return f"resumed-{zlib.crc32(request.node.name.encode())}"


def kinds() -> list[str]:
    return [*CLIENT_DIALECTS, "gemini array"]


def asked_as(kind: str, model: str) -> tuple[str, dict[str, Any]]:
    if kind == "gemini array":
        return ARRAY.format(model), body_of("gemini", model)
    return path_of(kind, model), body_of(kind, model)


@pytest.mark.parametrize("kind", kinds())
def test_a_stream_continues_after_any_event(upstream: HostileUpstream, url: str, kind: str) -> None:
    upstream.scripts["long"] = text_script(*WORDS)
    with keeping(upstream, url) as gateway:
        path, body = asked_as(kind, "work/long")
        answer = gateway.ask(path, body)
        assert answer.status == 200
        stream = f"/v1/streams/{answer.headers[STREAM]}"
        rest, number = answer.body, 0
        while rest:
            again = gateway.ask(f"{stream}?after={number}")
            assert (again.status, again.body) == (200, rest), number
            assert again.headers["content-type"] == answer.headers["content-type"]
            rest = EVENT_IDS[answer.headers["content-type"].partition(";")[0]].rest(rest, 1)
            number += 1
        assert number > len(WORDS)
        assert gateway.ask(f"{stream}?after={number}").body == b""
        assert gateway.ask(stream, headers={"last-event-id": str(number - 1)}).body
        for beyond in (number + 1, 10**30, "9" * 5000):
            refused = gateway.ask(f"{stream}?after={beyond}")
            assert (refused.status, refused.json()["error"]["code"]) == (400, "no_such_event")
            assert f" has {number} events" in refused.json()["error"]["message"]
        assert gateway.ask(f"{stream}?after=x").status == 400
        assert gateway.ask("/v1/streams/turn_no").status == 404


def test_numbers_are_in_the_frames_where_clients_take_them(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["long"] = text_script(*WORDS)
    with keeping(upstream, url) as gateway:
        for kind in ("agui", "vercel_ui"):
            frames = gateway.ask(*asked_as(kind, "work/long")).body.split(b"\n\n")[:-1]
            assert [frame.split(b"\n")[0] for frame in frames] == [b"id: %d" % number for number in range(1, len(frames) + 1)]
        responses = gateway.ask(*asked_as("openai_responses", "work/long")).body
        assert all(b'"sequence_number":%d' % number in frame for number, frame in enumerate(responses.split(b"\n\n")[:-1]))
        assert b"\nid:" not in gateway.ask(*asked_as("openai_chat", "work/long")).body


@pytest.mark.parametrize("kind", kinds())
def test_a_stream_with_keep_continues_without_its_client(upstream: HostileUpstream, url: str, name: str, kind: str) -> None:
    """The client hangs up in the middle; another one gets the rest, live, and both together have all of it."""
    go_on = threading.Event()
    upstream.scripts[name] = text_script(*WORDS[:5], Until(go_on), *WORDS[5:])
    upstream.scripts["whole"] = text_script(*WORDS)
    with keeping(upstream, url) as gateway:
        path, body = asked_as(kind, f"work/{name}")
        client = RawClient(gateway.port)
        client.post(path, body, {"x-streamglot-keep": "true"})
        came = client.read_until(b"word 4")
        client.hang_up()
        head, _, _ = came.partition(b"\r\n\r\n")
        names = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        upstream_saw = upstream.wait_for(name)
        results: list[Any] = []
        reader = threading.Thread(target=lambda: results.append(gateway.ask(f"/v1/streams/{names[STREAM]}?after=3")))
        reader.start()
        go_on.set()
        reader.join(WAIT_SECONDS)
        whole = gateway.ask(f"/v1/streams/{names[STREAM]}")
        (answer,) = results
        numbering = EVENT_IDS[whole.headers["content-type"].partition(";")[0]]
        assert answer.body == numbering.rest(whole.body, 3)
        assert not upstream_saw.closed
        (turn,) = kept(url)
        assert turn.ending == "end"
        assert turn.response is not None
        assert turn.response.choices[0].text == "".join(WORDS)
        if kind in CLIENT_DIALECTS:
            assert understood(kind, whole).text.strip() == "".join(WORDS).strip()


@pytest.mark.parametrize("keep", [True, False])
def test_the_keep_field_is_not_sent_upstream(upstream: HostileUpstream, url: str, name: str, keep: bool) -> None:
    upstream.scripts[name] = text_script("Hi")
    with keeping(upstream, url) as gateway:
        assert gateway.ask("/v1/chat/completions", {**body_of("openai_chat", f"work/{name}"), "keep": keep}).status == 200
        assert "keep" not in upstream.wait_for(name).body


@pytest.mark.parametrize("kind", ["openai_chat", "openai_responses", "anthropic", "gemini", "ollama"])
@pytest.mark.parametrize("store", [True, False])
def test_no_upstream_sees_the_name_of_the_session(upstream: HostileUpstream, url: str, name: str, kind: str, store: bool) -> None:
    """Not even one of the client's own dialect, which is sent the fields that only this dialect knows."""
    with keeping(upstream, url if store else "none") as gateway:
        gateway.ask(
            path_of(kind, f"{UPSTREAM_NAMES[kind]}/{name}"),
            {**body_of(kind, f"{UPSTREAM_NAMES[kind]}/{name}"), "session_id": "mine", "more_of_it": 1},
        )
        sent = upstream.wait_for(name).body
        assert {"more_of_it", "moreOfIt"} & set(sent)
        assert not {"session_id", "sessionId"} & set(sent)


def test_a_whole_answer_is_kept_going_too(upstream: HostileUpstream, url: str, name: str) -> None:
    upstream.scripts[name] = text_script("first", Until(go_on := threading.Event()), " second")
    with keeping(upstream, url) as gateway:
        client = RawClient(gateway.port)
        client.post("/v1/chat/completions?keep=true", body_of("openai_chat", f"work/{name}", False))
        upstream.wait_for(name, lambda seen: seen.sent)
        client.hang_up()
        kept(url, lambda found: found)
        go_on.set()
        (turn,) = kept(url)
        assert turn.response is not None
        assert (turn.ending, turn.response.choices[0].text) == ("end", "first second")


def test_a_failed_answer_is_stored_without_its_client(upstream: HostileUpstream, url: str, name: str) -> None:
    upstream.scripts[name] = [Until(go_on := threading.Event()), *whole({"error": {"message": "no"}}, status=400)]
    with keeping(upstream, url) as gateway:
        client = RawClient(gateway.port)
        client.post("/v1/chat/completions?keep=true", body_of("openai_chat", f"work/{name}", False))
        upstream.wait_for(name)
        client.hang_up()
        go_on.set()
        (turn,) = kept(url)
        assert (turn.ending, turn.error is not None and turn.error.status) == ("error", 400)


def test_without_keep_a_hang_up_stops_the_upstream(upstream: HostileUpstream, url: str, name: str) -> None:
    upstream.scripts[name] = text_script("first", Until(threading.Event()))
    with keeping(upstream, url) as gateway:
        client = RawClient(gateway.port)
        client.post("/v1/chat/completions", body_of("openai_chat", f"work/{name}"))
        came = client.read_until(b"first")
        client.hang_up()
        upstream.wait_for(name, lambda seen: seen.closed)
        stream = came.split(b"x-streamglot-stream: ")[1].split(b"\r\n")[0].decode()
        kept(url)
        again = gateway.ask(f"/v1/streams/{stream}")
        assert b"first" in again.body
        assert understood("openai_chat", again).code == "client_gone"


@pytest.mark.parametrize("kind", kinds())
def test_a_stream_whose_process_was_killed_ends_with_an_error(upstream: HostileUpstream, url: str, kind: str) -> None:
    upstream.scripts["long"] = text_script(*WORDS)
    with keeping(upstream, url) as gateway:
        whole = gateway.ask(*asked_as(kind, "work/long"))
        numbering = EVENT_IDS[whole.headers["content-type"].partition(";")[0]]
        begun = whole.body.removesuffix(numbering.rest(whole.body, 9))
        head = inside(gateway, store_of(gateway).buffer.head(whole.headers[STREAM]))

        async def killed(store: Any) -> str:
            turn = await begin(store, ask(user("q")))
            store.buffer.open(turn.id, "", lambda: None, lambda: None, head)
            store.buffer.append(turn.id, 1, 9, begun)
            await store.writer.flush()
            store.buffer._live.clear()
            return turn.id

        stream = with_store(url, killed)
        again = gateway.ask(f"/v1/streams/{stream}?after=3")
        assert again.status == 200
        assert again.body.startswith(numbering.rest(begun, 3))
        again.body = begun + again.body.removeprefix(numbering.rest(begun, 3))
        if kind == "gemini array":
            message = again.json()[-1]["error"]["message"]
        else:
            message = understood(kind, again).error or ""
        assert "ended before the stream did" in message
        if kind in ("agui", "vercel_ui"):
            assert b"\nid: 10\n" in again.body
        if kind == "openai_responses":
            assert b'"sequence_number":9}' in again.body
        gone = gateway.ask(f"/v1/streams/{stream}?after=9")
        assert (gone.status, gone.json()["error"]["code"]) == (502, "stream_lost")


@pytest.mark.parametrize("kind", kinds())
def test_a_stream_is_stopped_properly(upstream: HostileUpstream, url: str, name: str, kind: str) -> None:
    upstream.scripts[name] = text_script("first", Until(threading.Event()))
    with keeping(upstream, url) as gateway:
        path, body = asked_as(kind, f"work/{name}")
        client = RawClient(gateway.port)
        client.post(path, body)
        came = client.read_until(b"first")
        stream = came.split(b"x-streamglot-stream: ")[1].split(b"\r\n")[0].decode()
        reply = gateway.ask(f"/v1/streams/{stream}/stop", {})
        assert reply.json()["ended"] is True
        client.read_until(b"0\r\n\r\n")
        upstream.wait_for(name, lambda seen: seen.closed)
        (turn,) = kept(url)
        assert turn.ending == "cancelled"
        assert turn.error is None
        whole = gateway.ask(f"/v1/streams/{stream}")
        if kind in CLIENT_DIALECTS:
            read = understood(kind, whole)
            assert (read.text.strip(), read.error) == ("first", None)
        assert gateway.ask("/v1/streams/turn_no/stop", {}).status == 404


# --- in the background


def background(gateway: Running, model: str, **more: Any) -> dict[str, Any]:
    answer = gateway.ask("/v1/responses", {"model": f"work/{model}", "input": "q", "background": True, **more})
    assert answer.status == 200, answer.body
    reply: dict[str, Any] = answer.json()
    return reply


def response(gateway: Running, ident: str) -> dict[str, Any]:
    answer = gateway.ask(f"/v1/responses/{ident}")
    assert answer.status == 200, answer.body
    reply: dict[str, Any] = answer.json()
    return reply


def test_an_answer_in_the_background(upstream: HostileUpstream, url: str, name: str) -> None:
    go_on = threading.Event()
    upstream.scripts[name] = text_script("first", Until(go_on), " second")
    with keeping(upstream, url) as gateway:
        reply = background(gateway, name)
        assert (reply["status"], reply["background"], reply["output"]) == ("queued", True, [])
        assert response(gateway, reply["id"])["status"] in ("queued", "in_progress")
        assert "background" not in upstream.wait_for(name).body
        go_on.set()
        until(lambda: response(gateway, reply["id"])["status"] == "completed")
        done = response(gateway, reply["id"])
        assert done["output"][0]["content"][0]["text"] == "first second"
        stream = gateway.ask(f"/v1/responses/{reply['id']}?stream=true")
        assert understood("openai_responses", stream).text == "first second"
        later = gateway.ask(f"/v1/responses/{reply['id']}?stream=true&starting_after=4")
        assert later.body == Frames().rest(stream.body, 5)
        beyond = gateway.ask(f"/v1/responses/{reply['id']}?stream=true&starting_after=99")
        assert beyond.status == 400
        assert f"{reply['id']} has {Frames().count(stream.body)} events" in beyond.json()["error"]["message"]


def test_an_answer_in_the_background_is_cancelled(upstream: HostileUpstream, url: str, name: str) -> None:
    upstream.scripts[name] = text_script("first", Until(threading.Event()))
    with keeping(upstream, url) as gateway:
        reply = background(gateway, name)
        upstream.wait_for(name, lambda seen: seen.sent)
        cancelled = gateway.ask(f"/v1/responses/{reply['id']}/cancel", {})
        assert (cancelled.status, cancelled.json()["status"]) == (200, "cancelled")
        upstream.wait_for(name, lambda seen: seen.closed)
        assert response(gateway, reply["id"])["status"] == "cancelled"
        assert gateway.ask("/v1/responses/resp_no/cancel", {}).status == 404


def test_a_failed_background_response_reports_its_error(upstream: HostileUpstream, url: str) -> None:
    with keeping(upstream, url) as gateway:
        reply = background(gateway, "nobody")
        until(lambda: response(gateway, reply["id"])["status"] == "failed")
        assert "nobody" in response(gateway, reply["id"])["error"]["message"]
        assert understood("openai_responses", gateway.ask(f"/v1/responses/{reply['id']}?stream=true")).error


def test_background_responses_need_a_store(upstream: HostileUpstream) -> None:
    with keeping(upstream, "none") as gateway:
        answer = gateway.ask("/v1/responses", {"model": "work/x", "input": "q", "background": True})
        assert answer.status == 400
        assert "store.url" in answer.json()["error"]["message"]


# --- numbers


def test_events_are_counted_as_clients_count_them() -> None:
    frames = b'data: {"a":"b"}\n\n: comment\n\nevent: x\ndata: 2\n\n: again\n\n'
    assert Frames().count(frames) == 2
    assert Frames().rest(frames, 1) == b": comment\n\nevent: x\ndata: 2\n\n: again\n\n"
    assert Frames().rest(frames, 2) == b": again\n\n"
    numbered = b'id: 7\ndata: {"a":"b"}\n\n: comment\n\nid: 8\nevent: x\ndata: 2\n\n: again\n\n'
    assert Frames().numbered(frames, 6) == (numbered, 8)
    assert Frames().count(b": only\n\n") == 0
    lines = b'{"a":1}\n{"b":2}\n'
    assert (NdjsonLines().count(lines), NdjsonLines().rest(lines, 1), NdjsonLines().rest(lines, 2)) == (2, b'{"b":2}\n', b"")
    array = b'[{"a":[{"x":1}]},\r\n{"b":2},\r\n{"c":3}]'
    assert Elements().count(array) == 4
    assert [Elements().rest(array, skipped) for skipped in range(1, 5)] == [
        b',\r\n{"b":2},\r\n{"c":3}]',
        b',\r\n{"c":3}]',
        b"]",
        b"",
    ]
    chance = random.Random(3)
    pieces = [chance.choice((b"data: x\n\n", b": c\n\n", b"event: a\ndata: b\ndata: c\n\n")) for _ in range(200)]
    whole = b"".join(pieces)
    for at in range(201):
        before, after = b"".join(pieces[:at]), b"".join(pieces[at:])
        assert Frames().count(before) + Frames().count(after) == Frames().count(whole)


def test_a_page_that_is_loaded_again_finds_its_answer(upstream: HostileUpstream, url: str, name: str) -> None:
    go_on = threading.Event()
    upstream.scripts[name] = text_script("first", Until(go_on), " second")
    with keeping(upstream, url) as gateway:
        assert gateway.ask("/ui/chat-7/stream").status == 204
        client = RawClient(gateway.port)
        client.post("/ui?keep=true", {**body_of("vercel_ui", f"work/{name}"), "id": "chat-7"})
        client.read_until(b"first")
        client.hang_up()
        kept(url, lambda found: found)
        page = RawClient(gateway.port)
        page.send(b"GET /ui/chat-7/stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        came = page.read_until(b"first")
        go_on.set()
        came += page.read_until(b"[DONE]")
        assert b"text-start" in came
        assert b" second" in came
        kept(url)
        assert gateway.ask("/ui/chat-7/stream").status == 204
