"""Random streams through every policy, split randomly: ``cd tests; python -m fuzz_policies SPLITS [SEED]``. Stops at the first
difference."""

from __future__ import annotations

import random
import sys
import time

from policies.every_policy import REQUEST, every_policy, random_stream, random_words
from policies.policy_streams import at_random, in_reads, normal, run_reads, split
from streamglot.patterns.scanner import PatternSet, Segment, joined
from streamglot.policies.arguments import JsonScanner

SPLITS_OF_A_STREAM = 4
"""Splits per stream: making a stream and running it whole costs as much as a split."""


def run(splits: int, seed: int) -> int:
    """Tries at least this many splits and returns the number that was tried."""
    source = random.Random(seed)
    policies = every_policy()
    patterns = policies["redact"].needs().request_patterns
    assert patterns is not None
    names = list(policies)
    tried = 0
    while tried < splits:
        if source.random() < 0.9:  # scanners alone are many times faster
            tried += try_scanner(patterns, source)
            continue
        name = source.choice(names)
        state = source.getstate()
        events = random_stream(source)
        whole = normal(run_reads([events], policies[name], request=REQUEST))
        for _ in range(SPLITS_OF_A_STREAM):
            cut = list(in_reads(split(events, at_random(source)), source))
            again = normal(run_reads(cut, policies[name], request=REQUEST))
            assert again == whole, f"{name}: another result when cut; events {events}, reads {cut}, state {state[1][-1]}"
            tried += 1
    return tried


def try_scanner(patterns: PatternSet, source: random.Random) -> int:
    """One text through the scanners for text and for JSON, whole and split."""
    text = random_words(source, 20)
    cut = at_random(source)
    for make in (patterns.scanner, lambda: JsonScanner(patterns)):
        results: list[list[Segment]] = []
        for pieces in ([text], *(cut(text) for _ in range(SPLITS_OF_A_STREAM))):
            scanner = make()
            results.append(joined([segment for piece in pieces for segment in scanner.feed(piece)] + scanner.close()))
        for other in results[1:]:
            assert other == results[0], f"another result when cut: {text!r}"
    return 2 * SPLITS_OF_A_STREAM


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**32)
    began = time.monotonic()
    print(f"{run(wanted, chosen)} splits in {time.monotonic() - began:.0f} s, seed {chosen}: no difference")
