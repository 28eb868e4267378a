"""Policies together: in order, in parallel, under conditions, as dry runs; from configuration, and refused as a whole."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import pytest

from policies.async_driver import Driver
from policies.policy_streams import call, calls_of, run, stream, text, text_of
from streamglot.errors import ConfigError
from streamglot.events import StreamEnd, StreamError, TextStart, ToolResult
from streamglot.json_types import as_mutable
from streamglot.messages import Message, Request, TextPart, ToolCallPart, ToolResultPart
from streamglot.policies import (
    DEFER,
    FORWARD,
    Callbacks,
    Defer,
    JudgeContext,
    Needs,
    Pattern,
    PatternSet,
    Piece,
    Policy,
    Verdict,
    When,
    answer,
    apply_policies,
    ask,
    block,
    delta,
    end,
    find_policy,
    forward,
    hold_back,
    load_policies,
    pattern,
    policy_stage,
    prepare,
    refuse,
    replace,
    request,
    rewrite,
    sentence,
)
from streamglot.policies.builtin import BUILT_IN
from streamglot.policies.builtin.compose import DryRun, InOrder, Parallel
from streamglot.policies.policy import Engine
from streamglot.policies.running.stage import PolicyStage
from streamglot.stages.stage import ExchangeContext


class Judge(Policy, frozen=True, kw_only=True):
    by: Callable[[Piece], Verdict | Defer]
    of: Needs = block("text", "tool_call", "tool_result")

    def needs(self) -> Needs:
        return self.of

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict | Defer:
        return self.by(piece)


class Waiting(Judge, frozen=True, kw_only=True):
    by: Callable[[Piece], Verdict | Defer] = lambda piece: DEFER
    says: Verdict | None = None

    async def decide(self, piece: Piece, context: JudgeContext, engine: Engine) -> Verdict:
        await asyncio.sleep(0)
        if self.says is None:
            raise ValueError("broken")
        return self.says


def always(verdict: Verdict, of: Needs | None = None, **more: Any) -> Judge:
    return Judge(by=lambda piece: verdict, of=of or block("text"), **more)


def appending(letter: str, **more: Any) -> Judge:
    return Judge(by=lambda piece: rewrite(piece.text + letter), of=block("text"), **more)


# --- in order


def test_each_policy_sees_what_the_one_before_it_made() -> None:
    assert (
        text_of(run(stream(text("x")), appending("a"), appending("b"), InOrder(policies=[appending("c"), appending("d")])))
        == "xabcd"
    )


def test_one_condition_holds_for_a_group() -> None:
    group = InOrder(policies=[appending("a", when=When(models=["m*"])), appending("b")], when=When(keys=["intern"]))
    for key, model, expected in (("intern", "m1", "xab"), ("intern", "n", "xb"), ("boss", "m1", "x")):
        assert text_of(run(stream(text("x")), group, context=ExchangeContext(key=key, model=model))) == expected


@pytest.mark.parametrize(
    ("when", "applies"),
    [
        (When(), True),
        (When(models=["gpt-*"]), True),
        (When(models=["claude-*", "gpt-?"]), True),
        (When(models=["GPT-*"]), False),
        (When(keys=["a", "team-*"], endpoints=["anthropic"]), True),
        (When(keys=["team-*"], endpoints=["openai_*"]), False),
        (When(directions=["answer"]), True),
        (When(directions=["request"]), False),
    ],
)
def test_conditions(when: When, applies: bool) -> None:
    context = ExchangeContext(model="gpt-5", key="team-a", endpoint="anthropic")
    assert text_of(run(stream(text("x")), appending("y", when=when), context=context)) == ("xy" if applies else "x")


def test_a_policy_for_some_tools_sees_their_calls_and_results_only() -> None:
    policy = Judge(by=lambda piece: refuse("no"), when=When(tools=["rm*"]))
    events = stream(
        text("t"),
        call("rm_x", "{}"),
        [ToolResult("call_rm_x", "gone")],
        call("ls", "{}"),
        [ToolResult("call_ls", "a")],
        reason="tool_calls",
    )
    after = run(events, policy)
    assert (text_of(after), calls_of(after)) == ("tno", [("ls", "{}")])
    assert [event for event in after if isinstance(event, ToolResult)] == [ToolResult("call_ls", "a")]


def test_there_is_no_stage_if_no_policy_applies() -> None:
    factory = policy_stage([appending("a", when=When(models=["x"]))])
    assert factory(ExchangeContext(model="y")) is None
    assert policy_stage([])(ExchangeContext()) is None
    assert apply_policies(stream(text("a")), []) == stream(text("a"))
    only_requests = policy_stage([Judge(by=lambda piece: FORWARD, of=request("text"))])(ExchangeContext())
    assert only_requests is not None
    assert only_requests.feed(stream(text("a"))) == stream(text("a"))


def test_the_least_hold_back_follows_from_the_needs() -> None:
    patterns = PatternSet([Pattern("a", "a")])
    assert hold_back([]) == {}
    assert hold_back([delta("text"), pattern(patterns, "text", "reasoning"), block("tool_call")]) == {
        "text": "pattern",
        "reasoning": "pattern",
        "tool_call": "block",
    }
    assert hold_back([sentence("text"), pattern(patterns, "text")]) == {"text": "sentence"}
    assert set(hold_back([block("text"), answer()]).values()) == {"answer"}


@pytest.mark.parametrize(
    ("declare", "rule"),
    [
        (lambda: delta(), "names no kind"),
        (lambda: block("tool_definition"), "an answer has no blocks of kind 'tool_definition'"),
        (lambda: request("media"), "a request has no blocks of kind 'media'"),
        (lambda: delta("text") | block("text"), "two needs for text"),
        (lambda: prepare([always(FORWARD, of=answer() | block("text"))]), "whole answer and for single blocks"),
        (lambda: prepare(["redact"]), "is not a policy"),  # type: ignore[list-item]  # a wrong use
    ],
)
def test_needs_that_are_refused(declare: Callable[[], Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        declare()


# --- in parallel


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([forward(), rewrite("r")], "r"),
        ([rewrite("r"), replace("p")], "p"),
        ([replace("p"), refuse("no"), rewrite("r")], "no"),
        ([refuse("first"), refuse("second")], "first"),
        ([rewrite("same"), rewrite("same")], "same"),
        ([rewrite("one"), rewrite("two")], "[withheld: policies contradict each other]"),
        ([refuse("no"), end(stop="length")], ""),
    ],
)
def test_the_most_severe_verdict_wins(verdicts: list[Verdict], expected: str) -> None:
    group = Parallel(policies=[always(verdict) for verdict in verdicts])
    assert text_of(run(stream(text("x")), group)) == expected


def test_judges_in_parallel_are_awaited_together() -> None:
    async def scenario() -> None:
        group = Parallel(
            policies=[
                Waiting(says=forward("fine"), of=block("text", "tool_call")),
                always(rewrite("r")),
                Waiting(says=refuse("no", reason="bad"), of=block("tool_call")),
            ]
        )
        driver = Driver(group)
        driver.feed(stream(text("x"), call("f", "{}"), reason="tool_calls"))
        after = await driver.settled()
        assert (text_of(after), calls_of(after)) == ("rno", [])
        assert driver.context.annotations["policies"][-1]["reason"].endswith("Waiting: bad")

    asyncio.run(scenario())


def test_each_judge_in_parallel_fails_for_itself() -> None:
    async def scenario() -> None:
        for on_error, expected in (("refuse", []), ("forward", [("f", "{}")])):
            calls = block("tool_call")
            group = Parallel(policies=[Waiting(of=calls, on_error=on_error), always(forward(), of=calls)])  # type: ignore[arg-type]  # on_error is one of the two words
            driver = Driver(group)
            driver.feed(stream(call("f", "{}"), reason="tool_calls"))
            assert calls_of(await driver.settled()) == expected

    asyncio.run(scenario())

    def failing(piece: Piece) -> Verdict:
        raise ValueError(piece.kind)

    group = Parallel(policies=[Judge(by=failing, of=block("text")), always(forward())])
    assert text_of(run(stream(text("x")), group)).startswith("[withheld")


def test_patterns_in_parallel_are_looked_for_in_whole_blocks() -> None:
    patterns = pattern(PatternSet([Pattern("x", "x+")]), "text", "reasoning")
    group = Parallel(policies=[always(rewrite("-"), of=patterns), always(forward(), of=block("text", "tool_call"))])
    assert prepare([group])[0].needs.answer["text"].unit == "block"
    assert prepare([group])[0].needs.answer["reasoning"].unit == "pattern"
    assert text_of(run(stream(text("axxbx")), group)) == "a-b-"


def test_conditions_hold_inside_a_parallel_group() -> None:
    group = Parallel(
        policies=[always(refuse("no"), when=When(models=["x"])), always(rewrite("r"), when=When(directions=["answer"]))]
    )
    assert text_of(run(stream(text("a")), group)) == "r"


def test_whole_answers_in_parallel() -> None:
    group = Parallel(policies=[always(forward(), of=answer()), always(refuse("no"), of=answer())])
    assert run(stream(text("a")), group) == stream(text("no"), reason="content_filter")


@pytest.mark.parametrize(
    ("policies", "rule"),
    [
        ([always(FORWARD)], "at least two"),
        ([always(FORWARD), DryRun(policy=always(FORWARD))], "no verdict of its own"),
        ([always(FORWARD), always(FORWARD, of=answer())], "some do not; make two groups"),
    ],
)
def test_parallel_groups_that_are_refused(policies: list[Policy], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        prepare([Parallel(policies=policies)])


# --- dry runs and callbacks


def test_a_dry_run_holds_and_changes_nothing_and_says_what_it_would_do() -> None:
    context = ExchangeContext()
    events = stream(text("a"), call("f", "{", "}"), reason="tool_calls")
    stage = policy_stage([DryRun(policy=Judge(by=lambda piece: refuse("no")))])(context)
    assert stage is not None
    for event in events:
        assert stage.feed([event]) == [event]
    assert [(fact["kind"], fact["verdict"], fact["dry_run"]) for fact in context.annotations["policies"]] == [
        *(("text", "refuse", True), ("tool_call", "refuse", True)),
    ]


def test_a_dry_run_of_a_judge_delays_nothing() -> None:
    async def scenario() -> None:
        driver = Driver(DryRun(policy=Waiting(says=refuse("no"))))
        events = stream(call("f", "{}"), text("x"), reason="tool_calls")
        driver.feed(events)
        assert driver.out == events
        assert await driver.settled() == events
        assert [fact["verdict"] for fact in driver.context.annotations["policies"]] == ["refuse", "refuse"]

    asyncio.run(scenario())


def test_nobody_is_asked_in_a_dry_run() -> None:
    context = ExchangeContext()
    events = stream(call("rm", "{}"), reason="tool_calls")
    assert run(events, DryRun(policy=Judge(by=lambda piece: ask("May I?"))), context=context) == events
    assert [(fact["verdict"], fact["dry_run"]) for fact in context.annotations["policies"]] == [("ask", True)]


def test_a_dry_run_needs_a_policy() -> None:
    with pytest.raises(ConfigError, match="no policy to run"):
        load_policies([{"use": "dry_run"}])


def test_callbacks_change_what_they_return() -> None:
    policy = Callbacks(
        on_text_delta=lambda piece: piece.text.upper(),
        on_tool_call_complete=lambda piece: refuse("no") if piece.name == "rm" else None,
    )
    after = run(stream(text("a", "b"), call("rm", "{}"), call("ls", "{}"), reason="tool_calls"), policy)
    assert (text_of(after), calls_of(after)) == ("ABno", [("ls", "{}")])


def test_callbacks_that_observe_hold_nothing() -> None:
    seen: list[tuple[str, str]] = []
    context = ExchangeContext()
    policy = Callbacks(on_block_complete=lambda piece: seen.append((piece.kind, piece.text)), observe=True)
    events = stream(text("a", "b"), call("f", "{", "}"), [ToolResult("call_f", "r")], reason="tool_calls")
    stage = policy_stage([policy])(context)
    assert stage is not None
    for event in events:
        assert stage.feed([event]) == [event]
    assert seen == [("text", "ab"), ("tool_call", "{}"), ("tool_result", "r")]
    assert context.annotations == {}


def test_callbacks_are_called_for_the_kinds_they_name() -> None:
    policy = Callbacks(on_block_complete=lambda piece: "x", kinds=["tool_result"])
    assert run(stream(text("a"), [ToolResult("c", "r")]), policy) == stream(text("a"), [ToolResult("c", "x")])
    wrong = Callbacks(on_block_complete=lambda piece: 3)  # type: ignore[arg-type,return-value]  # a wrong callback
    assert text_of(run(stream(text("a")), wrong)).startswith("[withheld")


def test_one_object_has_callbacks_for_deltas_and_for_blocks_of_one_kind() -> None:
    seen: list[tuple[str, str, str]] = []

    def note(name: str) -> Callable[[Piece], None]:
        return lambda piece: seen.append((name, piece.name, piece.text))

    policy = Callbacks(
        on_text_delta=note("text"),
        on_tool_call_delta=note("delta"),
        on_tool_call_complete=note("call"),
        on_block_complete=note("block"),
        kinds=["text", "tool_call"],
        on_finish=lambda reason: seen.append(("finish", "", reason)),
        on_stream_end=lambda error: seen.append(("end", "", str(error))),
        observe=True,
    )
    stage = policy_stage([policy])(ExchangeContext())
    assert stage is not None
    for event in stream(text("a", "b"), call("f", "{", "}"), reason="tool_calls"):
        assert stage.feed([event]) == [event]
    assert seen == [
        *(("text", "", "a"), ("text", "", "b"), ("block", "", "ab")),
        *(("delta", "f", "{"), ("delta", "f", "}"), ("call", "f", "{}"), ("block", "f", "{}")),
        *(("finish", "", "tool_calls"), ("end", "", "None")),
    ]


def test_each_callback_sees_what_the_one_before_it_returned() -> None:
    policy = Callbacks(
        on_text_delta=lambda piece: piece.text.upper(),
        on_tool_call_complete=lambda piece: '{"n": 1}',
        on_block_complete=lambda piece: piece.text + "!" if piece.kind == "text" else piece.text.replace("1", "2"),
        kinds=["text", "tool_call"],
    )
    after = run(stream(text("a", "b"), call("f", "{}"), reason="tool_calls"), policy)
    assert (text_of(after), calls_of(after)) == ("AB!", [("f", '{"n": 2}')])


def test_text_flows_through_an_object_that_holds_calls() -> None:
    policy = Callbacks(on_text_delta=lambda piece: None, on_block_complete=lambda piece: None)
    stage = policy_stage([policy])(ExchangeContext())
    assert stage is not None
    for event in stream(text("a", "b"), reason="stop"):
        released = stage.feed([event])
        assert event in released or isinstance(event, TextStart)


def test_the_end_of_a_broken_stream_is_told_with_its_error() -> None:
    ends: list[object] = []
    policy = Callbacks(on_finish=ends.append, on_stream_end=ends.append)
    broken = StreamError("upstream_truncated", "the stream ended early")
    run([*stream(text("a"))[:-1], broken], policy)
    assert ends == [broken]


def test_a_callback_for_the_end_that_fails_is_recorded_and_changes_nothing() -> None:
    context = ExchangeContext()
    events = stream(text("a"))
    assert run(events, Callbacks(on_finish=lambda reason: 1 / 0), context=context) == events
    assert "ZeroDivisionError" in context.annotations["policies"][0]["reason"]


def test_callbacks_see_tool_results_of_requests_and_of_answers() -> None:
    seen: list[tuple[str, str]] = []
    policy = Callbacks(on_block_complete=lambda piece: seen.append((piece.direction, piece.text)), kinds=["tool_result"])
    stage = policy_stage([policy])(ExchangeContext())
    assert isinstance(stage, PolicyStage)
    called = Message("assistant", [ToolCallPart("c", "f", "{}")])
    result = Message("tool", [ToolResultPart("c", [TextPart("sunny")], name="f")])
    stage.check_request(Request(model="m", messages=[called, result]), lambda question: None)
    for event in stream([ToolResult("d", "rain")]):
        stage.feed([event])
    assert seen == [("request", "sunny"), ("answer", "rain")]


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (Callbacks(), "at least one"),
        (Callbacks(observe=True, kinds=["text"]), "at least one of on_text_delta, .*, on_stream_end"),
        (Callbacks(on_block_complete=str, kinds=["answer"]), "no blocks of kind"),
    ],
)
def test_callbacks_that_are_refused(policy: Policy, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        prepare([policy])


# --- configuration


def test_policies_are_loaded_in_order() -> None:
    policies = load_policies(
        [
            {"use": "deny_tools", "tools": ["rm*"], "when": {"models": ["gpt-*"], "keys": ["intern"]}, "on_error": "forward"},
            {"use": "parallel", "policies": [{"use": "redact", "detectors": ["email"]}, {"use": "max_output", "chars": 10}]},
        ]
    )
    assert [policy.name for policy in policies] == ["deny_tools", "parallel"]
    assert policies[0].when == When(models=("gpt-*",), keys=("intern",))
    assert policies[0].on_error == "forward"


def test_options_cannot_be_changed() -> None:
    (policy,) = load_policies([{"use": "redact", "detectors": ["email"], "patterns": {"a": "b"}, "when": {"models": ["m"]}}])
    with pytest.raises(AttributeError):
        policy.seconds = 3.0  # type: ignore[misc]  # what must not work
    assert policy.detectors == ("email",)  # type: ignore[attr-defined]  # a Redact
    with pytest.raises(TypeError):
        policy.patterns["c"] = "d"  # type: ignore[attr-defined]  # a Redact
    assert policy.when is not None
    assert isinstance(policy.when.models, tuple)
    assert as_mutable(policy.patterns) == {"a": "b"}  # type: ignore[attr-defined]  # a Redact
    assert as_mutable((1, frozenset([2]), {"a": [3]})) == [1, [2], {"a": [3]}]


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ({}, r"policies\[0\]: there is no use"),
        ({"use": 3}, "there is no use"),
        ({"use": "redcat"}, "did you mean redact"),
        ({"use": "zzz"}, "there are allow_tools"),
        ({"use": "deny_tools"}, r"policies\[0\] \(deny_tools\): .*tools"),
        ({"use": "deny_tools", "tools": []}, "tools is empty"),
        ({"use": "deny_tools", "tools": ["a"], "tool": 1}, "there is no option 'tool'"),
        ({"use": "deny_tools", "tools": ["a"], "on_error": "ask"}, "on_error"),
        ({"use": "deny_tools", "tools": ["a"], "when": {"model": ["a"]}}, "there is no option 'model'"),
        ({"use": "redact"}, "no pattern and no word"),
        ({"use": "redact", "patterns": {"a": "(?=b)"}}, "lookahead"),
        ({"use": "parallel", "policies": [{"use": "x"}]}, r"policies\[0\].policies\[0\]: there is no policy 'x'"),
        ({"use": "dry_run", "policy": 3}, "must be a policy or a list of policies"),
        ({"use": "no.such.module:Class"}, "cannot be imported.*PYTHONPATH"),
        ({"use": "json:nothing"}, "cannot be imported"),
        ({"use": "json:dumps"}, "is not a policy"),
        ({"use": "collections:OrderedDict"}, "is not a policy"),
    ],
)
def test_configurations_that_are_refused(table: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        load_policies([table])


def test_a_bad_configuration_is_refused_as_a_whole_with_all_its_faults() -> None:
    with pytest.raises(ConfigError) as caught:
        load_policies([{"use": "deny_tools", "tools": ["a"]}, {"use": "nope"}, {"use": "max_output"}])
    assert "policies[1]" in caught.value.message
    assert "policies[2]" in caught.value.message


class Fine(Policy, frozen=True):
    limits: ClassVar[tuple[int, ...]] = (1, 2)
    letters: ClassVar[frozenset[str]] = frozenset("ab")
    default: ClassVar[When] = When()

    def needs(self) -> Needs:
        return Needs()


class SharedList(Fine, frozen=True):
    seen: ClassVar[list[str]] = []


class SharedInTuple(Fine, frozen=True):
    seen: ClassVar[tuple[list[str], ...]] = ([],)


class WithDict(Fine, frozen=True, dict=True):
    pass


def test_a_policy_with_mutable_shared_state_is_refused() -> None:
    assert find_policy(f"{__name__}:Fine") is Fine
    for name in ("SharedList", "SharedInTuple"):
        with pytest.raises(ConfigError, match=r"mutable attribute seen.*new_state\(\)"):
            find_policy(f"{__name__}:{name}")
    with pytest.raises(ConfigError, match="frozen=True and without dict=True"):
        find_policy(f"{__name__}:WithDict")


def test_a_package_offers_a_policy_as_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("offered_policies")
    module.Offered = Fine  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "offered_policies", module)
    entry = EntryPoint("no_fun", "offered_policies:Offered", "streamglot.policies")
    monkeypatch.setattr("streamglot.plugins.entry_points", lambda group: [entry] if group == entry.group else [])
    assert find_policy("no_fun") is Fine


def test_every_built_in_policy_has_its_name_and_a_title() -> None:
    for name in BUILT_IN:
        kind = find_policy(name)
        assert kind.use == name
        assert kind.title.endswith(".")


def test_the_end_of_a_stream_is_its_last_event() -> None:
    assert run(stream(text("a")), appending("b"))[-1] == StreamEnd("end")
