"""The thinking budget and the limit of the answer, for the dialects that take a number of thinking tokens."""

from __future__ import annotations

import pytest

from streamglot import DIALECTS
from streamglot.dialects.common.fields import fit_budget
from streamglot.messages import Reasoning, Request

ON = Reasoning(enabled=True)


@pytest.mark.parametrize(
    ("reasoning", "max_tokens", "budget"),
    [
        (ON, 20_000, 8192),
        (ON, 8193, 4096),  # room for the answer, although the limit is greater than the usual budget
        (ON, 3000, 1500),
        (ON, 1500, 1024),
        (ON, 1024, None),
        (Reasoning("high"), 4000, 2000),
        (Reasoning(budget_tokens=2500), 3000, 2500),  # the client's own choice
        (Reasoning(budget_tokens=3000), 3000, 1500),
        (Reasoning(budget_tokens=2000), 500, None),
        (Reasoning(budget_tokens=5), 2000, 1024),
    ],
)
def test_a_small_limit_leaves_room_for_the_answer(reasoning: Reasoning, max_tokens: int, budget: int | None) -> None:
    thinking = None if budget is None else {"type": "enabled", "budget_tokens": budget}
    dropped = ["reasoning"] if budget is None else []
    request = Request("claude", reasoning=reasoning, max_tokens=max_tokens)
    built = DIALECTS["anthropic"].build_request(request)
    assert (built.body.get("thinking"), built.body["max_tokens"], built.dropped) == (thinking, max_tokens, dropped)
    built = DIALECTS["bedrock_converse"].build_request(request)
    more = built.body.get("additionalModelRequestFields", {})
    assert (more.get("thinking"), built.body["inferenceConfig"], built.dropped) == (thinking, {"maxTokens": max_tokens}, dropped)


def test_the_flag_of_a_chat_client_leaves_room_for_the_answer() -> None:
    request = DIALECTS["openai_chat"].parse_request({"model": "claude", "messages": [], "thinking": True, "max_tokens": 3000})
    built = DIALECTS["anthropic"].build_request(request)
    assert (built.body["thinking"], built.body["max_tokens"]) == ({"type": "enabled", "budget_tokens": 1500}, 3000)


def test_without_a_limit_the_budget_is_not_changed() -> None:
    assert fit_budget(100_000, None, given=False) == 100_000
    assert fit_budget(5, None, given=True) == 1024
