"""Tool calls: every way in which upstreams fragment them, and what each client must get of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

import streamglot
from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, asked, in_turn
from gateway.running import Running
from gateway.scenarios import DONE, anthropic, chunk, gemini, lines, message, responses, stopped
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, Script, sse, streamed
from split_checks import every_cut
from streamglot import collect
from streamglot.messages import ToolCallPart

PARIS, UTC = {"city": "Paris"}, {"tz": "UTC"}
P, U = '{"city":"Paris"}', '{"tz":"UTC"}'
ONE = [("weather", PARIS)]
TWO = [("weather", PARIS), ("time", UTC)]
SAME = [("weather", PARIS), ("weather", UTC)]
MISSING: Any = ...
TOOLS = ("weather", "time", "ping")


def part(index: Any, id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A fragment of a call; what is MISSING is left out, and None is written as null."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not MISSING}
    outer = {key: value for key, value in (("index", index), ("id", id)) if value is not MISSING}
    return {**outer, "type": "function", "function": function}


X = MISSING
FRAGMENTS: dict[str, tuple[list[list[dict[str, Any]]], list[tuple[str, Any]]]] = {
    "all_index_zero_whole": ([[part(0, "a", "weather", P)], [part(0, "b", "time", U)]], TWO),
    "all_index_zero_in_one_chunk": ([[part(0, "a", "weather", P), part(0, "b", "time", U)]], TWO),
    "all_index_zero_in_fragments": (
        [[part(0, "a", "weather", '{"city":')], [part(0, X, X, '"Paris"}')], [part(0, "b", "time", "")], [part(0, X, X, U)]],
        TWO,
    ),
    "all_index_zero_interleaved_with_ids": (
        [
            [part(0, "a", "weather", "")],
            [part(0, "b", "time", "")],
            [part(0, "a", X, '{"city":')],
            [part(0, "b", X, '{"tz":')],
            [part(0, "a", X, '"Paris"}')],
            [part(0, "b", X, '"UTC"}')],
        ],
        TWO,
    ),
    "all_index_zero_one_tool": ([[part(0, "a", "weather", P)], [part(0, "b", "weather", U)]], SAME),
    "no_index_in_fragments": (
        [[part(X, "a", "weather", "")], [part(X, X, X, '{"city":')], [part(X, X, X, '"Paris"}')], [part(X, "b", "time", U)]],
        TWO,
    ),
    "null_index": ([[part(None, "a", "weather", P), part(None, "b", "time", U)]], TWO),
    "no_index_and_no_id": ([[part(X, X, "weather", P), part(X, X, "time", U)]], TWO),
    "no_index_and_no_id_one_tool": ([[part(X, X, "weather", P), part(X, X, "weather", U)]], SAME),
    "empty_ids_everywhere": ([[part(0, "", "weather", P)], [part(1, "", "time", U)]], TWO),
    "index_minus_one": ([[part(-1, "a", "weather", '{"city":')], [part(-1, X, X, '"Paris"}')]], ONE),
    "index_minus_one_twice": ([[part(-1, "a", "weather", P)], [part(-1, "b", "time", U)]], TWO),
    "first_index_one": ([[part(1, "a", "weather", "")], [part(1, X, X, P)], [part(2, "b", "time", U)]], TWO),
    "id_and_name_in_every_fragment": (
        [[part(0, "a", "weather", '{"city":')], [part(0, "a", "weather", '"Paris"}')], [part(1, "b", "time", U)]],
        TWO,
    ),
    "id_and_name_in_every_fragment_without_index": (
        [[part(X, "a", "weather", '{"city":')], [part(X, "a", "weather", '"Paris"}')], [part(X, "b", "time", U)]],
        TWO,
    ),
    "the_last_fragment_repeats_id_and_name_with_nothing": ([[part(0, "a", "weather", P)], [part(0, "a", "weather", "")]], ONE),
    "id_null_later": ([[part(0, "a", "weather", "")], [part(0, None, None, '{"city":')], [part(0, None, None, '"Paris"}')]], ONE),
    "id_empty_later": ([[part(0, "a", "weather", "")], [part(0, "", "", '{"city":')], [part(0, "", "", '"Paris"}')]], ONE),
    "id_only_first": ([[part(0, "a", X, X)], [part(0, X, "weather", X)], [part(0, X, X, P)]], ONE),
    "arguments_null_first": ([[part(0, "a", "weather", None)], [part(0, X, X, P)]], ONE),
    "arguments_null_last": ([[part(0, "a", "weather", P)], [part(0, X, X, None)]], ONE),
    "arguments_as_object": ([[part(0, "a", "weather", PARIS)], [part(1, "b", "time", UTC)]], TWO),
    "arguments_as_object_without_index": ([[part(X, X, "weather", PARIS), part(X, X, "time", UTC)]], TWO),
    "arguments_continued_under_a_new_index": (
        [[part(0, "a", "weather", "")], [part(1, X, X, '{"city":')], [part(2, X, X, '"Paris"}')]],
        ONE,
    ),
    "one_id_for_two_calls": ([[part(0, "a", "weather", P)], [part(1, "a", "time", U)]], TWO),
    "one_id_for_two_calls_of_one_tool": ([[part(0, "a", "weather", P)], [part(1, "a", "weather", U)]], SAME),
    "one_id_for_two_calls_in_fragments": (
        [[part(0, "a", "weather", "")], [part(0, X, X, P)], [part(1, "a", "time", "")], [part(1, X, X, U)]],
        TWO,
    ),
    "interleaved": (
        [
            [part(0, "a", "weather", ""), part(1, "b", "time", "")],
            [part(0, X, X, '{"city":')],
            [part(1, X, X, '{"tz": ')],
            [part(0, X, X, '"Paris"}')],
            [part(1, X, X, '"UTC"}')],
        ],
        TWO,
    ),
    "interleaved_in_one_chunk": (
        [
            [part(1, "b", "time", '{"tz":'), part(0, "a", "weather", '{"city":')],
            [part(0, X, X, '"Paris"}'), part(1, X, X, '"UTC"}')],
        ],
        list(reversed(TWO)),
    ),
    "no_arguments_empty": ([[part(0, "a", "ping", "")]], [("ping", {})]),
    "no_arguments_null": ([[part(0, "a", "ping", None)]], [("ping", {})]),
    "no_arguments_missing": ([[part(0, "a", "ping", X)]], [("ping", {})]),
    "no_arguments_blank": ([[part(0, "a", "ping", " ")]], [("ping", {})]),
    "no_arguments_as_object": ([[part(0, "a", "ping", {})]], [("ping", {})]),
}


def script(fragments: list[list[dict[str, Any]]], finish: str = "tool_calls", one_chunk: bool = False) -> Script:
    chunks = [chunk({"tool_calls": some}) for some in fragments]
    if one_chunk:
        chunks[-1] = chunk({"role": "assistant", "content": "", "tool_calls": fragments[-1]}, finish)
    else:
        chunks.append(chunk({}, finish))
    return streamed(sse(*chunks, DONE))


CLIENTS = [name for name in CLIENT_DIALECTS if name != "openai_completions"]
"""Those that have calls."""


def check_calls(gateway: Running, client: str, model: str, expected: list[tuple[str, Any]]) -> None:
    """The client gets these calls, in a stream and whole, and is told that there are calls."""
    for stream in (True, False) if client not in STREAMS_ONLY else (True,):
        found = asked(gateway, client, model, stream, TOOLS)
        assert (found.error, found.calls) == (None, expected), (client, stream, found)
        assert found.finish in ("tool_calls", None), (client, stream, found)


@pytest.mark.parametrize(("name", "client"), in_turn(FRAGMENTS, CLIENTS))
def test_calls_are_distinguished_for_every_fragmentation(
    gateway: Running, upstream: HostileUpstream, name: str, client: str
) -> None:
    """hermes-agent#57939, gcli2api#406: equal indexes; llama_cpp.server: ids in every fragment; Mistral and Ollama: no index."""
    fragments, expected = FRAGMENTS[name]
    upstream.scripts[f"calls-{name}"] = script(fragments)
    check_calls(gateway, client, f"work/calls-{name}", expected)


