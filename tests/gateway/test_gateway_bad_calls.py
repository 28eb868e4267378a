"""Incomplete calls in the text of a model: no client may treat one as a call to run, or as a success."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, asked
from gateway.running import Running, running
from gateway.scenarios import DONE, END, text_chunk, usage
from gateway.upstream import HostileUpstream, sse, streamed
from streamglot.errors import BadCall

HALF = 'Ok. <tool_call>{"name": "weather", "arguments": {"city": "Pa</tool_call>'
BAD_CALLS: tuple[BadCall, ...] = ("incomplete", "text", "error")


@pytest.fixture(scope="module")
def named(upstream: HostileUpstream) -> Iterator[Running]:
    """One upstream for each value of ``bad_call``, and one that leaves it out."""
    upstream.scripts["half-call"] = streamed(sse(text_chunk(HALF[:20]), text_chunk(HALF[20:]), END, usage(5, 2), DONE))
    chat = {**upstreams_at(upstream.url, breaker={"failures": 1_000_000})["work"], "inband": "hermes"}
    upstreams = {name: {**chat, "bad_call": name} for name in BAD_CALLS}
    with running({"upstreams": {**upstreams, "default": chat}}) as gateway:
        yield gateway


def ways() -> list[tuple[str, bool]]:
    streams = [(client, True) for client in CLIENT_DIALECTS]
    return streams + [(client, False) for client in CLIENT_DIALECTS if client not in STREAMS_ONLY]


@pytest.mark.parametrize("bad_call", ["default", "incomplete", "error"])
@pytest.mark.parametrize(("client", "stream"), ways())
def test_half_a_call_is_an_error_and_no_call(named: Running, client: str, stream: bool, bad_call: str) -> None:
    found = asked(named, client, f"{bad_call}/half-call", stream)
    assert "Tool call parsing failed" in (found.error or "") or found.code == "tool_call_parse_error"
    assert found.calls == []
    assert found.finish not in ("end", "tool_calls")
    if stream:
        assert (found.status, found.text.strip()) == (200, "Ok.")
    else:
        assert found.status == 502


@pytest.mark.parametrize(("client", "stream"), ways())
def test_half_a_call_can_be_text(named: Running, client: str, stream: bool) -> None:
    found = asked(named, client, "text/half-call", stream)
    assert (found.error, found.calls, found.broken_calls) == (None, [], 0)
    assert found.text == HALF


def test_streamed_and_whole_answers_give_the_same_error(named: Running) -> None:
    for client in ("openai_chat", "openai_responses"):
        for stream in (True, False):
            assert asked(named, client, "default/half-call", stream).code == "tool_call_parse_error"


def test_a_broken_call_is_counted_as_an_error_with_its_usage(named: Running) -> None:
    answer = named.ask(
        "/v1/chat/completions",
        {"model": "default/half-call", "messages": [{"role": "user", "content": "q"}], "stream": True},
    )
    line = named.line(answer.headers["x-request-id"])
    assert (line["ending"], line["error"]) == ("error", "tool_call_parse_error")
    assert (line["input_tokens"], line["output_tokens"]) == (5, 2)
