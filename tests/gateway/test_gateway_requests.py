"""What a client may send: conversations that are there, bodies that are compressed, addresses as clients have them."""

from __future__ import annotations

import gzip
import socket
import threading
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import brotli  # type: ignore[import-untyped]
import msgspec
import openai
import pytest
import zstandard

from gateway.conftest import upstreams_at
from gateway.dialect_clients import body_of, path_of
from gateway.raw import raw
from gateway.running import Running, running
from gateway.scenarios import DONE, END, text_chunk
from gateway.upstream import UPSTREAM_NAMES, Hang, HostileUpstream, Until, sse, streamed, whole
from streamglot.gateway.http import encodings

FIELD = {"openai_responses": "input", "gemini": "contents"}
NAMED = ("openai_chat", "openai_responses", "anthropic", "gemini", "agui", "vercel_ui")
WRONG = {
    "missing": None,
    "null": None,
    "an empty list": [],
    "text": "q",
    "a number": 5,
    "an object": {"a": 1},
    "a list of numbers": [1],
}
MEANT = {("openai_responses", "text"), ("gemini", "text"), ("gemini", "an object")}
"""What some dialects accept as a conversation."""


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("upstream_dialect", ["openai_chat", "ollama"])
@pytest.mark.parametrize("client", NAMED)
def test_a_request_without_a_conversation_is_refused_by_its_field(
    gateway: Running, upstream: HostileUpstream, client: str, upstream_dialect: str, stream: bool
) -> None:
    name = f"nothing-{client}-{stream}"
    model, field = f"{upstream_dialect}/{name}", FIELD.get(client, "messages")
    for about, value in WRONG.items():
        if (client, about) in MEANT:
            continue
        body: dict[str, Any] = {**body_of(client, model, stream), field: value}
        if about == "missing":
            del body[field]
        found = gateway.ask(path_of(client, model, stream), body)
        assert found.status == 400, (about, found)
        assert field in found.body.decode(), (about, found)
    assert not upstream.requests(name)


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/responses/compact"])
def test_other_requests_need_a_conversation_too(gateway: Running, path: str) -> None:
    found = gateway.ask(path, {"model": "work/x"})
    assert (found.status, b"must have at least one entry" in found.body) == (400, True)


def test_an_empty_conversation_that_has_a_meaning_is_sent(gateway: Running, upstream: HostileUpstream) -> None:
    loaded = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", "content": ""}}
    upstream.scripts["loads"] = whole({**loaded, "done_reason": "load", "done": True})
    empty: list[dict[str, Any]] = [{}, {"messages": []}]
    for body in empty:
        found = gateway.ask("/api/chat", {"model": "box/loads", "stream": False, **body})
        assert (found.status, found.json()["done_reason"]) == (200, "load")
    upstream.scripts["continues"] = whole({"id": "resp_2", "object": "response", "status": "completed", "output": []})
    with running({"upstreams": upstreams_at(upstream.url), "store": {"url": "none"}}) as bare:  # a store has its own
        for field, value in (("previous_response_id", "resp_1"), ("prompt", {"id": "pmpt_1"}), ("conversation", "conv_1")):
            for asked in (bare, gateway) if field == "prompt" else (bare,):
                before = len(upstream.requests("continues"))
                asked.ask("/v1/responses", {"model": "lab/continues", field: value})
                assert [seen.body[field] for seen in upstream.requests("continues")[before:]] == [value]


# --- bodies

CHAT = "/v1/chat/completions"


def bare(data: bytes) -> bytes:
    box = zlib.compressobj(wbits=-15)
    return box.compress(data) + box.flush()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zstd_stream(data: bytes) -> bytes:
    """Without the size of the content in its head."""
    box = zstandard.ZstdCompressor().compressobj()
    return box.compress(data) + box.flush()


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "two members": ("GZIP", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", bare),
    "both": ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
    "identity": ("identity", bytes),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstd),
    "zstd stream": ("zstd", zstd_stream),
    "two frames": ("ZSTD", lambda data: zstd(data[:9]) + zstd_stream(data[9:])),
    "br and zstd": ("br, zstd", lambda data: zstd(brotli.compress(data))),
}


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "gemini"])
def test_compressed_bodies_are_read(gateway: Running, upstream: HostileUpstream, client: str, coding: str) -> None:
    upstream.scripts["compressed"] = streamed(sse(text_chunk("Hello"), END, DONE))
    word, compress = CODINGS[coding]
    model = "work/compressed"
    body = compress(msgspec.json.encode({**body_of(client, model), "user": "x" * 9_000}))
    found = gateway.ask(path_of(client, model), body, {"content-encoding": word})
    assert (found.status, b"Hello" in found.body) == (200, True), found


