"""Some broken answers of upstreams, always the same ones; ``make fuzz`` tries others."""

from __future__ import annotations

import asyncio

from fuzz_upstream import DIALECTS, Run, case_of, samples


def test_every_request_is_answered_whatever_the_upstream_sends() -> None:
    assert asyncio.run(Run(seed=5, seconds=600.0, most=150).run()) == 150


def test_a_case_is_made_of_its_number_alone() -> None:
    known = samples()
    assert set(known) == set(DIALECTS)
    assert case_of(1, 2, known) == case_of(1, 2, known)
    assert case_of(1, 2, known) != case_of(1, 3, known)
    assert len({case_of(1, number, known).end for number in range(200)}) == 5
