"""Every policy gives the same result, however a stream is cut."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fuzz_policies
from policies.every_policy import REQUEST, every_policy, random_stream
from policies.policy_streams import at_random, in_characters, in_reads, normal, run_reads, split

POLICIES = every_policy()


def test_random_splits_of_random_texts_give_the_same_result() -> None:
    assert fuzz_policies.run(800, seed=3) >= 800


@pytest.mark.parametrize("name", POLICIES)
@given(seed=st.integers(0, 2**32))
def test_any_cut_gives_the_same_result(name: str, seed: int) -> None:
    source = random.Random(seed)
    policy = POLICIES[name]
    events = random_stream(source)
    whole = normal(run_reads([events], policy, request=REQUEST))
    single = split(events, in_characters)
    assert normal(run_reads([[event] for event in single], policy, request=REQUEST)) == whole
    cut = split(events, at_random(source))
    assert normal(run_reads(in_reads(cut, source), policy, request=REQUEST)) == whole
