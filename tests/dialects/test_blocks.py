"""``Blocks``: fragments of calls are ordered, in every form in which servers send them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamglot.dialects.common.blocks import Blocks
from streamglot.errors import LimitExceeded, UpstreamProtocolError
from streamglot.events import BareEvent
from streamglot.limits import Limits
from vocabulary import *

PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'


def run(use: Callable[[Blocks], object], **limits: int) -> list[BareEvent]:
    events: list[BareEvent] = []
    use(Blocks(events.append, Limits(**limits)))
    return events


def calls(*fragments: tuple[int | None, str, str, str], finish: bool = True) -> list[tuple[str, str, str]]:
    """The calls (id, name, arguments) that these fragments (index, id, name, arguments) add up to."""

    def use(blocks: Blocks) -> None:
        for fragment in fragments:
            blocks.call(*fragment)
        if finish:
            blocks.finish()

    found: list[tuple[str, str, str]] = []
    for event in run(use):
        if isinstance(event, ToolCallStart):
            found.append((event.call_id, event.name, ""))
        elif isinstance(event, ToolCallDelta):
            call_id, name, args = found.pop()
            found.append((call_id, name, args + event.args))
    return found


def test_fragments_by_index() -> None:
    assert calls((0, "a", "f", ""), (0, "", "", '{"city":'), (0, "", "", ' "Paris"}'), (1, "b", "f", ""), (1, "", "", ROME)) == [
        ("a", "f", PARIS),
        ("b", "f", ROME),
    ]


def test_equal_indexes_with_different_ids() -> None:
    assert calls((0, "a", "f", PARIS), (0, "b", "f", ROME)) == [("a", "f", PARIS), ("b", "f", ROME)]


def test_no_index_at_all() -> None:
    assert calls((None, "a", "f", '{"city":'), (None, "", "", ' "Paris"}'), (None, "b", "f", ROME)) == [
        ("a", "f", PARIS),
        ("b", "f", ROME),
    ]


def test_neither_index_nor_id() -> None:
    assert calls((None, "", "f", PARIS), (None, "", "g", ROME)) == [("call_1", "f", PARIS), ("call_2", "g", ROME)]


def test_two_whole_calls_of_one_tool_without_ids() -> None:
    assert calls((0, "", "f", PARIS), (0, "", "f", ROME)) == [("call_1", "f", PARIS), ("call_2", "f", ROME)]


def test_index_minus_one_and_a_first_index_of_one() -> None:
    assert calls((-1, "a", "f", '{"city":'), (-1, "", "", ' "Paris"}')) == [("a", "f", PARIS)]
    assert calls((1, "a", "f", PARIS), (2, "b", "g", ROME)) == [("a", "f", PARIS), ("b", "g", ROME)]


def test_id_and_name_repeated_in_every_fragment() -> None:
    assert calls((0, "a", "f", '{"city":'), (0, "a", "f", ' "Paris"}'), (1, "b", "f", ROME)) == [
        ("a", "f", PARIS),
        ("b", "f", ROME),
    ]


def test_the_name_repeated_without_an_id() -> None:
    assert calls((0, "", "f", '{"city":'), (0, "", "f", ' "Paris"}')) == [("call_1", "f", PARIS)]


def test_one_id_for_several_calls() -> None:
    both = [("a", "f", PARIS), ("a", "g", ROME)]
    assert calls((0, "a", "f", PARIS), (1, "a", "g", ROME)) == both
    assert calls((0, "a", "f", PARIS), (0, "a", "g", ""), (0, "", "", ROME)) == both
    assert calls((0, "a", "f", PARIS), (1, "a", "f", ""), (1, "", "", ROME)) == [("a", "f", PARIS), ("a", "f", ROME)]
    assert calls((None, "a", "f", PARIS), (None, "a", "f", ROME)) == [("a", "f", PARIS), ("a", "f", ROME)]
    assert calls((0, "a", "f", PARIS), (1, "b", "f", "{"), (0, "a", "g", ROME), (1, "b", "", "}")) == [
        ("a", "f", PARIS),
        ("b", "f", "{}"),
        ("a", "g", ROME),
    ]


def test_a_call_that_repeats_its_id_and_name_is_one() -> None:
    assert calls((0, "a", "", ""), (0, "a", "f", PARIS), (0, "a", "f", " ")) == [("a", "f", PARIS + " ")]
    free: list[BareEvent] = run(lambda blocks: [blocks.call(0, "a", "sql", piece, "custom") for piece in ("select", " 1")])
    assert free == [ToolCallStart("a", "sql", "custom"), ToolCallDelta("select"), ToolCallDelta(" 1")]


def test_arguments_continued_under_a_new_index_without_an_id() -> None:
    assert calls((0, "a", "f", '{"city":'), (7, "", "", ' "Paris"}')) == [("a", "f", PARIS)]


def test_an_id_that_comes_after_the_name_or_changes() -> None:
    assert calls((0, "", "f", '{"city":'), (0, "late", "", ' "Paris"}')) == [("call_1", "f", PARIS)]
    assert calls((0, "a", "f", '{"city":'), (0, "z", "", ' "Paris"}')) == [("a", "f", PARIS)]


def test_a_name_that_comes_after_the_id() -> None:
    assert calls((0, "a", "", ""), (0, "", "", '{"city":'), (0, "", "f", ' "Paris"}')) == [("a", "f", PARIS)]


def test_a_call_without_a_name_is_a_fault_of_the_upstream() -> None:
    with pytest.raises(UpstreamProtocolError, match="has no name"):
        calls((0, "a", "", "{}"))


def test_a_whole_call_waits_for_its_name() -> None:
    assert calls((0, "a", "", "{"), (1, "b", "g", "{}"), (0, "", "", "}"), (0, "", "f", "")) == [
        ("a", "f", "{}"),
        ("b", "g", "{}"),
    ]


def test_no_arguments_are_an_empty_object() -> None:
    assert calls((0, "a", "f", ""), (1, "b", "g", "  ")) == [("a", "f", "{}"), ("b", "g", "  {}")]


def test_interleaved_fragments_are_ordered() -> None:
    fragments = [(0, "a", "f", ""), (1, "b", "f", ""), (0, "", "", '{"city":'), (1, "", "", '{"city":')]
    fragments += [(0, "", "", ' "Paris"}'), (1, "", "", ' "Rome"}')]
    assert calls(*fragments) == [("a", "f", PARIS), ("b", "f", ROME)]


def test_a_call_that_is_whole_ends_when_the_next_one_starts() -> None:
    def use(blocks: Blocks) -> None:
        blocks.call(0, "a", "f", "{}")
        blocks.call(1, "b", "g", "{")

    assert run(use) == [
        ToolCallStart("a", "f"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        ToolCallStart("b", "g"),
        ToolCallDelta("{"),
    ]


def test_the_call_that_waited_continues_live() -> None:
    def use(blocks: Blocks) -> None:
        blocks.call(0, "a", "f", "{")
        blocks.call(1, "b", "g", "{")
        blocks.call(0, "", "", "}")
        blocks.call(1, "", "", "}")

    assert run(use)[-4:] == [ToolCallEnd(), ToolCallStart("b", "g"), ToolCallDelta("{"), ToolCallDelta("}")]


def test_text_after_an_unfinished_call_waits_and_text_after_a_whole_one_does_not() -> None:
    def waits(blocks: Blocks) -> None:
        blocks.call(0, "a", "f", "{")
        blocks.text("later")
        blocks.call(0, "", "", "}")

    assert run(waits) == [
        ToolCallStart("a", "f"),
        ToolCallDelta("{"),
        ToolCallDelta("}"),
        ToolCallEnd(),
        TextStart(),
        TextDelta("later"),
    ]

    def flows(blocks: Blocks) -> None:
        blocks.call(0, "a", "f", "{}")
        blocks.text("now")

    assert run(flows)[-3:] == [ToolCallEnd(), TextStart(), TextDelta("now")]


def test_a_custom_tool_takes_free_text() -> None:
    def use(blocks: Blocks) -> None:
        blocks.call(0, "a", "sql", "select {", "custom")
        blocks.call(1, "b", "sql", "", "custom")
        blocks.finish()

    assert run(use) == [
        ToolCallStart("a", "sql", "custom"),
        ToolCallDelta("select {"),
        ToolCallEnd(),
        ToolCallStart("b", "sql", "custom"),
        ToolCallEnd(),
    ]


def test_more_arguments_for_a_call_that_had_ended() -> None:
    assert calls((0, "a", "f", PARIS), (1, "b", "f", ROME), (0, "", "", " \n")) == [("a", "f", PARIS), ("b", "f", ROME)]
    with pytest.raises(UpstreamProtocolError, match="has ended"):
        calls((0, "a", "f", PARIS), (1, "b", "f", ROME), (0, "", "", "{}"))


def test_text_and_reasoning_end_each_other() -> None:
    def use(blocks: Blocks) -> None:
        blocks.reasoning("a")
        blocks.reasoning("b", summary=True)
        blocks.text("c")
        blocks.text("d", refusal=True)
        blocks.reasoning()
        blocks.finish()
        blocks.text("again")
        blocks.finish()

    assert run(use) == [
        ReasoningStart(),
        ReasoningDelta("a"),
        ReasoningEnd(),
        ReasoningStart(summary=True),
        ReasoningDelta("b"),
        ReasoningEnd(),
        TextStart(),
        TextDelta("c"),
        TextEnd(),
        TextStart(refusal=True),
        TextDelta("d"),
        TextEnd(),
        ReasoningStart(),
        ReasoningEnd(),
        TextStart(),
        TextDelta("again"),
        TextEnd(),
    ]


def test_named_blocks_that_overlap() -> None:
    def use(blocks: Blocks) -> None:
        first = blocks.open(TextStart())
        second = blocks.open_call("a", "f", "server", Echo("x", {"k": 1}))
        blocks.add(second, "{}")
        blocks.add(first, "one")
        blocks.end(second)
        blocks.add(first, "two")
        blocks.end(first, Echo("x", {}))
        blocks.end(first)

    assert run(use) == [
        TextStart(),
        TextDelta("one"),
        TextDelta("two"),
        TextEnd(Echo("x", {})),
        ToolCallStart("a", "f", "server", Echo("x", {"k": 1})),
        ToolCallDelta("{}"),
        ToolCallEnd(),
    ]


def test_only_calls_of_the_client_are_counted() -> None:
    blocks = Blocks(lambda event: None)
    blocks.open_call("a", "f", "server")
    assert blocks.calls == 0
    blocks.open_call("b", "f")
    assert blocks.calls == 1


def test_an_echo_may_be_made_at_the_end() -> None:
    def use(blocks: Blocks) -> None:
        blocks.reasoning("a").echo = lambda: Echo("x", {"made": "late"})
        blocks.finish()

    assert run(use)[-1] == ReasoningEnd(Echo("x", {"made": "late"}))


def test_when_the_model_was_stopped_a_half_call_is_marked() -> None:
    def use(blocks: Blocks) -> None:
        blocks.call(0, "a", "f", '{"city": "Pa')
        assert blocks.half_call()
        blocks.finish(cut=True)
        assert not blocks.half_call()
        blocks.call(1, "b", "f", PARIS)
        blocks.finish(cut=True)

    assert [event.complete for event in run(use) if isinstance(event, ToolCallEnd)] == [False, True]


def test_when_the_stream_broke_everything_is_closed_and_open_calls_are_marked() -> None:
    def use(blocks: Blocks) -> None:
        blocks.call(0, "a", "f", "{")
        blocks.call(1, "b", "g", PARIS)
        blocks.text("held")
        blocks.abort()

    assert run(use) == [
        ToolCallStart("a", "f"),
        ToolCallDelta("{"),
        ToolCallEnd(complete=False),
        ToolCallStart("b", "g"),
        ToolCallDelta(PARIS),
        ToolCallEnd(),
        TextStart(),
        TextDelta("held"),
        TextEnd(complete=False),
    ]


def test_a_broken_stream_with_a_nameless_call_in_front() -> None:
    def use(blocks: Blocks) -> None:
        blocks.call(0, "a", "", "{")
        blocks.text("held")
        blocks.abort()
        blocks.abort()

    assert run(use) == [TextStart(), TextDelta("held"), TextEnd(complete=False)]

    def ended(blocks: Blocks) -> None:
        blocks.call(0, "a", "", "{")
        blocks.end(blocks.open(TextStart()))
        blocks.text("open")
        blocks.abort()

    assert run(ended) == [TextStart(), TextEnd(), TextStart(), TextDelta("open"), TextEnd(complete=False)]


def test_citations_and_media_stand_in_the_newest_text_or_alone() -> None:
    cite, media = Citation("http://a"), Media("image/png", "aa")

    def use(blocks: Blocks) -> None:
        blocks.put(media)
        blocks.text("a")
        blocks.put(cite)
        blocks.call(0, "a", "f", "{}")
        blocks.put(cite)
        blocks.call(0, "b", "f", "{")
        blocks.put(media)
        blocks.text("held")
        blocks.put(cite)
        blocks.finish()

    assert run(use) == [
        media,
        TextStart(),
        TextDelta("a"),
        cite,
        TextEnd(),
        ToolCallStart("a", "f"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        cite,
        ToolCallStart("b", "f"),
        ToolCallDelta("{"),
        ToolCallEnd(complete=False),
        TextStart(),
        media,
        TextEnd(),
        TextStart(),
        TextDelta("held"),
        cite,
        TextEnd(),
    ]


def test_cut_surrogates_are_joined_inside_a_block() -> None:
    def use(blocks: Blocks) -> None:
        blocks.lone_surrogates = True
        blocks.text("\ud83d")
        blocks.text("\ude00")
        blocks.text("\ud83d")
        blocks.finish()

    assert run(use) == [TextStart(), TextDelta("😀"), TextDelta("�"), TextEnd()]


@pytest.mark.parametrize(
    ("limit", "value", "use"),
    [
        ("block_chars", 3, lambda blocks: [blocks.text("ab"), blocks.text("cd")]),
        ("block_chars", 9, lambda blocks: blocks.keep(blocks.reasoning("a"), Echo("p", {"s": "1234"}))),
        ("block_chars", 9, lambda blocks: blocks.open_call("c", "f", native=Echo("p", {"s": "1234"}))),
        ("block_chars", 9, lambda blocks: [blocks.count_opaque(blocks.reasoning("a"), 8), blocks.reasoning("b")]),
        ("extra_bytes", 9, lambda blocks: blocks.put(Citation(native=Echo("p", {"s": "1234"})))),
        ("media_chars", 3, lambda blocks: blocks.put(Media("image/png", "1234"))),
        ("blocks", 1, lambda blocks: [blocks.text("a"), blocks.reasoning("b")]),
        ("citations", 2, lambda blocks: [blocks.put(Citation(str(number))) for number in range(3)]),
        ("held_blocks", 2, lambda blocks: [blocks.call(number, str(number), "f", "{") for number in range(3)]),
        ("held_chars", 3, lambda blocks: [blocks.call(0, "a", "f", "{"), blocks.text("abcd")]),
    ],
)
def test_limits_are_enforced(limit: str, value: int, use: Callable[[Blocks], object]) -> None:
    with pytest.raises(LimitExceeded) as raised:
        run(use, **{limit: value})
    assert raised.value.code == f"limit_{limit}"


def test_state_that_replaces_earlier_state_counts_once() -> None:
    def use(blocks: Blocks) -> None:
        block = blocks.reasoning("a")
        blocks.count_opaque(block, 5)
        for _ in range(20):
            blocks.keep(block, Echo("p", {"s": "1234"}))
        blocks.end(block, Echo("p", {"s": "123"}))

    assert run(use, block_chars=13)[-1] == ReasoningEnd(Echo("p", {"s": "123"}))


def test_released_calls_no_longer_count_for_the_limit() -> None:
    def use(blocks: Blocks) -> None:
        for number in range(20):
            blocks.call(2 * number, f"a{number}", "f", "{")
            blocks.call(2 * number + 1, f"b{number}", "f", "{}")
            blocks.call(2 * number, "", "", "}")

    run(use, held_chars=8)
