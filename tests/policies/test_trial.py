"""Policies are tried on recordings, and replayed over stored turns."""

from __future__ import annotations

from typing import Any

import pytest

from policies.policy_streams import call, reasoning, stream, text, text_of
from streamglot import collect
from streamglot.errors import ConfigError
from streamglot.events import Choice, Event, StreamEnd, StreamError, StreamStart, TextDelta, ToolResult
from streamglot.messages import Message, Request, TextPart
from streamglot.policies import Callbacks, Policy, load_policies, refuse
from streamglot.policies.load import description
from streamglot.policies.trial import (
    Hold,
    RecordedTurn,
    Replay,
    ReplayReport,
    replay_policies,
    side_by_side,
    summary,
    try_policies,
)

TABLES: list[dict[str, Any]] = [
    {"use": "redact", "detectors": ["email"]},
    {"use": "dry_run", "policy": {"use": "deny_tools", "tools": ["rm"]}},
]
EVENTS = stream(
    reasoning("Hm."), text("Write to jane", "@example", ".org!", " Bye."), call("rm", '{"a": 1}'), reason="tool_calls"
)


def timed(events: list[Event], seconds: float = 0.5) -> list[tuple[float, list[Event]]]:
    return [(number * seconds, [event]) for number, event in enumerate(events)]


def test_a_trial_says_what_was_held_and_for_how_long() -> None:
    trial = try_policies(timed(EVENTS), load_policies(TABLES))
    assert trial.before == EVENTS
    assert text_of(trial.after) == "Write to [email]! Bye."
    # The dot after the thought may belong to an address, and so may "Bye."; each waits until its block ends.
    assert trial.holds == [Hold(1.0, 0.5, "Hm."), Hold(2.5, 1.0, "jane@example"), Hold(4.0, 0.5, "Bye.")]
    assert [(fact["policy"], fact["verdict"]) for fact in trial.verdicts] == [("redact", "rewrite"), ("deny_tools", "refuse")]
    assert list(summary(trial)) == [
        "held 3 times, at most 12 characters, at most 1.00 s",
        "redact: rewrite text email: email",
        "deny_tools: would refuse tool_call rm: the tool rm is not allowed",
    ]


def test_a_trial_is_shown_side_by_side() -> None:
    lines = list(side_by_side(try_policies(timed(EVENTS), load_policies(TABLES)), 100))
    assert lines[0].split() == ["seconds", "before", "after"]
    shown = "\n".join(lines)
    assert "text 'Write to jane'" in shown
    assert "… 12 held: 'jane@example'" in shown
    assert "text '[email]!'" in shown
    assert all(len(line) <= 100 for line in lines)


def test_every_kind_of_event_is_shown() -> None:
    events: list[Event] = [
        StreamStart(),
        Choice(1, TextDelta("b")),
        *text("a"),
        ToolResult("c", "r"),
        *call("f", "{}"),
        Choice(1, StreamEnd()),
        StreamEnd(),
    ]
    lines = "\n".join(side_by_side(try_policies([(0.0, events), (0.0, [])], []), 60))
    for word in ("start", "[1] text 'b'", "text 'a'", "result 'r'", "call of f", "arguments '{}'", "[1] end: end", "end: end"):
        assert word in lines
    assert "error: m" in "\n".join(side_by_side(try_policies([(0.0, [StreamError("c", "m")])], [])))


def test_nothing_is_shown_after_an_early_end_and_repeats_are_counted() -> None:
    trial = try_policies(timed(stream(text("abc", "def"))), load_policies([{"use": "max_output", "chars": 2}]))
    assert trial.after[-1] == StreamEnd("length")
    assert next(summary(trial)) == "nothing was held"
    quiet = try_policies(timed(stream(text("abc"))), load_policies(TABLES), request=Request(model="m"))
    assert list(summary(quiet))[-1] == "no policy gave a verdict"
    twice = try_policies(timed(stream(text("a@b.org c@d.org"))), load_policies(TABLES))
    assert list(summary(twice))[-1] == "redact: rewrite text email (2 times): email"


def test_a_judge_that_cannot_be_asked_is_a_failure() -> None:
    judge = load_policies([{"use": "human_approval"}])
    trial = try_policies(timed(stream(call("f", "{}"), reason="tool_calls")), judge)
    assert trial.verdicts[0]["reason"].startswith("the policy failed: Unsupported: there is no engine here that could wait")


def recorded(number: int) -> RecordedTurn:
    request = Request(model="m", messages=[Message("user", [TextPart("hi")])])
    answer_text = f"mail a{number}@b.org" if number % 2 else "nothing"
    return RecordedTurn(f"turn_{number}", request, collect(stream(text(answer_text), call("rm", "{}"))), model="m")


@pytest.mark.parametrize("processes", [1, 2])
def test_stored_turns_are_judged_in_batches(processes: int) -> None:
    report = replay_policies((recorded(number) for number in range(25)), TABLES, processes=processes, batch=4)
    assert (report.turns, report.events, report.touched) == (25, 200, 25)
    assert report.counts == {("redact", "rewrite", "email"): 12, ("deny_tools", "refuse", "tool_call"): 25}
    assert [finding.turn for finding in report.examples["redact", "rewrite", "email"]] == [
        f"turn_{number}" for number in (1, 3, 5, 7, 9)
    ]
    lines = list(report.lines())
    assert lines[0] == "25 turns, 200 events: 25 turns would have been touched"
    assert lines[1].split() == ["25", "deny_tools:", "refuse", "tool_call"]


def test_turns_without_content_and_requests_that_would_be_refused() -> None:
    block = [{"use": "block_patterns", "words": ["hi"], "apply_to": ["request"]}]
    report = replay_policies([RecordedTurn("a"), recorded(1)], block, processes=1)
    assert (report.turns, report.touched) == (2, 1)
    kept = RecordedTurn("b", events=stream(text("x@y.org")), model="other")
    only = [{**TABLES[0], "when": {"models": ["other"]}}]
    assert replay_policies([kept, recorded(1)], only, processes=1).touched == 1


def test_a_replay_refuses_a_bad_configuration_before_it_reads() -> None:
    with pytest.raises(ConfigError, match="there is no policy"):
        Replay([{"use": "nope"}])
    assert next(ReplayReport().lines()) == "0 turns, 0 events: 0 turns would have been touched"


def test_a_policy_is_described_from_its_class() -> None:
    lines = list(description("redact"))
    assert lines[0] == "redact (version 1)"
    assert '  mode: "replace" or "hash" or "restore" = "replace"' in lines
    assert "  tools: list[str]  (required)" in list(description("deny_tools"))
    assert "  rules: list[Rule] = []" in list(description("tool_arguments"))
    assert "  when: When = none" in lines


def test_held_text_is_reported() -> None:
    policies: list[Policy] = [Callbacks(on_tool_call_complete=lambda piece: refuse("no"))]
    trial = try_policies(timed(stream(call("f", '{"a"', ": 1}"))), policies)
    assert [step.held for step in trial.steps] == ["", "", '{"a"', '{"a": 1}', "", ""]
    whole = try_policies(
        timed(stream(text("a"))), load_policies([{"use": "json_schema", "schema": {}, "on_violation": "refuse"}])
    )
    assert [step.held for step in whole.steps] == ["", "", "a", "a", ""]
