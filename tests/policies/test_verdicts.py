"""The effect of each verdict on each kind of block: the events that leave, the stop reason, signatures, and the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from policies.policy_streams import call, calls_of, normal, reasoning, run, stream, text, text_of
from streamglot.policies import (
    FORWARD,
    JudgeContext,
    Needs,
    Pattern,
    PatternSet,
    Piece,
    Policy,
    Verdict,
    answer,
    block,
    delta,
    end,
    pattern,
    policy_stage,
    refuse,
    replace,
    rewrite,
    sentence,
)
from streamglot.policies.running.release import MAX_HELD_CHARS
from streamglot.stages.stage import ExchangeContext
from vocabulary import *

SIGNED = Echo("p", {"signature": "s"})
NEEDS: dict[str, Needs] = {
    "block": block("text", "reasoning", "tool_call", "tool_result", "citation", "media"),
    "sentence": sentence("text", "reasoning"),
    "delta": delta("text", "reasoning", "tool_call"),
    "answer": answer(),
}


class Judge(Policy, frozen=True, kw_only=True):
    """Judges with a function."""

    by: Callable[[Piece], Verdict]
    unit: str = "block"

    def needs(self) -> Needs:
        return NEEDS[self.unit]

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        return self.by(piece)


class Matches(Judge, frozen=True, kw_only=True):
    """Judges the matches of ``xx``."""

    kinds: tuple[Any, ...] = ("text", "reasoning", "tool_call", "tool_result", "citation")

    def needs(self) -> Needs:
        return pattern(PatternSet([Pattern("xx", "xx")]), *self.kinds)


def on(kind: str, verdict: Verdict) -> Callable[[Piece], Verdict]:
    return lambda piece: verdict if piece.kind == kind else FORWARD


def named(name: str, verdict: Verdict) -> Callable[[Piece], Verdict]:
    return lambda piece: verdict if piece.name == name else FORWARD


TWO_CALLS = stream(
    text("I call."), call("one", '{"a":', "1}", echo=SIGNED), call("two", '{"b": 2}', echo=SIGNED), reason="tool_calls"
)


def test_a_forwarded_stream_is_the_same_stream() -> None:
    events = stream(
        reasoning("hm", echo=SIGNED),
        [
            TextStart(),
            TextDelta("a"),
            Citation("u", cited_text="c", start=0, end=1),
            Extra("d", {"logprobs": []}),
            TextEnd(SIGNED),
        ],
        [Media("image/png", url="http://a"), ToolResult("c", "r", native=SIGNED), StepEnd(1), Usage(1)],
        call("f", "{}", echo=SIGNED),
        reason="tool_calls",
    )
    for unit in NEEDS:
        expected = [event for event in events if not isinstance(event, Extra)] if unit == "sentence" else events
        after = run(events, Judge(by=lambda piece: FORWARD, unit=unit))
        if unit in (
            "block",
            "sentence",
        ):  # a citation leaves after a block that is held whole, and before the text that a pattern holds
            assert sorted(map(repr, after)) == sorted(map(repr, expected))
        else:
            assert after == expected


def test_the_second_of_two_calls_is_rewritten() -> None:
    after = run(TWO_CALLS, Judge(by=named("two", rewrite('{"b": 3}', name="three"))))
    assert calls_of(after) == [("one", '{"a":1}'), ("three", '{"b": 3}')]
    assert [event.echo for event in after if isinstance(event, ToolCallEnd)] == [SIGNED, None]
    assert after[-1] == StreamEnd("tool_calls")


def test_a_call_keeps_its_arguments_under_another_name() -> None:
    assert calls_of(run(TWO_CALLS, Judge(by=named("one", rewrite(name="x")))))[0] == ("x", '{"a":1}')
    assert run(TWO_CALLS, Judge(by=named("one", rewrite()))) == TWO_CALLS


def test_one_of_two_calls_is_refused() -> None:
    after = run(TWO_CALLS, Judge(by=named("one", refuse("no."))))
    assert calls_of(after) == [("two", '{"b": 2}')]
    assert text_of(after) == "I call.no."
    assert after[-1] == StreamEnd("tool_calls")


def test_all_calls_are_refused_and_the_stop_reason_is_corrected() -> None:
    events = [*TWO_CALLS[:-1], StreamEnd("tool_calls", "tool_use")]
    for unit in ("block", "delta"):
        after = run(events, Judge(by=on("tool_call", refuse("no.")), unit=unit))
        assert calls_of(after) == []
        assert text_of(after) == "I call.no.no."
        assert after[-1] == StreamEnd("end")


def test_a_refusal_without_a_message_leaves_nothing() -> None:
    after = run(TWO_CALLS, Judge(by=on("tool_call", refuse(""))))
    assert after == [*TWO_CALLS[:4], StreamEnd("end")]


def test_a_call_is_replaced_by_text() -> None:
    after = run(TWO_CALLS, Judge(by=on("tool_call", replace("(done)"))))
    assert text_of(after) == "I call.(done)(done)"
    assert after[-1] == StreamEnd("end")


def test_the_result_of_a_refused_call_is_dropped() -> None:
    server: list[Event] = [
        ToolCallStart("s", "search", "server"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        ToolResult("s", "found"),
        ToolResult("o", "x"),
    ]
    after = run(stream(server, text("so"), reason="end"), Judge(by=on("tool_call", refuse("no."))))
    assert [event.content for event in after if isinstance(event, ToolResult)] == ["x"]
    assert after[-1] == StreamEnd("end")


def test_calls_of_an_earlier_step_do_not_count() -> None:
    events = stream(call("one", "{}"), [ToolResult("call_one", "1"), StepEnd(1)], call("two", "{}"), reason="tool_calls")
    assert run(events, Judge(by=named("two", refuse("no"))))[-1] == StreamEnd("end")


@pytest.mark.parametrize("unit", ["block", "sentence"])
def test_text_is_rewritten_and_its_signature_dropped(unit: str) -> None:
    events = stream([TextStart(), TextDelta("a b. "), TextDelta("c d."), TextEnd(SIGNED)], reasoning("x. ", "y.", echo=SIGNED))
    after = run(events, Judge(by=lambda piece: rewrite(piece.text.upper()), unit=unit))
    assert (text_of(after), text_of(after, ReasoningDelta)) == ("A B. C D.", "X. Y.")
    assert [getattr(event, "echo", None) for event in after] == [None] * len(after)


def test_a_block_that_is_not_changed_keeps_its_signature() -> None:
    events = stream([TextStart(), TextDelta("a. "), TextEnd(SIGNED)], [TextStart(), TextDelta("B. "), TextEnd(SIGNED)])
    after = run(events, Judge(by=lambda piece: rewrite("b. ") if piece.text == "B. " else FORWARD, unit="sentence"))
    assert [event.echo for event in after if isinstance(event, TextEnd)] == [SIGNED, None]


def test_a_refused_sentence_takes_the_rest_of_its_block_with_it() -> None:
    events = stream(text("One. Two. Three."), text("Four."))
    after = run(events, Judge(by=lambda piece: refuse("[…]") if "Two" in piece.text else FORWARD, unit="sentence"))
    assert text_of(after) == "One. […]Four."
    assert after[-1] == StreamEnd("content_filter")


def test_refused_reasoning_says_so_where_it_was() -> None:
    for unit in ("sentence", "block"):
        after = run(stream(reasoning("Bad. ", "more"), text("Fine.")), Judge(by=on("reasoning", refuse("[…]")), unit=unit))
        assert (text_of(after, ReasoningDelta), text_of(after)) == ("[…]", "Fine.")
        assert after[-1] == StreamEnd("end")


def test_a_refused_text_block_is_replaced() -> None:
    after = run(stream(text("bad")), Judge(by=on("text", refuse("[…]"))))
    assert after == stream(text("[…]"), reason="content_filter")
    assert run(stream(text("bad")), Judge(by=on("text", refuse("")))) == stream(reason="content_filter")
    assert run(stream(text("bad")), Judge(by=on("text", replace("good")))) == stream(text("good"))


def test_results_citations_and_media() -> None:
    events = stream([ToolResult("c", "r", native=SIGNED), Citation("u", cited_text="c", native=SIGNED), Media("m", "AA")])
    upper = run(events, Judge(by=lambda piece: rewrite(piece.text.upper())))
    assert upper[1:-1] == [ToolResult("c", "R"), Citation("u", cited_text="C")]
    refused = run(events, Judge(by=lambda piece: refuse("no")))
    assert refused[1:-1] == [ToolResult("c", "no", is_error=True)]
    replaced = run(events, Judge(by=lambda piece: replace("other")))
    assert replaced[1:-1] == [ToolResult("c", "other")]
    assert run(events, Judge(by=lambda piece: rewrite())) == events


def test_events_in_a_changed_block_other_than_its_text_stay() -> None:
    inside: list[Event] = [
        TextStart(),
        TextDelta("a"),
        Usage(1),
        Extra("d", {"logprobs": 1}),
        Extra("d", {"k": 1}),
        KeepAlive(),
        TextEnd(),
    ]
    after = run(stream(inside), Judge(by=on("text", rewrite("b"))))
    assert after == [
        StreamStart("id", "m", 1),
        KeepAlive(),
        TextStart(),
        TextDelta("b"),
        Usage(1),
        Extra("d", {"k": 1}),
        TextEnd(),
        StreamEnd(),
    ]
    gone = run(stream(inside), Judge(by=on("text", replace(""))))
    assert gone == [StreamStart("id", "m", 1), KeepAlive(), Usage(1), Extra("d", {"k": 1}), StreamEnd()]


# --- matches


def test_matches_are_replaced_and_the_rest_flows() -> None:
    events = stream(
        [TextStart(), TextDelta("a x"), TextDelta("x b"), Citation("u", cited_text="xx", start=0, end=1), TextEnd(SIGNED)]
    )
    after = run(events, Matches(by=lambda piece: replace("-")))
    assert normal(after)[2:-1] == [TextDelta("a - b"), Citation("u", cited_text="-"), TextEnd()]


def test_a_citation_in_unchanged_text_keeps_its_offsets() -> None:
    cited = Citation("u", cited_text="c", start=0, end=1)
    events = stream([TextStart(), TextDelta("a x"), cited, TextDelta("y"), TextEnd(SIGNED)])
    assert normal(run(events, Matches(by=lambda piece: replace("-")))) == [
        *(StreamStart("id", "m", 1), TextStart(), TextDelta("a "), cited, TextDelta("xy"), TextEnd(SIGNED), StreamEnd()),
    ]


def test_log_probabilities_repeat_the_text_and_are_dropped() -> None:
    inside: list[Event] = [
        TextStart(),
        TextDelta("x"),
        Extra("d", {"choice": {"logprobs": ["x"]}}),
        Extra("d", {"k": ["xx", 1]}),
        TextEnd(),
    ]
    after = run(stream(inside), Matches(by=lambda piece: replace("-")))
    assert [event for event in after if isinstance(event, Extra)] == [Extra("d", {"k": ["-", 1]})]
    other = run(stream(inside), Matches(by=lambda piece: replace("-"), kinds=("reasoning",)))
    assert other == stream(inside)


def test_a_refused_match_in_text_withholds_the_rest_of_the_block() -> None:
    after = run(stream(text("a x", "x b", "c"), text("d")), Matches(by=lambda piece: refuse("[…]")))
    assert text_of(after) == "a […]d"
    assert after[-1] == StreamEnd("content_filter")


def test_a_call_that_was_begun_cannot_be_refused_any_more() -> None:
    after = run(stream(call("f", '{"a": "', 'xx"}'), text("more"), reason="tool_calls"), Matches(by=lambda piece: refuse("no")))
    assert after[-2:] == [ToolCallEnd(complete=False), StreamError("policy_refused", "no", "policy", False, 403)]
    assert text_of(after) == ""


def test_a_call_that_was_not_begun_is_refused_by_its_first_match() -> None:
    custom: list[Event] = [ToolCallStart("c", "f", "custom"), ToolCallDelta("xx and more"), ToolCallEnd()]
    after = run(stream(custom, reason="tool_calls"), Matches(by=lambda piece: refuse("no")))
    assert after == stream(text("no"))


def test_the_native_form_of_a_block_with_a_match_is_dropped() -> None:
    native = Echo("p", {"input": {"q": "xx"}})
    clean = Echo("p", {"input": {"q": "y"}})
    for given, left in ((native, None), (clean, clean)):
        events = stream([ToolCallStart("c", "f", "server", given), ToolCallEnd(), ToolResult("c", "r", native=given)])
        after = run(events, Matches(by=lambda piece: replace("-")))
        assert [event.native for event in after if isinstance(event, (ToolCallStart, ToolResult))] == [left, left]


def test_a_refused_match_in_a_result_or_a_title_is_dropped() -> None:
    events = stream([ToolResult("c", "a xx"), Citation("http://xx", "xx", "b")])
    after = run(events, Matches(by=lambda piece: refuse("no")))
    assert after[1:-1] == [ToolResult("c", "no", is_error=True), Citation(cited_text="b")]


def test_a_candidate_that_does_not_end_is_withheld() -> None:
    class Keys(Judge, frozen=True, kw_only=True):
        def needs(self) -> Needs:
            return pattern(PatternSet([Pattern("key", "k[a-z]+!")], hold_chars=2048), "text", "tool_result", "tool_call")

    policy = Keys(by=lambda piece: replace("-"))
    context = ExchangeContext()
    after = run(stream(text("free k" + "a" * 5000), text("next")), policy, context=context)
    assert text_of(after) == "free [withheld: a possible match of a pattern did not end]next"
    assert after[-1] == StreamEnd("content_filter")
    assert context.annotations["policies"][0]["reason"] == "a possible match grew past the hold limit of 2048 characters"
    (result,) = run(stream([ToolResult("c", "k" + "a" * 5000)]), policy)[1:-1]
    assert isinstance(result, ToolResult)
    assert result.content.startswith("[withheld")
    assert isinstance(run(stream(call("f", '{"a":"k' + "a" * 5000 + '"}')), policy)[-1], StreamError)


# --- the whole answer


def test_the_whole_answer_is_judged_once() -> None:
    seen: list[Piece] = []

    def note(piece: Piece) -> Verdict:
        seen.append(piece)
        return FORWARD

    events = stream(
        reasoning("r"), text("a"), text("b"), call("f", "{}"), [ToolResult("c", "x", True), Media("m")], reason="tool_calls"
    )
    assert run(events, Judge(by=note, unit="answer")) == events
    (piece,) = seen
    assert (piece.kind, piece.text, piece.stop, piece.complete) == ("answer", "ab", "tool_calls", True)
    assert [(part.kind, part.text) for part in piece.parts] == [
        *(("reasoning", "r"), ("text", "a"), ("text", "b"), ("tool_call", "{}"), ("tool_result", "x")),
    ]


@pytest.mark.parametrize(
    ("verdict", "expected", "last"),
    [
        (rewrite("new"), "new", StreamEnd("tool_calls")),
        (rewrite(), "ab", StreamEnd("tool_calls")),
        (replace("new"), "new", StreamEnd("end")),
        (refuse("no"), "no", StreamEnd("content_filter")),
        (end("why", text="cut"), "cut", StreamError("policy_refused", "why", "policy", False, 403)),
        (end(text="cut", stop="length"), "cut", StreamEnd("length")),
    ],
)
def test_verdicts_on_the_whole_answer(verdict: Verdict, expected: str, last: Event) -> None:
    inside: list[Event] = [TextStart(), TextDelta("b"), Extra("d", {"logprobs": 1}), Usage(1), TextEnd()]
    after = run(stream(text("a"), inside, call("f", "{}"), reason="tool_calls"), Judge(by=lambda piece: verdict, unit="answer"))
    assert (text_of(after), after[-1]) == (expected, last)
    assert Usage(1) in after


def test_a_text_is_added_to_an_answer_without_one() -> None:
    assert text_of(run(stream(call("f", "{}")), Judge(by=lambda piece: rewrite("new"), unit="answer"))) == "new"


def test_an_answer_that_broke_off_stays_an_error() -> None:
    error = StreamError("upstream_truncated", "cut")
    broken = [*stream(text("a"))[:-1], error]
    seen: list[bool] = []

    def refusing(piece: Piece) -> Verdict:
        seen.append(piece.complete)
        return refuse("no")

    assert run(broken, Judge(by=refusing, unit="answer"))[-2:] == [TextEnd(), error]
    assert run(broken, Judge(by=lambda piece: replace("x"), unit="answer"))[-1] == error
    assert run(broken, Judge(by=lambda piece: end(stop="end"), unit="answer"))[-1] == error
    assert seen == [False]
    assert run([StreamStart(), error], Judge(by=lambda piece: FORWARD, unit="answer")) == [StreamStart(), error]


# --- ends


def test_a_stream_ends_with_an_error_of_the_policy() -> None:
    events = stream(text("One. Two. Three."))
    after = run(events, Judge(by=lambda piece: end("stop it") if "Two" in piece.text else FORWARD, unit="sentence"))
    assert after[-3:] == [TextDelta("One. "), TextEnd(), StreamError("policy_refused", "stop it", "policy", False, 403)]
    assert run(events, Judge(by=lambda piece: end()))[-1] == StreamError(
        "policy_refused", "a policy ended the answer", "policy", False, 403
    )


def test_a_stream_ends_as_if_the_model_had_stopped() -> None:
    after = run(stream(text("abc"), text("d")), Judge(by=lambda piece: end(text="ab", stop="length"), unit="delta"))
    assert after == stream(text("ab"), reason="length")
    after = run(stream(text("abc"), text("d")), Judge(by=lambda piece: end(text="ab", stop="length")))
    assert after == stream(text("ab"), reason="length")
    after = run(
        stream(call("f", '{"a"', ":1}"), reason="tool_calls"),
        Judge(by=lambda piece: end(stop="length") if piece.text == ":1}" else FORWARD, unit="delta"),
    )
    assert after[-2:] == [ToolCallEnd(complete=False), StreamEnd("length")]


def test_a_block_that_another_policy_lets_through_is_closed_at_the_end() -> None:
    events = stream([TextStart(), TextDelta("a"), Citation(cited_text="x"), TextDelta("b"), TextEnd()])

    class OfCitations(Judge, frozen=True, kw_only=True):
        def needs(self) -> Needs:
            return block("citation")

    after = run(events, OfCitations(by=lambda piece: end(stop="end")))
    assert after == stream(text("a"))


def test_too_much_that_is_held_ends_the_stream() -> None:
    long = "x" * (MAX_HELD_CHARS // 2)
    for unit in ("block", "answer"):
        after = run(stream(text(long, long, "y")), Judge(by=lambda piece: FORWARD, unit=unit))
        last = after[-1]
        assert isinstance(last, StreamError)
        assert (last.code, last.origin) == ("limit_policy_held_chars", "policy")


def test_nothing_follows_the_end() -> None:
    stage = policy_stage([Judge(by=lambda piece: end(stop="end"))])(ExchangeContext())
    assert stage is not None
    assert stage.feed(stream(text("a"))[:4])[-1] == StreamEnd("end")
    assert stage.feed(stream(text("b"))[1:]) == []
    assert stage.close() == []


def test_forwarded_pieces_of_a_call_do_not_become_text() -> None:
    after = run(TWO_CALLS, Judge(by=named("two", end(text="lost", stop="end"))))
    assert (text_of(after), after[-1]) == ("I call.", StreamEnd("end"))


def test_an_empty_block_passes_as_it_came() -> None:
    events = stream(text(), reasoning(), call("f"), reason="tool_calls")
    for unit in ("delta", "sentence", "block"):
        assert run(events, Judge(by=lambda piece: FORWARD, unit=unit)) == events


def test_a_stream_that_breaks_off_inside_a_call_keeps_the_call_unfinished() -> None:
    broken = [*stream(call("f", '{"a', complete=False))[:-1], StreamError("upstream_truncated", "cut")]
    seen: list[bool] = []

    def note(piece: Piece) -> Verdict:
        seen.append(piece.complete)
        return FORWARD

    assert run(broken, Judge(by=note)) == broken
    assert seen == [False]


# --- failures and records


def test_a_policy_that_fails_refuses_unless_on_error_is_forward() -> None:
    def failing(_piece: Piece) -> Verdict:
        raise ValueError("broken")

    context = ExchangeContext()
    after = run(stream(call("f", "{}"), reason="tool_calls"), Judge(by=failing), context=context)
    assert (calls_of(after), after[-1]) == ([], StreamEnd("end"))
    assert "withheld" in text_of(after)
    assert "broken" not in text_of(after)
    (fact,) = context.annotations["policies"]
    assert (fact["verdict"], fact["reason"]) == ("refuse", "the policy failed: ValueError: broken")
    events = stream(call("f", "{}"), reason="tool_calls")
    context = ExchangeContext()
    assert run(events, Judge(by=failing, on_error="forward"), context=context) == events
    assert [fact["verdict"] for fact in context.annotations["policies"]] == ["forward"]
    assert calls_of(run(events, Judge(by=lambda piece: "no verdict"))) == []  # type: ignore[arg-type,return-value]  # a wrong policy


def test_a_policy_that_ends_the_process_fails() -> None:
    def leaving(_piece: Piece) -> Verdict:
        raise SystemExit(3)

    context = ExchangeContext()
    after = run(stream(call("f", "{}"), reason="tool_calls"), Judge(by=leaving), context=context)
    assert calls_of(after) == []
    (fact,) = context.annotations["policies"]
    assert fact["reason"] == "the policy failed: RuntimeError: it tried to end the process with the status 3"


def test_the_record_has_the_original_the_changed_form_and_the_verdict() -> None:
    context = ExchangeContext()
    run(TWO_CALLS, Judge(by=named("two", rewrite('{"b": 3}', reason="too small"))), context=context)
    assert context.annotations["policies"] == [
        {
            "policy": f"{__name__}:Judge",
            "version": "1",
            "verdict": "rewrite",
            "direction": "answer",
            "kind": "tool_call",
            "tool": "two",
            "call_id": "call_two",
            "reason": "too small",
            "original": '{"b": 2}',
            "changed": '{"b": 3}',
        }
    ]


def test_records_are_bounded() -> None:
    context = ExchangeContext()
    long = "x" * 70_000
    run(stream(text(*["One. "] * 1100)), Judge(by=lambda piece: rewrite(long), unit="sentence"), context=context)
    facts = context.annotations["policies"]
    assert (len(facts), facts[-1]["more"]) == (1000, 100)
    assert facts[0]["changed"].endswith("(70000 characters in all)")
    context = ExchangeContext()
    run(stream(text("xx xx xx")), Matches(by=lambda piece: rewrite("-"), store_original=False), context=context)
    assert [fact["count"] for fact in context.annotations["policies"]] == [3]