@pytest.mark.parametrize("finish", ["tool_calls", "stop", "function_call", "end_turn"])
@pytest.mark.parametrize("name", ["interleaved", "all_index_zero_whole", "no_arguments_missing"])
def test_the_last_fragment_may_stand_in_the_finish_chunk(
    gateway: Running, upstream: HostileUpstream, name: str, finish: str
) -> None:
    """66 of 227 recorded streams of compatible servers end a call with ``stop``."""
    fragments, expected = FRAGMENTS[name]
    upstream.scripts[f"finish-{name}-{finish}"] = script(fragments, finish, one_chunk=True)
    for client in CLIENTS:
        check_calls(gateway, client, f"work/finish-{name}-{finish}", expected)


# --- other dialects


def _tool_use(index: Any, id: str, name: str, input: Any, *pieces: Any, stop: bool = True) -> list[tuple[str, dict[str, Any]]]:
    at = {} if index is MISSING else {"index": index}
    block: dict[str, Any] = {"type": "tool_use", "id": id, "name": name}
    if input is not MISSING:
        block["input"] = input
    deltas = [("content_block_delta", {**at, "delta": {"type": "input_json_delta", "partial_json": piece}}) for piece in pieces]
    return [("content_block_start", {**at, "content_block": block}), *deltas, *([("content_block_stop", at)] if stop else [])]


