"""Any bytes give events or one of streamglot's errors, and nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz import LIMITS, run, try_one
from streamglot import DIALECTS, reader

READERS = [name for name, entry in DIALECTS.items() if entry.has_reader]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "tool_calls",
                    "function",
                    "arguments",
                    "name",
                    "id",
                    "index",
                    "type",
                    "error",
                    "usage",
                    "message",
                    "finish_reason",
                    "text",
                    "output",
                    "item",
                    "response",
                    "content_block",
                    "parts",
                    "candidates",
                    "functionCall",
                    "args",
                    "role",
                    "status",
                    "reasoning",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("dialect", READERS)
@given(data=st.binary(max_size=200))
def test_any_bytes(dialect: str, data: bytes) -> None:
    try_one(dialect, data, random.Random(0))


@pytest.mark.parametrize("dialect", READERS)
@given(values=st.lists(json_values, max_size=5))
def test_any_json(dialect: str, values: list[object]) -> None:
    import json

    framing = type(reader(dialect)).framing.__name__
    lines = [json.dumps(value).encode() for value in values]
    data = b"".join(line + b"\n" if framing == "NdJson" else b"data: " + line + b"\n\n" for line in lines)
    try_one(dialect, data, random.Random(0))


def test_broken_streams() -> None:
    assert run(2.0, seed=20) > 0


def test_memory_stays_within_the_limits() -> None:
    for dialect in READERS:
        box = reader(dialect, limits=LIMITS)
        held = [box.feed(b"data: " + b"x" * 1000) for _ in range(1000)]
        assert sum(len(events) for events in held) <= 2
