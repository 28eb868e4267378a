"""Streams for tests of policies: built from blocks, cut in any way, and compared without regard to where their deltas were
cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from streamglot import check
from streamglot.events import BareEvent
from streamglot.policies import Policy, apply_policies, run_policies
from streamglot.stages.stage import ExchangeContext, Question
from vocabulary import *

DELTAS = (TextDelta, ReasoningDelta, ToolCallDelta)


def text(*pieces: str) -> list[Event]:
    return [TextStart(), *(TextDelta(piece) for piece in pieces), TextEnd()]


def reasoning(*pieces: str, **end: Any) -> list[Event]:
    return [ReasoningStart(), *(ReasoningDelta(piece) for piece in pieces), ReasoningEnd(**end)]


def call(name: str, *pieces: str, id: str = "", **end: Any) -> list[Event]:
    return [ToolCallStart(id or f"call_{name}", name), *(ToolCallDelta(piece) for piece in pieces), ToolCallEnd(**end)]


def stream(*blocks: Sequence[Event], reason: Any = "end") -> list[Event]:
    """A whole stream of these blocks, which the grammar allows."""
    events: list[Event] = [StreamStart("id", "m", 1), *(event for block in blocks for event in block), StreamEnd(reason)]
    check(events)
    return events


def shown(event: BareEvent) -> str:
    return event.args if isinstance(event, ToolCallDelta) else event.text  # type: ignore[union-attr]  # a delta


def split(events: Iterable[Event], cut: Callable[[str], list[str]]) -> list[Event]:
    """The same stream with its deltas cut in another way."""
    given: list[Event] = []
    for event in normal(events):
        wrapped = event.event if isinstance(event, Choice) else event
        if isinstance(wrapped, DELTAS):
            pieces = [type(wrapped)(piece) for piece in cut(shown(wrapped))]
            given += [Choice(event.index, piece) for piece in pieces] if isinstance(event, Choice) else pieces
        else:
            given.append(event)
    return given


def in_characters(text: str) -> list[str]:
    return list(text)


def at_random(source: random.Random) -> Callable[[str], list[str]]:
    def cut(text: str) -> list[str]:
        pieces, at = [], 0
        while at < len(text):
            size = source.choice((0, 1, 1, 1, 2, 3, 5, 17, 80, 500))
            pieces.append(text[at : at + size])
            at += size
        return pieces

    return cut


def in_reads(events: Sequence[Event], source: random.Random) -> Iterator[list[Event]]:
    """The events in reads of any size."""
    at = 0
    while at < len(events):
        size = source.choice((1, 1, 2, 3, 8, 50, 400))
        yield list(events[at : at + size])
        at += size


def normal(events: Iterable[Event]) -> list[Event]:
    """The events with adjacent deltas joined, without empty ones and without keep-alives."""
    given: list[Event] = []
    last: dict[int, tuple[int, list[str]]] = {}
    for event in events:
        index, bare = (event.index, event.event) if isinstance(event, Choice) else (0, event)
        if isinstance(bare, KeepAlive) or (isinstance(bare, DELTAS) and not shown(bare)):
            continue
        if isinstance(bare, DELTAS):
            place, pieces = last.get(index, (-1, []))
            if place >= 0:
                pieces.append(shown(bare))
                joined = type(bare)("".join(pieces))
                given[place] = Choice(index, joined) if index else joined
                continue
            last[index] = len(given), [shown(bare)]
        else:
            last.pop(index, None)
        given.append(event)
    return given


def run(
    events: Iterable[Event],
    *policies: Policy,
    request: Request | None = None,
    context: ExchangeContext | None = None,
    resolve: Callable[[Question], Any] | None = None,
) -> list[Event]:
    """The stream after the policies, checked by the grammar."""
    more = {} if resolve is None else {"resolve": resolve}
    after = apply_policies(events, policies, request=request, context=context, **more)
    check(after)
    return after


def run_reads(reads: Iterable[list[Event]], *policies: Policy, request: Request | None = None) -> list[Event]:
    after = [event for read in run_policies(reads, policies, request=request) for event in read]
    check(after)
    return after


def text_of(events: Iterable[Event], kind: type = TextDelta) -> str:
    return "".join(shown(event) for event in events if isinstance(event, kind))  # type: ignore[arg-type]  # a delta


def calls_of(events: Iterable[Event]) -> list[tuple[str, str]]:
    """The name and the arguments of each call."""
    found: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            found.append((event.name, ""))
        elif isinstance(event, ToolCallDelta):
            found[-1] = found[-1][0], found[-1][1] + event.args
    return found


def results_of(events: Iterable[Event]) -> list[str]:
    return [event.content for event in events if isinstance(event, ToolResult)]


def end_of(events: Sequence[Event]) -> Event:
    return events[-1]