def _function(id: str, call_id: str, name: str, arguments: str = "") -> dict[str, Any]:
    return {"id": id, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}


def _delta(index: int, id: str, piece: str) -> tuple[str, dict[str, Any]]:
    return "response.function_call_arguments.delta", {"output_index": index, "item_id": id, "delta": piece}


def _added(index: int, item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "response.output_item.added", {"output_index": index, "item": item}


def _done(index: int, item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "response.output_item.done", {"output_index": index, "item": item}


def _completed(*output: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    about = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
    return "response.completed", {"response": {**about, "output": list(output)}}


W, T = _function("fc_1", "a", "weather"), _function("fc_2", "b", "time")
WHOLE_W, WHOLE_T = _function("fc_1", "a", "weather", P), _function("fc_2", "b", "time", U)
OTHERS: dict[str, tuple[str, bytes, list[tuple[str, Any]]]] = {
    "anthropic_equal_indexes": (
        "anthropic",
        anthropic(*_tool_use(0, "a", "weather", {}, P), *_tool_use(0, "b", "time", {}, U), *stopped("tool_use")),
        TWO,
    ),
    "anthropic_no_index": (
        "anthropic",
        anthropic(*_tool_use(X, "a", "weather", {}, P), *_tool_use(X, "b", "time", {}, U), *stopped("tool_use")),
        TWO,
    ),
    "anthropic_input_at_the_start": (
        "anthropic",
        anthropic(*_tool_use(0, "a", "weather", PARIS), *_tool_use(1, "b", "time", UTC, ""), *stopped("end_turn")),
        TWO,
    ),
    "anthropic_no_input": (
        "anthropic",
        anthropic(*_tool_use(0, "a", "ping", X), *_tool_use(1, "b", "ping", None, ""), *stopped("tool_use")),
        [("ping", {}), ("ping", {})],
    ),
    "anthropic_null_pieces": (
        "anthropic",
        anthropic(*_tool_use(0, "a", "weather", {}, None, P, None), *stopped("tool_use")),
        ONE,
    ),
    "anthropic_no_stop": (
        "anthropic",
        anthropic(
            *_tool_use(0, "a", "weather", {}, P, stop=False), *_tool_use(1, "b", "time", {}, U, stop=False), *stopped("tool_use")
        ),
        TWO,
    ),
    "anthropic_interleaved": (
        "anthropic",
        anthropic(
            *_tool_use(0, "a", "weather", {}, '{"city":', stop=False),
            *_tool_use(1, "b", "time", {}, '{"tz": ', stop=False),
            ("content_block_delta", {"index": 0, "delta": {"type": "input_json_delta", "partial_json": '"Paris"}'}}),
            ("content_block_delta", {"index": 1, "delta": {"type": "input_json_delta", "partial_json": '"UTC"}'}}),
            ("content_block_stop", {"index": 0}),
            ("content_block_stop", {"index": 1}),
            *stopped("tool_use"),
        ),
        TWO,
    ),
    "responses_interleaved": (
        "openai_responses",
        responses(
            _added(0, W),
            _added(1, T),
            _delta(0, "fc_1", '{"city":'),
            _delta(1, "fc_2", '{"tz": '),
            _delta(0, "fc_1", '"Paris"}'),
            _delta(1, "fc_2", '"UTC"}'),
            _done(0, WHOLE_W),
            _done(1, WHOLE_T),
            _completed(WHOLE_W, WHOLE_T),
        ),
        TWO,
    ),
    "responses_indexes_out_of_order": (
        "openai_responses",
        responses(
            _added(3, W),
            _delta(3, "fc_1", P),
            _done(3, WHOLE_W),
            _added(1, T),
            _delta(1, "fc_2", U),
            _done(1, WHOLE_T),
            _completed(),
        ),
        TWO,
    ),
    "responses_equal_indexes": (
        "openai_responses",
        responses(
            _added(0, W),
            _delta(0, "fc_1", P),
            _done(0, WHOLE_W),
            _added(0, T),
            _delta(0, "fc_2", U),
            _done(0, WHOLE_T),
            _completed(),
        ),
        TWO,
    ),
    "responses_nothing_added": (
        "openai_responses",
        responses(_delta(0, "fc_1", P), _done(0, WHOLE_W), _done(1, WHOLE_T), _completed()),
        TWO,
    ),
    "responses_only_the_end": ("openai_responses", responses(_completed(WHOLE_W, WHOLE_T)), TWO),
    "responses_empty_output": (
        "openai_responses",
        responses(_added(0, W), _delta(0, "fc_1", P), _added(1, T), _delta(1, "fc_2", U), _completed()),
        TWO,
    ),
    "gemini_in_one_chunk": (
        "gemini",
        sse(
            gemini(
                {"functionCall": {"name": "weather", "args": PARIS}},
                {"functionCall": {"name": "time", "args": UTC}},
                finish="STOP",
            )
        ),
        TWO,
    ),
    "gemini_one_tool_twice": (
        "gemini",
        sse(
            gemini({"functionCall": {"name": "weather", "args": PARIS}}),
            gemini({"functionCall": {"name": "weather", "args": UTC}}, finish="STOP"),
        ),
        SAME,
    ),
    "gemini_no_args": ("gemini", sse(gemini({"functionCall": {"name": "ping"}}, finish="STOP")), [("ping", {})]),
    "gemini_null_args": ("gemini", sse(gemini({"functionCall": {"name": "ping", "args": None}}, finish="STOP")), [("ping", {})]),
    "ollama_one_index": (
        "ollama",
        lines(
            message(tool_calls=[{"function": {"index": 0, "name": "weather", "arguments": PARIS}}]),
            message(tool_calls=[{"function": {"index": 0, "name": "time", "arguments": UTC}}]),
            message(True),
        ),
        TWO,
    ),
    "ollama_arguments_as_text": (
        "ollama",
        lines(message(tool_calls=[{"function": {"name": "weather", "arguments": P}}]), message(True)),
        ONE,
    ),
    "ollama_no_arguments": (
        "ollama",
        lines(
            message(tool_calls=[{"function": {"name": "ping"}}]),
            message(tool_calls=[{"function": {"name": "ping", "arguments": None}}]),
            message(True),
        ),
        [("ping", {}), ("ping", {})],
    ),
}


@pytest.mark.parametrize(("name", "client"), in_turn(OTHERS, CLIENTS))
def test_calls_of_other_dialects_are_distinguished_too(
    gateway: Running, upstream: HostileUpstream, name: str, client: str
) -> None:
    """litellm PR#36356, PR#32777, #41009, llm-rosetta#56, llama.cpp: indexes out of order, and parts of the lifecycle missing."""
    via, body, expected = OTHERS[name]
    response = collect(every_cut(lambda: streamglot.reader(via), body))
    parts = [one for one in response.choices[0].parts if isinstance(one, ToolCallPart)]
    assert [(one.name, json.loads(one.arguments)) for one in parts] == expected
    upstream.scripts[f"others-{name}"] = streamed(
        body, media_type="application/x-ndjson" if via == "ollama" else "text/event-stream"
    )
    check_calls(gateway, client, f"{UPSTREAM_NAMES[via]}/others-{name}", expected)
