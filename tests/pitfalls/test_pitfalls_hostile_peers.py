"""Hostile peers: what an upstream or a client sends never becomes a secret that leaks, an address or a label."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agents.turns import Turn
from agents.wires import streamed as wire
from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, body_of, in_turn, path_of
from gateway.running import Running, running
from gateway.scenarios import DONE, PLAIN
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, Script, sse, streamed, unfinished, whole
from gateway.websocket_client import TERMINAL, websocket

KEY = "zq-9f8e7d6c5b4a-0123456789"
MESSAGE = f"Incorrect API key provided: {KEY}"
WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "openai_completions")
BODIES: dict[str, Any] = {
    "openai_chat": {"error": {"message": MESSAGE, "type": "invalid_request_error", "code": KEY}},
    "openai_responses": {"type": "error", "code": KEY, "message": MESSAGE, "error": {"message": MESSAGE}},
    "anthropic": {"type": "error", "error": {"type": "authentication_error", "message": MESSAGE}},
    "gemini": {"error": {"code": 401, "message": MESSAGE, "status": KEY, "details": [{"reason": KEY}]}},
    "ollama": {"error": MESSAGE},
    "openai_completions": {"error": {"message": MESSAGE, "param": KEY}},
}


@pytest.fixture(scope="module")
def guarded(upstream: HostileUpstream) -> Iterator[Running]:
    with running({"upstreams": upstreams_at(upstream.url, key=KEY, breaker={"failures": 10**9})}) as started:
        yield started


def _begun(via: str) -> bytes:
    if via == "openai_completions":
        return sse({"id": "c", "choices": [{"index": 0, "text": "Hello"}]})
    pieces = wire(via, Turn(text="Hello and more"), "m")
    place = next(number for number, piece in enumerate(pieces) if b"Hello" in piece)
    return b"".join(pieces[: place + 1])


def _scripts(via: str) -> dict[str, Script]:
    body, media = json.dumps(BODIES[via]).encode(), "application/x-ndjson" if via == "ollama" else "text/event-stream"
    frame = body + b"\n" if via == "ollama" else b"event: error\ndata: " + body + b"\n\n"
    scripts: dict[str, Script] = {
        "status": whole(body, 401),
        "first": streamed(frame, media_type=media),
        "later": streamed(_begun(via) + frame, media_type=media),
        "not_json": unfinished(_begun(via) + b"data: {" + MESSAGE.encode() + b"\n\n", media_type=media),
    }
    if via != "ollama":
        scripts["comment"] = streamed(b": " + MESSAGE.encode() + b"\n\n" + _begun(via) + b": " + MESSAGE.encode() + b"\n\n")
    return scripts


@pytest.mark.parametrize(("via", "client"), in_turn(WIRES, CLIENT_DIALECTS))
def test_a_key_that_an_upstream_repeats_reaches_no_client(
    guarded: Running, upstream: HostileUpstream, via: str, client: str
) -> None:
    """Elsewhere some words counted as a sign that an error had been cleaned already, and an upstream could say them."""
    for kind, script in _scripts(via).items():
        name = f"repeats-{via}-{kind}"
        upstream.scripts[name] = script
        for stream in (True, False) if client not in STREAMS_ONLY else (True,):
            answer = guarded.ask(
                path_of(client, f"{UPSTREAM_NAMES[via]}/{name}", stream), body_of(client, f"{UPSTREAM_NAMES[via]}/{name}", stream)
            )
            assert KEY.encode() not in answer.body, (kind, stream)
            assert KEY not in str(answer.headers)
    assert KEY not in str(guarded.lines)
    assert KEY.encode() not in guarded.ask("/metrics").body


def test_a_key_that_an_upstream_repeats_reaches_no_batch(guarded: Running, upstream: HostileUpstream) -> None:
    items = []
    for kind, script in _scripts("openai_chat").items():
        upstream.scripts[f"batch-repeats-{kind}"] = script
        payload = {"model": f"work/batch-repeats-{kind}", "prompt": "q"}
        items.append({"id": kind, "type": "chat_completion", "payload": payload})
    answer = guarded.ask("/v1/batch", {"requests": items})
    assert KEY.encode() not in answer.body
    assert b"Incorrect API key" in answer.body, answer.body


def test_a_key_that_an_upstream_repeats_reaches_no_websocket(guarded: Running, upstream: HostileUpstream) -> None:
    for kind, script in _scripts("openai_chat").items():
        upstream.scripts[f"socket-repeats-{kind}"] = script
        with websocket(guarded.port) as client:
            client.create(model=f"work/socket-repeats-{kind}")
            messages = [client.message()]
            while messages[-1]["type"] not in TERMINAL:
                messages.append(client.message())
        assert KEY not in json.dumps(messages)


def test_names_that_clients_and_upstreams_invent_become_no_label(guarded: Running, upstream: HostileUpstream) -> None:
    """An error code from outside became a label of a metric; so would the name of a model, a request or a session."""

    def ask(number: int) -> None:
        name = f"invented-{number}"
        upstream.scripts[name] = streamed(PLAIN) if number % 2 else whole({"error": {"code": name, "message": name}}, 418)
        headers = {"x-request-id": name, "x-session-id": name, "x-streamglot-tools": name, "user-agent": name}
        guarded.ask("/v1/chat/completions", body_of("openai_chat", f"work/{name}"), headers)

    def series() -> set[str]:
        return {line.partition(" ")[0] for line in guarded.ask("/metrics").body.decode().splitlines()}

    ask(0)  # the first answer and the first error of a gateway begin their series
    ask(1)
    before = series()
    for number in range(2, 22):
        ask(number)
    after = series()
    assert not [line for line in after if "invented" in line]
    assert len(after - before) < 12


ODD_NAMES = ("..%2f..%2fsecret", "%2e%2e/secret", "a\\..\\secret", "a;/../secret", "a?key=1", "a#b", "a%00b")


@pytest.mark.parametrize("client", ["openai_chat", "gemini", "anthropic"])
def test_an_encoded_path_in_the_name_of_a_model_stays_a_name(upstream: HostileUpstream, client: str) -> None:
    upstreams = {"google": {"dialect": "gemini", "base_url": f"{upstream.url}/base", "attempts": 1}}
    with running({"upstreams": upstreams}) as gateway:
        before = len(upstream.seen)
        for name in ODD_NAMES:
            quoted = name.replace("%", "%25").replace("?", "%3F").replace("#", "%23").replace("\\", "%5C")
            gateway.ask(path_of(client, f"google/{quoted if client == 'gemini' else name}"), body_of(client, f"google/{name}"))
        for seen in upstream.seen[before:]:
            path, _, query = seen.path.partition("?")
            assert path.startswith("/base/models/")
            assert not {"..", ".", ""} & set(path.split("/")[1:])
            assert "key=1" not in query
            assert DONE not in path