UNREADABLE: list[tuple[str, Callable[[], bytes], int, bytes]] = [
    ("snappy", lambda: b"{}", 415, b"gzip"),
    ("gzip, gzip, gzip", lambda: b"{}", 415, b"gzip"),
    ("gzip", lambda: b"{}", 400, b"not valid gzip"),
    ("deflate", lambda: b"\xff\xff", 400, b"not valid deflate"),
    ("gzip", lambda: gzip.compress(b"{" + b" " * 9_000)[:-12], 400, b"ends too early"),
    ("gzip", lambda: gzip.compress(bytes(2**21)), 413, b"times its size"),
    ("gzip, gzip", lambda: gzip.compress(gzip.compress(bytes(2**28))), 413, b"larger than the limit"),
    ("gzip", lambda: gzip.compress(b"") * 2**16, 400, b"more than 10000 parts"),
    ("br", lambda: b"\xff\xff", 400, b"not valid br"),
    ("br", lambda: brotli.compress(msgspec.json.encode(list(range(9_000))))[:-12], 400, b"ends too early"),
    ("br", lambda: brotli.compress(bytes(2**21)), 413, b"times its size"),
    ("br, br", lambda: brotli.compress(brotli.compress(bytes(2**28), quality=1)), 413, b"times its size"),
    ("zstd", lambda: b"\xff\xff", 400, b"not valid zstd"),
    ("zstd", lambda: zstd(msgspec.json.encode(list(range(9_000))))[:-12], 400, b"ends too early"),
    ("zstd", lambda: zstd_stream(msgspec.json.encode(list(range(9_000))))[:-1], 400, b"ends too early"),
    ("zstd", lambda: zstd(bytes(2**21)), 413, b"times its size"),
    ("zstd", lambda: zstd_stream(bytes(2**21)), 413, b"times its size"),
]
"""How the body is coded, the body, and the answer."""


@cache
def unreadable(number: int) -> bytes:
    """Compressing them takes a second, too long for the import of this module."""
    return UNREADABLE[number][1]()


@pytest.mark.parametrize("number", range(len(UNREADABLE)))
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/embeddings", "/v1/messages/count_tokens"])
def test_bodies_that_cannot_be_read_are_refused(gateway: Running, path: str, number: int) -> None:
    word, _, status, says = UNREADABLE[number]
    found = gateway.ask(path, unreadable(number), {"content-encoding": word})
    assert (found.status, says in found.body) == (status, True), found
    assert b"error" in found.body


def test_a_compressed_body_keeps_the_limit_for_bodies() -> None:
    noise = msgspec.json.encode({"messages": "".join(map(str, range(20_000)))})
    with running({"server": {"max_body_bytes": 60_000}, "upstreams": {}}) as gateway:
        for word, compress in CODINGS.values():
            found = gateway.ask(CHAT, compress(noise), {"content-encoding": word})
            assert (found.status, b"max_body_bytes" in found.body) == (413, True), word


