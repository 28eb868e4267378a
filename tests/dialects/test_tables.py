"""The tables of finish reasons and of usage fields, in both directions."""

from __future__ import annotations

from importlib import import_module
from typing import get_args

import pytest

from streamglot.dialects import DIALECTS
from streamglot.dialects.common.tables import UsageFields, two_way
from streamglot.events import StopReason, Usage
from streamglot.messages import TokenCounts

FIELDS = UsageFields(
    input=("in", "prompt"),
    output=("out",),
    cached=("details|old_details.cached", "cached"),
    cache_write=("details.written",),
    reasoning=("details.thought",),
    sum="sum",
    apart=("cached", "cache_write", "reasoning"),
    written=("input", "cached", "output", "reasoning", "sum"),
    always=("cached",),
)


def test_the_first_word_of_a_row_is_written_and_all_are_read() -> None:
    read, written = two_way({"end": ("stop", "eos"), "refusal": ("stop", "refused"), "length": ("max",)}, other="none")
    assert read == {"stop": "end", "eos": "end", "refused": "refusal", "max": "length"}
    assert written == dict.fromkeys(get_args(StopReason), "none") | {"end": "stop", "refusal": "stop", "length": "max"}


@pytest.mark.parametrize("name", [*DIALECTS])
def test_every_reason_of_a_wire_has_a_word_that_is_read(name: str) -> None:
    wire = vars(import_module(f"streamglot.dialects.{name}.wire"))
    written: dict[StopReason, str] = wire.get("FINISH_OF", {})
    assert not written or set(written) == set(get_args(StopReason))
    if "REASONS" in wire and written:
        assert set(written.values()) <= set(wire["REASONS"])


def test_the_first_place_with_a_count_applies() -> None:
    assert FIELDS.read({"in": None, "prompt": 7.0, "out": 2, "cached": 1}) == Usage(
        8, 2, 1, raw={"in": None, "prompt": 7.0, "out": 2, "cached": 1}
    )
    both = {"prompt": 7, "out": 2, "details": {"thought": 3}, "old_details": {"cached": 9}, "cached": 1}
    assert FIELDS.read(both) == Usage(8, 5, 1, None, 3, raw=both), "only the first of two objects is read"
    assert FIELDS.read({"old_details": {"cached": 9}}).cached_tokens == 9
    invalid = FIELDS.read({"details": [], "prompt": -1, "out": True})
    assert (invalid.input_tokens, invalid.output_tokens) == (0, None)


def test_running_totals_stay_where_a_count_is_missing() -> None:
    before = Usage(10, 2, 3, 4, 5)
    assert FIELDS.read({"out": 8}, before) == Usage(10, 8, 3, 4, 5, raw={"out": 8})
    assert FIELDS.read({"in": 6, "details": {"cached": 1, "written": 2, "thought": 1}}, before).input_tokens == 9


def test_a_usage_object_is_written_in_the_order_of_its_fields() -> None:
    body = FIELDS.write(Usage(10, 5, 3, 2, 4))
    assert body == {"in": 5, "details": {"cached": 3, "thought": 4}, "out": 1, "sum": 15}
    assert list(body) == ["in", "details", "out", "sum"]
    assert FIELDS.write(TokenCounts(10, 5)) == {"in": 10, "details": {"cached": 0}, "out": 5, "sum": 15}
    assert FIELDS.write(TokenCounts(2, 1, 9, reasoning_tokens=9)) == {
        "in": 0,
        "details": {"cached": 2, "thought": 1},
        "out": 0,
        "sum": 3,
    }
    assert FIELDS.write(TokenCounts(None, None, 4)) == {"in": 0, "details": {"cached": 4}, "out": 0, "sum": 0}
