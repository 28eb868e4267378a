"""JSON that is nested more deeply than Python's stack: an error of its own kind wherever it is decoded, never a fault of ours."""

from __future__ import annotations

import msgspec
import pytest

from gateway.running import running
from gateway.upstream import HostileUpstream, whole
from streamglot import UpstreamProtocolError
from streamglot.dialects import DIALECTS
from streamglot.dialects.common.function_tools import arguments_object
from streamglot.dialects.common.server_tools import sources_of
from streamglot.json.from_types import ArgumentsError
from streamglot.json.incremental import PartialJson
from streamglot.policies.builtin.external_judge import verdict_of
from streamglot.policies.builtin.llm_judge import parse_opinion
from streamglot.tools.tool import arguments_of

LEVELS = 100_000
DEEP = '{"a":' * LEVELS + "1" + "}" * LEVELS
UPSTREAMS = sorted(name for name, entry in DIALECTS.items() if entry.has_reader and entry.has_response)


def test_arguments_of_a_call_are_refused_with_the_reason() -> None:
    with pytest.raises(ArgumentsError, match="recursion"):
        arguments_of(DEEP)


def test_a_result_names_no_sources() -> None:
    assert sources_of(DEEP) == []


def test_arguments_stay_text_where_a_dialect_needs_an_object() -> None:
    assert arguments_object(DEEP) == {"input": DEEP}


def test_a_judge_that_writes_it_gives_no_verdict() -> None:
    with pytest.raises(UpstreamProtocolError, match="is not a verdict"):
        verdict_of(f'{{"verdict": "forward", "text": {DEEP}}}'.encode())
    with pytest.raises(UpstreamProtocolError, match="not a JSON object with a score"):
        parse_opinion(f'{{"score": {DEEP}}}')


def test_partial_objects_end_without_a_value() -> None:
    partial = PartialJson()
    partial.feed(DEEP)
    assert partial.whole() is msgspec.UNSET


@pytest.mark.parametrize("levels", [*range(900, 1000, 12), 5000])
def test_a_history_with_deep_arguments_is_always_answered(upstream: HostileUpstream, levels: int) -> None:
    """What fits depends on the stack that is left, so the numbers around its limit are tried."""
    upstream.scripts["m"] = whole({})
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":' * levels + "1" + "}" * levels}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "y"},
    ]
    settings = {"base_url": upstream.url, "key": "k", "models": ["*"], "breaker": {"failures": 1_000_000}}
    with running({"upstreams": {f"my-{name}": {**settings, "dialect": name} for name in UPSTREAMS}}) as gateway:
        for name in UPSTREAMS:
            answer = gateway.ask("/v1/chat/completions", {"model": f"my-{name}/m", "messages": messages})
            assert answer.status in (200, 400, 502), (name, answer.body[:200])
        assert not [line for line in gateway.lines if line.get("event") == "fault"]