def test_a_coding_without_its_library_is_refused(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(encodings, "_found", {})
    monkeypatch.setattr(encodings, "import_module", missing)
    for word in ("br", "zstd"):
        found = gateway.ask(CHAT, b"x", {"content-encoding": word})
        assert (found.status, b"with one of: gzip, x-gzip, deflate" in found.body) == (415, True)


def test_a_library_whose_output_has_no_limit_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of ``brotli`` before 1.2 decode a body of any size."""
    monkeypatch.delattr(brotli, "Decompressor")
    assert "br" not in encodings.decoders()


def test_a_byte_order_mark_before_json_is_skipped(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["marked"] = streamed(sse(text_chunk("Hello"), END, DONE))
    body = b"\xef\xbb\xbf" + msgspec.json.encode(body_of("openai_chat", "work/marked"))
    assert b"Hello" in gateway.ask(CHAT, body).body


@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "gemini", "ollama", "openai_responses"])
def test_the_listed_name_of_a_model_works_everywhere(upstream: HostileUpstream, client: str) -> None:
    upstream.scripts["x"] = streamed(sse(text_chunk("Hello"), END, DONE))
    there = {"dialect": "openai_chat", "base_url": f"{upstream.url}/v1", "models": ["x"]}
    with running({"upstreams": {"work": there}}) as gateway:
        listed = [model["name"] for model in gateway.ask("/v1beta/models").json()["models"]]
        assert "models/x" in listed
        for model in ("x", "models/x"):
            found = gateway.ask(path_of(client, model), body_of(client, model))
            assert (found.status, b"Hello" in found.body) == (200, True), found
        assert gateway.ask("/v1/models/models/x").status == 200


# --- a client that sends no more


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "gemini", "ollama"])
def test_a_client_that_has_closed_its_sending_half_gets_its_answer(
    gateway: Running, upstream: HostileUpstream, client: str, stream: bool
) -> None:
    go_on = threading.Event()
    upstream.scripts["patient"] = streamed(sse(text_chunk("Hel")), Until(go_on), sse(text_chunk("lo"), END, DONE))
    model = "work/patient"
    with raw(gateway.port) as one:
        one.post(path_of(client, model, stream), body_of(client, model, stream))
        one.socket.shutdown(socket.SHUT_WR)
        if stream:
            one.read_until(b"Hel")
        go_on.set()
        answer = one.read_all()
    assert b"lo" in answer
    assert stream or b"HTTP/1.1 200" in answer
    assert b"Connection" not in answer


def test_a_page_is_sent_to_a_client_that_has_closed_its_sending_half(gateway: Running) -> None:
    with raw(gateway.port) as one:
        one.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        one.socket.shutdown(socket.SHUT_WR)
        answer = one.read_all()
    assert answer.startswith(b"HTTP/1.1 200")
    assert (answer.count(b"HTTP/1.1 200"), b'"data"' in answer) == (2, True)


def test_a_client_that_is_there_gets_its_late_answer(gateway: Running, upstream: HostileUpstream) -> None:
    """The gateway asks the connection whether the client is there, in the way that HTTP allows before an answer."""
    go_on = threading.Event()
    upstream.scripts["late"] = [
        Until(go_on),
        *whole({"id": "c", "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}),
    ]
    with raw(gateway.port) as one:
        one.post(CHAT, body_of("openai_chat", "work/late", stream=False))
        one.socket.shutdown(socket.SHUT_WR)
        assert one.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        go_on.set()
        assert one.read_all().startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("started", [True, False])
def test_a_client_that_is_gone_stops_the_upstream(gateway: Running, upstream: HostileUpstream, started: bool) -> None:
    model = f"gone-{started}"
    upstream.scripts[model] = streamed(sse(text_chunk("Hello")), Hang()) if started else [Hang()]
    with raw(gateway.port) as one:
        one.post(CHAT, body_of("openai_chat", f"work/{model}"))
        upstream.wait_for(model)
        if started:
            one.read_until(b"Hello")
    upstream.wait_for(model, lambda seen: seen.closed)


# --- addresses


def test_chat_clients_that_are_configured_for_google_are_served(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["compatible"] = streamed(sse(text_chunk("Hello"), END, DONE))
    client = openai.OpenAI(base_url=f"{gateway.url}/v1beta/openai/", api_key="key", max_retries=0)
    stream = client.chat.completions.create(
        model=f"models/{UPSTREAM_NAMES['openai_chat']}/compatible", messages=[{"role": "user", "content": "q"}], stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello"
    assert [model.id for model in client.models.list()] == [model["id"] for model in gateway.ask("/v1/models").json()["data"]]
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="work/compatible", messages=[])
    with pytest.raises(openai.NotFoundError) as refused:
        client.get("/nothing", cast_to=object)
    assert refused.value.response.json()["error"]["message"].startswith("there is no endpoint")
