"""Decisions of a client's user about calls, as requests of each dialect that can ask have them."""

from __future__ import annotations

from typing import Any

import pytest

from streamglot.dialects import DIALECTS, dialect
from streamglot.dialects.common.server_tools import ApprovalAnswer

CAN_ASK = ("agui", "openai_responses", "vercel_ui")


def found(name: str, body: dict[str, Any], *suspended: str) -> tuple[list[ApprovalAnswer], dict[str, Any]]:
    find = dialect(name).approval_answers
    assert find is not None
    return find(body, lambda asked: asked in suspended)


def test_which_dialects_can_ask() -> None:
    able = [name for name, entry in DIALECTS.items() if entry.approval_answers is not None]
    assert sorted(able) == sorted(CAN_ASK)


@pytest.mark.parametrize("name", CAN_ASK)
@pytest.mark.parametrize("odd", [None, "q", [], [None, 5, {}, {"type": "x"}], {"a": 1}])
def test_a_body_without_decisions_stays_as_it_is(name: str, odd: Any) -> None:
    body = {"resume": odd, "input": odd, "messages": odd}
    assert found(name, body) == ([], body)
    inside = {"messages": [{"id": "1", "parts": odd}]}
    assert found(name, inside) == ([], inside)


def test_interrupts_are_resolved_or_cancelled() -> None:
    body = {
        "resume": [
            {"interruptId": "a", "status": "resolved", "payload": {"approved": True, "arguments": {"b": 1}}},
            {"interruptId": "b", "status": "resolved", "payload": {"approved": True, "arguments": "{}"}},
            {"interruptId": "c", "status": "resolved", "payload": {"approved": False, "reason": "no"}},
            {"interruptId": "d", "status": "cancelled", "payload": {"approved": True, "arguments": 5}},
            {"interruptId": "e", "status": "resolved", "payload": "yes"},
        ]
    }
    assert found("agui", body) == (
        [
            ApprovalAnswer("a", True, '{"b":1}'),
            ApprovalAnswer("b", True, "{}"),
            ApprovalAnswer("c", False, None, "no"),
            ApprovalAnswer("d", False),
            ApprovalAnswer("e", False),
        ],
        body,
    )


def test_approval_responses_about_calls_of_the_upstream_stay_in_the_input() -> None:
    user = {"role": "user", "content": "q"}
    own = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}
    denied = {"type": "mcp_approval_response", "approval_request_id": "b", "approve": False, "reason": "no"}
    of_upstream = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    body = {"input": [user, own, of_upstream, denied]}
    answers, left = found("openai_responses", body, "a", "b")
    assert answers == [ApprovalAnswer("a", True), ApprovalAnswer("b", False, None, "no")]
    assert left == {"input": [user, of_upstream]}


def test_parts_that_were_decided_are_taken_out_of_their_message() -> None:
    text = {"type": "text", "text": "Let me look."}
    waiting = {"type": "dynamic-tool", "state": "approval-requested", "approval": {"id": "w"}}
    approved = {"type": "dynamic-tool", "state": "approval-responded", "approval": {"id": "a", "approved": True}}
    denied = {"type": "tool-x", "state": "approval-responded", "approval": {"id": "b", "approved": False, "reason": "no"}}
    asked = {"id": "1", "role": "user", "parts": [text]}
    body = {"messages": [asked, {"id": "2", "role": "assistant", "parts": [text, waiting, approved, denied]}]}
    answers, left = found("vercel_ui", body)
    assert answers == [ApprovalAnswer("a", True), ApprovalAnswer("b", False, None, "no")]
    assert left == {"messages": [asked, {"id": "2", "role": "assistant", "parts": [text, waiting]}]}
