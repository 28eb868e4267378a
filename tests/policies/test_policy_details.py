"""Cases that no other test covers: missing packages, unusual blocks, options of library users."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from policies.policy_streams import call, calls_of, in_characters, normal, run, split, stream, text, text_of
from streamglot.errors import ConfigError
from streamglot.events import Choice, Event, StreamEnd, StreamStart, ToolCallStart
from streamglot.json.schema import parse_path
from streamglot.patterns.expressions import engine
from streamglot.patterns.scanner import Words
from streamglot.policies import (
    DEFER,
    Callbacks,
    JudgeContext,
    Needs,
    Options,
    Pattern,
    PatternSet,
    Piece,
    Policy,
    Verdict,
    apply_policies,
    block,
    load_policies,
    pattern,
    policy_stage,
    run_policies,
    sentence,
)
from streamglot.policies.running.sentences import MAX_SENTENCE_CHARS, Deltas, Sentences
from streamglot.stages.stage import ExchangeContext


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("re2", "ahocorasick"):
        monkeypatch.setitem(sys.modules, module, None)
    engine.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'streamglot\[policies\]'"):
        engine()
    with pytest.raises(ConfigError, match=r"pip install 'streamglot\[policies\]'"):
        Words(["a"])
    monkeypatch.undo()
    assert engine().__name__ == "re2"


def test_options_are_frozen_deeply() -> None:
    class Nested(Options, frozen=True):
        names: Any = ()

    assert Nested([{"a": [1]}, {2}]).names[0]["a"] == (1,)
    assert Nested(([1],)).names == ((1,),)
    assert Nested({3}).names == frozenset({3})
    same = (1, (2,))
    assert Nested(same).names is same


def test_long_text_without_sentences_is_judged_in_parts() -> None:
    box = Sentences()
    long = "x" * (MAX_SENTENCE_CHARS + 5)
    parts = [segment for piece in (long[:100], long[100:], " end.\nNext") for segment in box.feed(piece)] + box.close()
    assert [len(part.text) for part in parts] == [MAX_SENTENCE_CHARS, 11, 4]  # type: ignore[union-attr]  # judged parts
    assert Deltas().feed("") == Deltas().close() == []


def test_sentences_end_at_their_marks_in_any_cut() -> None:
    text = 'He said "Stop!" and left. 日本。Yes... (no.) v1.2 is out\nA line'
    expected = ['He said "Stop!" ', "and left. ", "日本。", "Yes... ", "(no.) ", "v1.2 is out\n", "A line"]
    for pieces in ([text], list(text)):
        box = Sentences()
        assert [part.text for piece in pieces for part in box.feed(piece)] + [part.text for part in box.close()] == expected  # type: ignore[union-attr]  # judged parts


def test_paths_need_steps_that_can_be_read() -> None:
    for wrong in ("", "a", "$a", "$.", "$[x]", "$.a[", "$..", "$['a]"):
        with pytest.raises(ConfigError, match="is not a path"):
            parse_path(wrong)


def test_an_answer_of_a_pattern_policy_that_defers_is_awaited_as_a_whole() -> None:
    class Later(Policy, frozen=True):
        def needs(self) -> Needs:
            return pattern(PatternSet([Pattern("x", "x")]), "tool_result", "text")

        def judge(self, piece: Piece, context: JudgeContext) -> Any:
            return DEFER

    from streamglot.events import ToolResult
    from streamglot.policies import refuse, rewrite

    def resolve(question: Any) -> Verdict:
        return rewrite("-") if question.piece.kind == "text" else refuse(f"no {question.piece.text}")

    after = run(stream(text("a x b"), [ToolResult("c", "a x")]), Later(), resolve=resolve)
    assert text_of(after) == "a - b"
    assert after[-2] == ToolResult("c", "no a x", is_error=True)

    def failing(question: Any) -> Verdict:
        raise ConnectionError(question)

    assert "withheld" in text_of(run(stream(text("x")), Later(), resolve=failing))


def test_policies_after_one_that_holds_everything_see_the_rest() -> None:
    both = load_policies(
        [
            {"use": "json_schema", "schema": {"type": "array"}, "on_violation": "refuse", "message": "no"},
            {"use": "redact", "words": ["no"]},
        ]
    )
    assert text_of(run(stream(text("{}")), *both)) == "[word]"


def test_events_after_an_end_are_not_fed_to_a_chain_that_is_done() -> None:
    stage = policy_stage([Callbacks(on_block_complete=lambda piece: None)])(ExchangeContext())
    assert stage is not None
    events = stream(text("a"))
    assert stage.feed([*events, *events[1:]]) == events
    assert stage.feed([StreamStart()]) == []


def test_a_choice_that_starts_late_sees_the_start() -> None:
    seen: list[str] = []
    policy = Callbacks(on_block_complete=lambda piece: seen.append(piece.text), observe=True)
    late = [Choice(2, event) for event in (*text("b"), StreamEnd()) if not isinstance(event, Choice)]
    events: list[Event] = [StreamStart(), *text("a"), *late, StreamEnd()]
    assert apply_policies(events, [policy]) == events
    assert seen == ["a", "b"]


def test_reads_without_events_give_nothing() -> None:
    policy = Callbacks(on_block_complete=lambda piece: None)
    assert list(run_policies([[], [StreamStart()], []], [policy])) == [[StreamStart()]]


def test_an_unfinished_run_ends_where_the_reads_end() -> None:
    class Whole(Policy, frozen=True):
        def needs(self) -> Needs:
            return block("text") | sentence("reasoning")

    assert list(run_policies([[StreamStart(), *text("a")[:2]]], [Whole()])) == [[StreamStart()]]


def test_block_patterns_for_calls_alone() -> None:
    (policy,) = load_policies([{"use": "block_patterns", "detectors": ["email"], "apply_to": ["tool_arguments"]}])
    events = stream(text("a@b.org"), call("f", '{"to": "a@b.org"}'), reason="tool_calls")
    for cut in (events, split(events, in_characters)):
        after = run(cut, policy)
        assert (text_of(after), calls_of(after)) == ("a@b.org[withheld: email]", [])


def test_a_match_that_spans_old_and_new_text_of_many_deltas() -> None:
    (policy,) = load_policies([{"use": "redact", "patterns": {"k": "k[0-9]+k"}}])
    pieces = ["a k", "1", "2", "", "3", "k b", "k4", " c k", "5"]
    for reads in ([stream(text(*pieces))], [[event] for event in stream(text(*pieces))]):
        after = [event for read in run_policies(reads, [policy]) for event in read]
        assert text_of(after) == "a [k] bk4 c k5"
    assert normal(run(stream(text(*pieces)), policy)) == normal(stream(text("a [k] bk4 c k5")))


def test_a_server_call_is_not_a_reason_to_wait_for_results() -> None:
    events: list[Event] = [ToolCallStart("s", "search", "server"), *call("x")[-1:]]
    (policy,) = load_policies([{"use": "deny_tools", "tools": ["search"], "message": ""}])
    assert run(stream(events, text("a")), policy) == stream(text("a"))
