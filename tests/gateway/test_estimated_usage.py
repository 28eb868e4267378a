"""Estimated usage of answers whose upstream did not report it, for example because the client hung up early."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.archived import with_store
from gateway.conftest import upstreams_at
from gateway.dialect_clients import body_of
from gateway.raw import RawClient
from gateway.running import Running, running
from gateway.stored_turns import USAGE, chunk, keeping, kept, text_script
from gateway.upstream import Hang, HostileUpstream, Step, Until, sse, streamed, unfinished, whole
from streamglot.engine.stats import estimate, estimated_usage
from streamglot.gateway.auth.authenticator import digest_of
from streamglot.messages import Part
from vocabulary import *
from waiting import until

KEY = "sesame"
CHAT = "/v1/chat/completions"
SMALL = {"keys": [{"name": "small", "hash": digest_of(KEY), "tokens_per_minute": 5}]}
LONG = "word " * 200
ASKED = Request(messages=[Message("user", [TextPart("x" * 36)])])


def asking(model: str, **more: Any) -> dict[str, Any]:
    return {**body_of("openai_chat", f"work/{model}"), "messages": [{"role": "user", "content": LONG}], **more}


def hung_up(gateway: Running, body: dict[str, Any], mark: bytes = b"first") -> None:
    """Asks, reads so far, and hangs up."""
    client = RawClient(gateway.port)
    client.post(CHAT, body, {"x-api-key": KEY, "x-request-id": "gone"})
    if mark:
        client.read_until(mark)
    client.hang_up()
    assert gateway.line("gone")["ending"] == "client_gone"


def refused(gateway: Running) -> bool:
    return gateway.ask(CHAT, asking("told"), {"x-api-key": KEY}).status == 429


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kept.db"


# --- limits of a key


def test_a_disconnect_before_the_end_is_counted(upstream: HostileUpstream) -> None:
    upstream.scripts["slow"] = text_script("first", Until(threading.Event()))
    with running({"server": SMALL, "upstreams": upstreams_at(upstream.url)}) as gateway:
        hung_up(gateway, asking("slow"))
        assert refused(gateway)


def test_a_disconnect_before_the_first_text_is_counted(upstream: HostileUpstream) -> None:
    upstream.scripts["thinks"] = [Hang()]
    with running({"server": SMALL, "upstreams": upstreams_at(upstream.url)}) as gateway:
        client = RawClient(gateway.port)
        client.post(CHAT, asking("thinks"), {"x-api-key": KEY, "x-request-id": "gone"})
        upstream.wait_for("thinks")
        client.hang_up()
        gateway.line("gone")
        assert refused(gateway)


@pytest.mark.parametrize("stream", [True, False])
def test_usage_that_the_upstream_does_not_report_is_estimated(upstream: HostileUpstream, stream: bool) -> None:
    upstream.scripts["silent"] = streamed(chunk({"content": LONG}), chunk({}, "stop"), sse("[DONE]"))
    with running({"server": SMALL, "upstreams": upstreams_at(upstream.url)}) as gateway:
        body = {"model": "work/silent", "stream": stream, "messages": [{"role": "user", "content": "q"}]}
        answer = gateway.ask(CHAT, body, {"x-api-key": KEY, "x-request-id": "done"})
        assert answer.status == 200
        assert b'"usage":{' not in answer.body  # the client gets the upstream's own usage
        assert gateway.line("done")["output_tokens"] is None
        assert refused(gateway)


def test_requests_that_no_upstream_answered_cost_nothing(upstream: HostileUpstream) -> None:
    upstream.scripts["refused"] = whole({"error": {"message": "no"}}, 404)
    upstream.scripts["told"] = text_script("hello")
    with running({"server": SMALL, "upstreams": upstreams_at(upstream.url)}) as gateway:
        for number in range(3):
            answer = gateway.ask(CHAT, asking("refused"), {"x-api-key": KEY, "x-request-id": f"{number}"})
            assert answer.status == 404
            gateway.line(f"{number}")
        assert not refused(gateway)


def test_an_answer_from_the_cache_costs_nothing(upstream: HostileUpstream) -> None:
    upstream.scripts["silent"] = streamed(chunk({"content": "word"}), chunk({}, "stop"), sse("[DONE]"))
    keys = {"keys": [{"name": "small", "hash": digest_of(KEY), "tokens_per_minute": 1000}]}
    routes = [{"models": ["cached"], "to": [{"upstream": "work", "model": "silent"}], "cache_seconds": 600.0}]
    with running({"server": keys, "upstreams": upstreams_at(upstream.url), "routes": routes}) as gateway:
        body = {"model": "cached", "messages": [{"role": "user", "content": LONG}]}
        for number in range(6):  # more than the minute has room for
            answer = gateway.ask(CHAT, body, {"x-api-key": KEY, "x-request-id": f"{number}"})
            assert answer.status == 200
            assert answer.headers["x-streamglot-cache"] == ("hit" if number else "miss")
            gateway.line(f"{number}")


# --- what is kept


@pytest.mark.parametrize("content", [True, False])
def test_the_kept_usage_is_marked_as_an_estimate(upstream: HostileUpstream, url: str, content: bool) -> None:
    steps: list[Step] = [chunk({"content": "word " * 9}) for _ in range(8)]
    upstream.scripts["slow"] = streamed(*steps, chunk({"content": "first"}), Until(threading.Event()))
    with keeping(upstream, url, store={"content": content}) as gateway:
        hung_up(gateway, asking("slow"))
        (turn,) = kept(url)
    assert turn.more["estimated"] is True
    assert turn.client_response is None or turn.client_response.usage == TokenCounts()
    assert turn.usage is not None
    assert turn.usage.input_tokens == 4 + round(len(LONG) / 3.6)
    assert turn.usage.output_tokens is not None
    if content:
        assert turn.usage.output_tokens == round((45 * 8 + 5) / 3.6)
    else:
        assert 9 <= turn.usage.output_tokens <= 12  # a token for each of its events


def test_reported_usage_is_stored_unchanged(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script(LONG)
    with keeping(upstream, url) as gateway:
        assert gateway.ask(CHAT, asking("told")).status == 200
        (turn,) = kept(url)
    assert "estimated" not in turn.more
    assert turn.usage == TokenCounts(3, 4, raw=USAGE)


def test_a_usage_report_at_the_start_is_not_final(upstream: HostileUpstream, url: str) -> None:
    """Some upstreams count the input at the start, and the first token of the output with it."""
    usage = {"input_tokens": 777, "output_tokens": 1, "cache_read_input_tokens": 0}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f"{LONG} first"}}
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    begun = b"".join(
        b"event: %b\n%b" % (str(event["type"]).encode(), sse(event))
        for event in ({"type": "message_start", "message": message}, start, text)
    )
    upstream.scripts["counts"] = unfinished(begun, end=Hang())
    with keeping(upstream, url) as gateway:
        hung_up(gateway, {**asking("counts"), "model": "claude/counts"})
        (turn,) = kept(url)
    assert turn.usage is not None
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (777, round((len(LONG) + 6) / 3.6))


def test_a_budget_counts_estimates(upstream: HostileUpstream, url: str) -> None:
    most = 4 + round(len(LONG) / 3.6) + 1  # the estimate of what is asked, and of one word
    secret = with_store(url, lambda store: store.keys.add("spender", budget_tokens=most, budget_seconds=86_400.0))[1]
    upstream.scripts["slow"] = text_script("first", Until(threading.Event()))
    upstream.scripts["refused"] = whole({"error": {"message": "no"}}, 404)
    with keeping(upstream, url) as gateway:
        client = RawClient(gateway.port)
        client.post(CHAT, asking("slow"), {"x-api-key": secret})
        client.read_until(b"first")
        client.hang_up()
        body = asking("refused")  # which costs nothing
        until(lambda: gateway.ask(CHAT, body, {"x-api-key": secret}).json()["error"]["code"] == "budget_exceeded")


def test_cached_answers_have_no_estimated_usage(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["silent"] = streamed(chunk({"content": "word"}), chunk({}, "stop"), sse("[DONE]"))
    routes = [{"models": ["cached"], "to": [{"upstream": "work", "model": "silent"}], "cache_seconds": 600.0}]
    with keeping(upstream, url, routes=routes) as gateway:
        body = {"model": "cached", "messages": [{"role": "user", "content": LONG}]}
        answers = [msgspec.json.decode(gateway.ask(CHAT, body).body) for _ in range(2)]
        kept(url, lambda found: len(found) == 2 and all(turn.ending for turn in found))
    assert [answer.get("usage") for answer in answers] == [None, None]


# --- the rule of thumb


def test_nothing_is_estimated_where_nothing_is_missing() -> None:
    assert estimated_usage(ASKED, None, 9, TokenCounts(3, 4), whole=True) is None
    assert estimated_usage(ASKED, None, 3, TokenCounts(3, 4), whole=False) is None
    assert estimated_usage(ASKED, None, 9, TokenCounts(0, 0), whole=True) is None


def test_known_counts_replace_estimates() -> None:
    assert estimated_usage(ASKED, None, 9, None, whole=False) == TokenCounts(14, 9)
    assert estimated_usage(ASKED, None, 9, TokenCounts(None, 4), whole=True) == TokenCounts(14, 4)
    assert estimated_usage(ASKED, None, 9, TokenCounts(3, None, 2, raw={"a": 1}), whole=True) == TokenCounts(
        3, 9, 2, raw={"a": 1}
    )
    assert estimated_usage(ASKED, None, 9, TokenCounts(0, 1), whole=False) == TokenCounts(14, 9)


def test_all_parts_of_an_answer_are_counted() -> None:
    parts: list[Part] = [
        TextPart("x" * 9),
        ReasoningPart("x" * 9),
        RefusalPart("é" * 9),
        ToolCallPart("c", "name", "{}"),
        MediaPart(data="x" * 99),
    ]
    response = Response(choices=[ResponseChoice(0, parts), ResponseChoice(1, [TextPart("\ud800" * 6)])])
    found = estimated_usage(ASKED, response, 999, None, whole=True)
    assert found == TokenCounts(estimate(ASKED), round((9 + 9 + 18 + 6 + 6) / 3.6))
