"""An upstream that repeats its own key inside an answer: clients, store, bytes and exports do not get it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, body_of, path_of
from gateway.running import running
from gateway.scenarios import DONE, END, called, calls, chunk, text_chunk
from gateway.stored_turns import keeping, kept
from gateway.upstream import HostileUpstream, Pause, Step, sse, streamed, whole
from streamglot.engine.turn_recorder import _without
from streamglot.events import Citation, Echo, Extra
from streamglot.messages import NativePart, Response, ResponseChoice, TextPart, TokenCounts, ToolCallPart
from streamglot.upstream import Upstream
from streamglot.upstream.secrets import SecretMask, is_unmistakable

KEY = "zq-9f8e7d6c5b4a-0123456789"
PLACEHOLDER = "ollama-local"
MORE = ("", "/raw?format=bytes", "/raw?format=jsonl", "/export", "/export?format=markdown", "/inspect")
ANSWER = sse(
    chunk({"reasoning_content": f"It is {KEY}."}),
    text_chunk(f"my key is {KEY}, yes"),
    calls(called(0, "call_a", "weather", f'{{"city":"{KEY}"}}')),
    chunk({}, "tool_calls"),
    DONE,
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kept.db"


@pytest.mark.parametrize("dialect", sorted(CLIENT_DIALECTS))
def test_a_client_does_not_get_the_key(upstream: HostileUpstream, dialect: str) -> None:
    upstream.scripts["repeats-key"] = streamed(ANSWER)
    with running({"upstreams": upstreams_at(upstream.url, key=KEY)}) as gateway:
        for stream in (True,) if dialect in STREAMS_ONLY else (True, False):
            model = "work/repeats-key"
            answer = gateway.ask(path_of(dialect, model, stream), body_of(dialect, model, stream, ("weather",)))
            assert answer.status == 200
            assert b"my key is" in answer.body
            assert KEY.encode() not in answer.body
            assert b"*" * len(KEY) in answer.body


def test_the_key_is_recognised_however_the_network_cuts_it(upstream: HostileUpstream) -> None:
    place = ANSWER.index(KEY.encode())
    with running({"upstreams": upstreams_at(upstream.url, key=KEY)}) as gateway:
        for cut in range(place - 1, place + len(KEY) + 1, 3):
            pieces: list[bytes | Step] = [ANSWER[:cut], Pause(0.005), ANSWER[cut : cut + 5], Pause(0.005), ANSWER[cut + 5 :]]
            upstream.scripts["cuts-key"] = streamed(*pieces)
            answer = gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/cuts-key", tools=("weather",)))
            assert KEY.encode() not in answer.body
            assert b", yes" in answer.body


@pytest.mark.parametrize("split", [False, True], ids=["in one piece", "in several"])
def test_stored_and_exported_turns_have_no_key(upstream: HostileUpstream, url: str, split: bool) -> None:
    if split:
        pieces = [text_chunk(letters) for letters in ("my key is ", KEY[:9], KEY[9:17], KEY[17:], ", yes")]
        upstream.scripts["stores-key"] = streamed(sse(*pieces, END, DONE))
    else:
        upstream.scripts["stores-key"] = streamed(ANSWER)
    with keeping(upstream, url, upstreams=upstreams_at(upstream.url, key=KEY), store={"raw": True}) as gateway:
        gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/stores-key", tools=("weather",)))
        (turn,) = kept(url)
        for path in ("/turns", "/search?q=key", *(f"/turns/{turn.id}{more}" for more in MORE)):
            body = gateway.ask(path).body
            assert KEY.encode() not in body, path
        shown = gateway.ask(f"/turns/{turn.id}/export").body
        assert b"my key is " + b"*" * len(KEY) + b", yes" in shown


ESCAPED = "".join(f"\\u{ord(letter):04X}" if letter in "z-9" else letter for letter in KEY)
EVERYWHERE: list[Any] = [
    {**text_chunk("my key is KKK, yes"), "id": "KKK", "model": "KKK", "system_fingerprint": "KKK"},
    chunk({"reasoning_content": "KKK"}),
    calls(called(0, "KKK", "KKK", '{"city":"KKK"}')),
    {**chunk({}, "tool_calls"), "usage": {"prompt_tokens": 1, "completion_tokens": 1, "KKK": "KKK"}},
]


@pytest.mark.parametrize("dialect", sorted(CLIENT_DIALECTS))
def test_a_client_does_not_get_a_key_with_escapes(upstream: HostileUpstream, dialect: str) -> None:
    body = sse(*EVERYWHERE, DONE).replace(b"KKK", ESCAPED.encode())
    upstream.scripts["escapes-key"] = streamed(body)
    cut = body.index(b"\\u") + 3
    upstream.scripts["cuts-escape"] = streamed(body[:cut], Pause(0.005), body[cut:])
    with running({"upstreams": upstreams_at(upstream.url, key=KEY)}) as gateway:
        for model in ("work/escapes-key", "work/cuts-escape"):
            for stream in (True,) if dialect in STREAMS_ONLY else (True, False):
                answer = gateway.ask(path_of(dialect, model, stream), body_of(dialect, model, stream, ("weather",)))
                assert answer.status == 200
                assert b"my key is" in answer.body
                assert KEY.encode() not in answer.body


def test_a_response_is_stored_without_a_key_in_any_field() -> None:
    echo = Echo("up", {"signature": f"sig-{KEY}", "other": "kept"})
    response = Response(
        id=KEY,
        model=f"m-{KEY}",
        choices=[
            ResponseChoice(
                0,
                [
                    TextPart(f"a {KEY}", citations=[Citation(url=f"http://x/{KEY}", title=KEY)], echo=echo),
                    ToolCallPart(KEY, KEY, f'{{"a":"{ESCAPED}"}}', echo=echo),
                    NativePart("d", {KEY: [{"deep": KEY}]}),
                ],
                raw_stop_reason=KEY,
                extras=[Extra("d", {"x": KEY})],
            )
        ],
        usage=TokenCounts(1, 2, raw={KEY: KEY, "n": 3}),
        extras=[Extra("d", {"x": KEY})],
    )
    masked = _without(response, [KEY])
    stars = "*" * len(KEY)
    text = msgspec.json.encode(masked).decode()
    assert KEY not in text
    assert KEY not in text.encode().decode("unicode_escape").encode().decode("unicode_escape")
    assert (masked.id, masked.model, masked.usage) == (stars, f"m-{stars}", TokenCounts(1, 2, raw={stars: stars, "n": 3}))
    assert type(masked.choices[0].parts[0]) is TextPart
    assert masked.choices[0].parts[0].echo == Echo("up", {"signature": f"sig-{stars}", "other": "kept"})
    assert _without(response, ["another-secret-0123456789"]) is response


def test_embeddings_and_counts_have_no_key(upstream: HostileUpstream) -> None:
    upstream.scripts["embeds-key"] = whole({"object": "list", "data": [], "input_tokens": 3, "note": KEY})
    with running({"upstreams": upstreams_at(upstream.url, key=KEY)}) as gateway:
        requests: list[tuple[str, dict[str, Any]]] = [
            ("/v1/embeddings", {"model": "work/embeds-key", "input": "q", "user": "u"}),
            ("/v1/messages/count_tokens", {"model": "claude/embeds-key", "messages": [{"role": "user", "content": "q"}]}),
        ]
        for path, body in requests:
            answer = gateway.ask(path, body)
            assert answer.status == 200
            assert b"note" in answer.body
            assert KEY.encode() not in answer.body


def test_a_placeholder_for_a_key_stays_in_the_answer(upstream: HostileUpstream) -> None:
    """It is a word, and no secret."""
    upstream.scripts["names-placeholder"] = streamed(sse(text_chunk(f"Set the key to {PLACEHOLDER}."), END, DONE))
    with running({"upstreams": upstreams_at(upstream.url, key=PLACEHOLDER)}) as gateway:
        answer = gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/names-placeholder"))
        assert PLACEHOLDER.encode() in answer.body


def test_which_secrets_are_looked_for_in_answers() -> None:
    assert is_unmistakable(KEY)
    for word in ("ollama", "not-needed-for-a-local-server", "0" * 30, KEY[:19]):
        assert not is_unmistakable(word), word
    upstream = Upstream(key=KEY, headers={"authorization": f"Bearer {KEY}-two"}, base_url=f"http://u:{KEY}-three@host/v1")
    assert set(upstream.live_secrets()) >= {KEY, f"{KEY}-two", f"{KEY}-three"}
    assert Upstream(key="none").live_secrets() == ()


def test_the_mark_of_a_mask_is_in_all_of_its_secrets() -> None:
    """A read without the mark is not searched."""
    for secrets in ([KEY], [KEY, f"Bearer {KEY}"], ["abcdef-1", "xyzxyz-2"], ["aaaaaa1", "bbbbbb2"], []):
        mark = SecretMask(secrets).mark
        assert all(mark in secret.encode() for secret in secrets) or mark == b"\n"[0]
