"""Policies run before the loop: they judge calls before they run, and results before they return to the model."""

from __future__ import annotations

from typing import Any

import streamglot
from streamglot.policies import load_policies
from tools.chat_model import ChatModel


def ask(model: ChatModel, tool: Any, policy: dict[str, Any]) -> streamglot.Response:
    policies = load_policies([policy])
    with streamglot.Client(upstreams=[model.upstream()], tools=[tool], policies=policies) as client:
        return streamglot.collect(client.stream(model="m", messages="go"))


def test_a_call_that_a_policy_refuses_is_not_run(model: ChatModel) -> None:
    ran: list[str] = []

    @streamglot.tool
    def delete(city: str) -> str:
        ran.append(city)
        return "deleted"

    answer = ask(model, delete, {"use": "deny_tools", "tools": ["del*"]})
    assert ran == []
    assert answer.error is None
    assert len(model.bodies) == 1


def test_a_result_is_redacted_before_the_model_sees_it(model: ChatModel) -> None:
    @streamglot.tool
    def look(city: str) -> str:
        return f"ask ann@{city.lower()}.example"

    policy = {"use": "redact", "detectors": ["email"], "apply_to": ["request", "tool_results"], "replacement": "[hidden]"}
    answer = ask(model, look, policy)
    results = [message["content"] for message in model.bodies[1]["messages"] if message["role"] == "tool"]
    assert results == ["ask [hidden]", "ask [hidden]"]
    assert answer.choices[0].text == "ask [hidden] and ask [hidden]"
