"""Policies in a running gateway: what ends the upstream, what is asked again, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, asked, body_of
from gateway.judges import SCRIPTED, judged
from gateway.running import Running, running
from gateway.scenarios import DONE, WEATHER, calls, chunk, text_chunk, usage
from gateway.upstream import Hang, HostileUpstream, head, piece, sse, streamed, whole
from streamglot.policies import refuse, retry

SECRET = "AKIAIOSFODNN7EXAMPLE"
BLOCKED = {"use": "block_patterns", "detectors": ["api_keys"], "action": "end", "message": "leaked"}
CALL = streamed(sse(text_chunk("Let me look."), calls(WEATHER, finish="tool_calls"), usage(5, 2), DONE))
SECOND = streamed(sse(text_chunk(" Without it."), chunk({}, "stop"), usage(7, 3), DONE))


@pytest.fixture(scope="module")
def judging(upstream: HostileUpstream) -> Iterator[Running]:
    upstreams = upstreams_at(upstream.url, breaker={"failures": 10**9})
    with running({"upstreams": upstreams, "policies": [SCRIPTED, BLOCKED]}) as started:
        yield started


@pytest.mark.parametrize("dialect", CLIENT_DIALECTS)
def test_a_stream_that_a_policy_ends_stops_the_upstream(judging: Running, upstream: HostileUpstream, dialect: str) -> None:
    """The upstream would go on for ever: it sees that the gateway hung up, and has sent nothing after that."""
    model = f"policy-leaks-{dialect}"
    upstream.scripts[model] = [head(transfer_encoding="chunked"), piece(sse(text_chunk(f"It is {SECRET} of yours"))), Hang()]
    understood = asked(judging, dialect, f"work/{model}", x_request_id=model)
    assert "leaked" in (understood.error or "")
    assert SECRET not in understood.text
    seen = upstream.wait_for(model, lambda seen: seen.closed)
    assert not seen.over
    assert judging.line(model)["ending"] == "policy"


def test_the_usage_of_a_turn_that_is_asked_for_again_counts(judging: Running, upstream: HostileUpstream) -> None:
    """An answer that was judged as a whole has its usage: both turns are counted."""
    upstream.scripts["policy-again"] = [CALL, SECOND]
    with judged({"weather": retry("Do without it.")}):
        understood = asked(judging, "openai_chat", "work/policy-again", x_request_id="policy-again")
    assert understood.error is None
    assert (understood.text, understood.calls) == ("Let me look. Without it.", [])
    assert len(upstream.requests("policy-again")) == 2
    assert upstream.requests("policy-again")[1].body["messages"][-1]["content"] == "Do without it."
    assert understood.usage is not None
    assert understood.usage[:2] == (12, 5)
    line = judging.line("policy-again")
    assert (line["input_tokens"], line["output_tokens"]) == (12, 5)


@pytest.mark.parametrize("dialect", CLIENT_DIALECTS[:-1])
def test_a_retry_that_no_upstream_takes_is_refused_with_its_message(
    judging: Running, upstream: HostileUpstream, dialect: str
) -> None:
    model = f"policy-never-again-{dialect}"
    upstream.scripts[model] = [CALL, whole({"error": {"message": "busy"}}, 503)]
    with judged({"weather": retry("Do without it.", message=" That is not allowed.")}):
        understood = asked(judging, dialect, f"work/{model}", x_request_id=model)
    assert (understood.text, understood.calls, understood.error) == ("Let me look. That is not allowed.", [], None)
    line = judging.line(model)
    assert line["ending"] == "content_filter"


def test_a_header_reports_decisions_before_the_first_byte(judging: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["policy-told"], upstream.scripts["policy-untouched"] = CALL, SECOND
    body = body_of("openai_chat", "work/policy-told", stream=False)
    with judged({"weather": refuse(" No.", reason="never")}):
        answer = judging.ask("/v1/chat/completions", body)
    assert answer.headers["x-streamglot-policy"] == "gateway.judges:ScriptedJudge=refuse"
    assert "x-streamglot-policy" not in judging.ask("/v1/chat/completions", {**body, "model": "work/policy-untouched"}).headers
