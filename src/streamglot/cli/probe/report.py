"""Formats the findings of a probe as text."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from ...json_types import JsonObject
from .observation import Observation
from .plan import CASES


class Probed(Struct):
    """One dialect of one upstream."""

    dialect: str
    url: str
    model: str
    observations: list[Observation] = field(default_factory=list)

    @property
    def supported(self) -> bool:
        return any(observation.supported for observation in self.observations)


def report_lines(probed: list[Probed]) -> Iterator[str]:
    for one in probed:
        if not one.supported:
            first = one.observations[0]
            why = first.broken or f"status {first.status}"
            yield f"{one.dialect} at {one.url}: not supported ({why})"
            continue
        yield f"{one.dialect} at {one.url}, model {one.model!r}"
        for case in CASES:
            for observation in one.observations:
                if observation.case == case.name:
                    yield from _case(case.title, observation)
        yield from _shared(one.observations)
        yield ""


def _case(title: str, seen: Observation) -> Iterator[str]:
    if seen.refusal or not seen.status:
        yield f"  {title}: status {seen.status}, {seen.broken or seen.refusal}"
        return
    yield f"  {title}: {seen.frames} frames in {seen.pieces} reads, {_times(seen)}"
    yield f"    order: {' → '.join(seen.order) or 'nothing'}"
    if seen.arguments:
        sizes = f"{len(seen.arguments)} pieces of {min(seen.arguments)} to {max(seen.arguments)} characters"
        yield f"    arguments of {', '.join(seen.tools_called)}: {sizes}"
    yield f"    finish: {seen.raw_finish!r}{'' if seen.usage is None else f', usage: {_short(seen.usage)}'}"
    if seen.final:
        yield f"    final chunk: {seen.final}"
    if seen.keep_alives:
        yield f"    keep-alives: {seen.keep_alives}"
    if seen.dropped:
        left_out = ", ".join(seen.dropped)
        yield f"    left out of the request: {left_out} (the dialect cannot express it, or needs more --max-tokens)"
    if seen.recording:
        yield f"    recording: {seen.recording}"


def _times(seen: Observation) -> str:
    if seen.first_byte is None:
        return "no bytes at all"
    word = f", first word after {seen.first_word:.3f} s" if seen.first_word is not None else ""
    return f"first byte after {seen.first_byte:.3f} s{word}, longest gap {seen.longest_gap:.3f} s, median {seen.median_gap:.3f} s"


def _shared(observations: list[Observation]) -> Iterator[str]:
    """Yields each deviation from the dialect once, with the cases in which it occurred."""
    found: dict[str, list[str]] = {}
    titles = {case.name: case.title for case in CASES}
    for observation in observations:
        for sentence in observation.deviations:
            found.setdefault(sentence, []).append(titles[observation.case])
    yield "  departs from the dialect:" if found else "  nothing departs from the dialect"
    for sentence, cases in found.items():
        where = "" if len(cases) == len(observations) else f" ({', '.join(cases)})"
        yield f"    - {sentence}{where}"
    names = sorted({name for observation in observations for name in observation.fields})
    yield f"  fields used: {', '.join(names)}"


def _short(usage: JsonObject) -> str:
    return ", ".join(f"{name} {value}" for name, value in usage.items() if isinstance(value, int))
