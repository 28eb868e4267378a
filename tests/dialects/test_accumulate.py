"""``accumulate_delta`` merges deltas without the known faults of other implementations."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamglot import accumulate_delta
from streamglot.dialects.openai_chat import accumulate
from waiting import WAIT_SECONDS


def total(*deltas: dict[str, Any]) -> dict[str, Any]:
    snapshot: dict[str, Any] = {}
    for delta in deltas:
        assert accumulate_delta(snapshot, delta) is snapshot
    return snapshot


def test_strings_are_joined_and_objects_merged() -> None:
    assert total({"content": "a", "audio": {"data": "x"}}, {"content": "b", "audio": {"data": "y"}}) == {
        "content": "ab",
        "audio": {"data": "xy"},
    }


def test_numbers_are_added_and_other_kinds_replaced() -> None:
    assert total({"n": 1, "f": 0.5, "b": True}, {"n": 2, "f": 1, "b": False}) == {"n": 3, "f": 1.5, "b": False}
    assert total({"x": "a"}, {"x": ["b"]}) == {"x": ["b"]}


def test_an_identifying_field_is_never_appended_to_itself() -> None:
    chunk = {
        "role": "assistant",
        "tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "x"}}],
    }
    assert total(chunk, chunk, {"role": ""}) == {
        "role": "assistant",
        "tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "xx"}}],
    }


def test_nulls_are_ignored() -> None:
    assert total({"content": None}, {"content": "a"}, {"content": None}, {"refusal": None}) == {"content": "a", "refusal": None}


def test_entries_are_merged_by_index() -> None:
    deltas = [
        {"tool_calls": [{"index": i, "function": {"arguments": text}}]} for i, text in ((0, "a"), (2, "b"), (0, "c"), (2, "d"))
    ]
    assert [call["function"]["arguments"] for call in total(*deltas)["tool_calls"]] == ["ac", "bd"]


def test_entries_without_an_index() -> None:
    calls = total(
        {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "1"}}]},
        {"tool_calls": [{"function": {"arguments": "2"}}]},
        {"tool_calls": [{"id": "b", "function": {"name": "f", "arguments": "3"}}]},
        {"tool_calls": [{"id": "a", "function": {"arguments": "4"}}]},
        {"tool_calls": [{"name": "loose"}]},
        {"tool_calls": ["odd"]},
    )["tool_calls"]
    assert [call["function"]["arguments"] for call in calls[:2]] == ["124", "3"]
    assert calls[2:] == [{"name": "loose"}, "odd"]
    assert total({"x": [{"text": "a"}]}, {"x": [{"text": "b"}]}) == {"x": [{"text": "ab"}]}


def test_two_calls_under_one_index() -> None:
    calls = total(
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "1"}}]},
        {"tool_calls": [{"index": 0, "id": "b", "function": {"name": "g", "arguments": "2"}}]},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"arguments": "3"}}]},
        {"tool_calls": [{"index": 5, "function": {"arguments": "4"}}]},
    )["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ["1", "23", "4"]


def test_chunks_are_not_changed_by_later_ones() -> None:
    first = {"a": {"b": "x"}, "c": [{"index": 0, "t": "x", "deep": [1]}]}
    total(first, {"a": {"b": "y"}, "c": [{"index": 0, "t": "y"}]})
    assert first == {"a": {"b": "x"}, "c": [{"index": 0, "t": "x", "deep": [1]}]}


@pytest.mark.parametrize("pieces", [1, 50])
def test_the_seed_of_a_message(pieces: int) -> None:
    assert total(*[{"content": "ab"}] * pieces)["content"] == "ab" * pieces


def test_the_file_works_alone_where_it_is_copied(tmp_path: Path) -> None:
    source = Path(accumulate.__file__).read_text()
    ast.parse(source, feature_version=(3, 9))
    (tmp_path / "streaming_deltas.py").write_text(source)
    program = (
        "import sys\n"
        "from streaming_deltas import accumulate_delta\n"
        "snapshot = {}\n"
        "accumulate_delta(snapshot, {'content': 'a', 'tool_calls': [{'index': 0, 'function': {'arguments': '{'}}]})\n"
        "accumulate_delta(snapshot, {'content': 'b', 'tool_calls': [{'index': 0, 'function': {'arguments': '}'}}]})\n"
        "assert not any(name.startswith(('streamglot', 'msgspec')) for name in sys.modules)\n"
        "print(snapshot)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_SECONDS,
    )
    assert ast.literal_eval(done.stdout) == {"content": "ab", "tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}
