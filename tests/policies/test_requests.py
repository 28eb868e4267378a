"""Policies on requests: messages, tool results and tool definitions are checked, changed or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from policies.async_driver import Driver
from policies.policy_streams import run, stream, text
from streamglot.errors import PolicyRefused
from streamglot.policies import (
    FORWARD,
    JudgeContext,
    Needs,
    Piece,
    Policy,
    Verdict,
    When,
    apply_to_request,
    ask,
    end,
    forward,
    load_policies,
    refuse,
    replace,
    request,
    retry,
    rewrite,
)
from streamglot.policies.builtin.compose import DryRun
from streamglot.policies.needs import IN_REQUESTS
from streamglot.policies.running.facts import header_value
from streamglot.stages.stage import ExchangeContext
from vocabulary import *

ECHO = Echo("p", {"signature": "s"})
CONVERSATION = Request(
    model="m",
    messages=[
        Message("system", [TextPart("rules")]),
        Message("user", [TextPart("old"), MediaPart("image/png", data="AA")]),
        Message(
            "assistant",
            [
                ReasoningPart("thought", echo=ECHO),
                TextPart("said", [Citation("u")], ECHO),
                RefusalPart("no"),
                ToolCallPart("c1", "read", '{"p": 1}', echo=ECHO, native=ECHO),
            ],
            echo=ECHO,
        ),
        Message("tool", [ToolResultPart("c1", [TextPart("result"), MediaPart("image/png"), TextPart("more")], native=ECHO)]),
        Message("user", [TextPart("new")]),
    ],
    tools=[ToolSpec("read", "Reads.", {"type": "object"}), ToolSpec("write", "Writes.")],
    tool_choice=ToolChoice("required", ["write"]),
)


class Judge(Policy, frozen=True, kw_only=True):
    by: Callable[[Piece], Verdict]
    kinds: tuple[Any, ...] = IN_REQUESTS
    history: bool = False

    def needs(self) -> Needs:
        return request(*self.kinds, history=self.history)

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        return self.by(piece)


def seen_by(policy_kinds: tuple[Any, ...] = IN_REQUESTS, history: bool = False) -> list[tuple[str, str, str, str]]:
    seen: list[tuple[str, str, str, str]] = []

    def note(piece: Piece) -> Verdict:
        assert piece.direction == "request"
        seen.append((piece.kind, piece.role, piece.name, piece.text))
        return FORWARD

    assert apply_to_request(CONVERSATION, [Judge(by=note, kinds=policy_kinds, history=history)]) is CONVERSATION
    return seen


def test_only_what_is_new_is_checked() -> None:
    assert seen_by() == [
        ("tool_definition", "", "read", "Reads."),
        ("tool_definition", "", "write", "Writes."),
        ("tool_result", "tool", "read", "result"),
        ("tool_result", "tool", "read", "more"),
        ("text", "user", "", "new"),
    ]


def test_with_history_all_is_checked() -> None:
    assert [(kind, text) for kind, _, _, text in seen_by(("text", "reasoning", "tool_call"), history=True)] == [
        *(
            ("text", "rules"),
            ("text", "old"),
            ("reasoning", "thought"),
            ("text", "said"),
            ("tool_call", '{"p": 1}'),
            ("text", "new"),
        ),
    ]


def test_parts_are_rewritten_and_their_signatures_dropped() -> None:
    changed = apply_to_request(CONVERSATION, [Judge(by=lambda piece: rewrite(piece.text.upper()), history=True)])
    assistant = changed.messages[2]
    assert assistant == Message(
        "assistant",
        [ReasoningPart("THOUGHT"), TextPart("SAID"), RefusalPart("no"), ToolCallPart("c1", "read", '{"P": 1}')],
    )
    (result,) = changed.messages[3].parts
    assert result == ToolResultPart("c1", [TextPart("RESULT"), MediaPart("image/png"), TextPart("MORE")])
    assert [tool.description for tool in changed.tools] == ["READS.", "WRITES."]
    assert CONVERSATION.messages[2].echo == ECHO


def test_an_unchanged_event_stays_the_same_object() -> None:
    changed = apply_to_request(CONVERSATION, [Judge(by=lambda piece: rewrite("x") if piece.text == "new" else FORWARD)])
    assert [new is old for new, old in zip(changed.messages, CONVERSATION.messages, strict=True)] == [True] * 4 + [False]
    assert changed.tools == CONVERSATION.tools
    assert changed.tool_choice == CONVERSATION.tool_choice


def test_parts_are_removed() -> None:
    changed = apply_to_request(
        CONVERSATION, [Judge(by=lambda piece: replace(""), kinds=("text", "reasoning", "tool_call"), history=True)]
    )
    assert [message.role for message in changed.messages] == ["user", "assistant", "tool"]
    assert changed.messages[1].parts == [RefusalPart("no")]
    changed = apply_to_request(CONVERSATION, [Judge(by=lambda piece: replace("(call)"), kinds=("tool_call",), history=True)])
    assert changed.messages[2].parts[-1] == TextPart("(call)")
    changed = apply_to_request(CONVERSATION, [Judge(by=lambda piece: rewrite(name="other"), kinds=("tool_call",), history=True)])
    assert changed.messages[2].parts[-1] == ToolCallPart("c1", "other", '{"p": 1}')


def test_tools_are_removed_with_the_choice_of_them() -> None:
    def without(*names: str) -> Request:
        by = lambda piece: replace("") if piece.name in names else FORWARD
        return apply_to_request(CONVERSATION, [Judge(by=by, kinds=("tool_definition",))])

    assert [tool.name for tool in without("read").tools] == ["write"]
    assert without("read").tool_choice == ToolChoice("required", ["write"])
    assert without("write").tool_choice == ToolChoice("auto")
    assert (without("read", "write").tools, without("read", "write").tool_choice) == ([], None)
    kept = apply_to_request(CONVERSATION, [Judge(by=lambda piece: rewrite(name="x"), kinds=("tool_definition",))])
    assert kept.tools == CONVERSATION.tools


@pytest.mark.parametrize("verdict", [refuse("not so"), end("not so"), retry("x", message="not so"), refuse("")])
def test_a_request_is_refused(verdict: Verdict) -> None:
    context = ExchangeContext()
    with pytest.raises(PolicyRefused) as caught:
        apply_to_request(CONVERSATION, [Judge(by=lambda piece: verdict, kinds=("tool_result",))], context=context)
    assert caught.value.message in ("not so", f"the policy {__name__}:Judge refuses this request")
    assert caught.value.status == 403
    assert caught.value.detail == {"policy": f"{__name__}:Judge", "kind": "tool_result"}
    assert context.annotations["policies"][0]["direction"] == "request"


class Slow(Policy, frozen=True):
    def needs(self) -> Needs:
        return request("text", "tool_result")

    async def decide(self, piece: Piece, context: JudgeContext, engine: Any) -> Verdict:
        await asyncio.sleep(0)
        if piece.text == "result":
            return ask("ok?")
        return rewrite("safe") if piece.kind == "text" else forward()


def test_judges_of_a_request_are_awaited_together() -> None:
    async def scenario() -> None:
        driver = Driver(Slow())
        task = asyncio.create_task(driver.request(CONVERSATION))
        await driver.until(lambda: bool(driver.engine.approvals.open()))
        from streamglot.policies import Decision

        driver.engine.approvals.decide(driver.engine.approvals.open()[0].id, Decision(True, text="approved"))
        changed = await task
        assert changed.messages[-1].text == "safe"
        assert isinstance(changed.messages[3].parts[0], ToolResultPart)
        assert changed.messages[3].parts[0].text == "approvedmore"

    asyncio.run(scenario())


def test_without_an_engine_a_judge_refuses_the_request() -> None:
    with pytest.raises(PolicyRefused, match="withheld"):
        apply_to_request(CONVERSATION, [Slow()])
    assert apply_to_request(CONVERSATION, [Slow(on_error="forward")]) == CONVERSATION
    assert apply_to_request(CONVERSATION, [Slow()], resolve=lambda question: [forward(), forward(), forward()]) == CONVERSATION

    def failing(question: object) -> Any:
        raise ConnectionError(str(question))

    with pytest.raises(PolicyRefused, match="withheld"):
        apply_to_request(CONVERSATION, [Slow()], resolve=failing)


def test_conditions_hold_for_requests() -> None:
    by = lambda piece: refuse("no")
    for when in (When(directions=["answer"]), When(models=["x*"]), When(tools=["write"])):
        policy = Judge(by=by, kinds=("tool_result", "text"), when=when)
        assert apply_to_request(CONVERSATION, [policy]) is CONVERSATION
    with pytest.raises(PolicyRefused):
        apply_to_request(CONVERSATION, [Judge(by=by, when=When(directions=["request"], tools=["re*"], models=["m"]))])


def test_a_dry_run_of_a_judge_does_not_delay_a_request() -> None:
    async def scenario() -> None:
        driver = Driver(DryRun(policy=Slow()))
        assert driver.stage.request(CONVERSATION) is CONVERSATION
        events = stream(text("a"))
        driver.feed(events)
        assert driver.out == events
        await driver.until(lambda: len(driver.context.annotations.get("policies", [])) == 3)
        for task in driver.tasks:
            task.cancel()
        assert header_value(driver.context) == ", ".join(
            f"{__name__}:Slow={verdict};dry_run" for verdict in ("ask", "forward", "rewrite")
        )

    asyncio.run(scenario())


def test_verdicts_in_one_line_for_a_header() -> None:
    context = ExchangeContext()
    assert header_value(context) == ""
    run(stream(text("a@b.org c@d.org")), *load_policies([{"use": "redact", "detectors": ["email"]}]), context=context)
    assert header_value(context) == "redact=rewrite;count=2"


def test_a_dry_run_changes_no_request() -> None:
    context = ExchangeContext()
    note, judged = load_policies([{"use": "system_note", "text": "x"}])[0], Judge(by=lambda piece: refuse("no"), kinds=("text",))
    assert apply_to_request(CONVERSATION, [DryRun(policy=judged), DryRun(policy=note)], context=context) is CONVERSATION
    assert [(fact["verdict"], fact["dry_run"]) for fact in context.annotations["policies"]] == [("refuse", True)]
