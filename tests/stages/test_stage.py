"""The interface of stages: what a stage does that overrides nothing."""

from __future__ import annotations

from typing import Any

import pytest

from streamglot.events import Event, StreamEnd, StreamStart
from streamglot.messages import Request, TextPart, ToolResultPart
from streamglot.stages.stage import CheckResult, ExchangeContext, NextRequest, Question, Stage


def test_a_stage_forwards_what_it_does_not_override() -> None:
    stage, request = Stage(), Request("m")
    events: list[Event] = [StreamStart(), StreamEnd()]
    assert stage.request(request) is request
    result = CheckResult(ToolResultPart("a", [TextPart("sunny")])).result
    assert stage.tool_result(result) is result
    given = stage.feed(events)
    assert given == events
    assert given is not events
    assert stage.close() == []


def test_a_stage_that_asks_must_handle_the_reply() -> None:
    request = Request("m")
    question = NextRequest(request)
    assert (question.request, question.seconds) == (request, None)
    assert isinstance(question, Question)
    with pytest.raises(AssertionError, match="Stage asked NextRequest and does not handle its reply"):
        Stage().answer(question, None)


def test_facts_about_an_exchange_are_kept_by_subject() -> None:
    context = ExchangeContext("r")
    context.annotate("verdict", {"ok": True})
    context.annotate("verdict", {"ok": False})
    assert context.annotations == {"verdict": [{"ok": True}, {"ok": False}]}


def test_a_fact_reaches_observers_and_only_annotations_are_kept() -> None:
    reported: list[tuple[str, dict[str, Any]]] = []
    context = ExchangeContext("r", on_fact=lambda subject, fact: reported.append((subject, fact)))
    context.annotate("verdict", {"ok": True})
    context.report("step", {"number": 1})
    assert reported == [("verdict", {"ok": True}), ("step", {"number": 1})]
    assert context.annotations == {"verdict": [{"ok": True}]}
