"""Judges that take time: calls are judged at the same time and leave in order, text flows, and failures refuse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from policies.async_driver import Driver
from policies.policy_streams import call, calls_of, end_of, normal, stream, text, text_of
from streamglot import check
from streamglot.errors import LimitExceeded, RequestError, StreamglotError
from streamglot.events import Choice, Event, Extra, KeepAlive, StreamEnd, StreamError, TextDelta, TextStart, Usage
from streamglot.messages import Message, Request, TextPart
from streamglot.policies import (
    ApprovalRequest,
    Approvals,
    Decision,
    Engine,
    JudgeContext,
    Needs,
    Piece,
    Policy,
    Verdict,
    answer,
    ask,
    block,
    delta,
    end,
    forward,
    policy_stage,
    refuse,
    retry,
    rewrite,
    sentence,
)
from streamglot.policies.approvals import MAX_OPEN
from streamglot.policies.running.judging import MAX_PENDING
from streamglot.stages.stage import ExchangeContext, ExchangeEnded, Question

GATES: dict[str, asyncio.Event] = {}
VERDICTS: dict[str, Verdict | Exception] = {}


class Gated(Policy, frozen=True, kw_only=True):
    """Decides on a tool by its name, when its gate is opened."""

    unit: str = "block"

    def needs(self) -> Needs:
        return {"block": block("tool_call"), "sentence": sentence("text"), "answer": answer()}[self.unit]

    async def decide(self, piece: Piece, context: JudgeContext, engine: Engine) -> Verdict:
        name = piece.name or piece.text.strip()
        await GATES[name].wait() if name in GATES else await asyncio.sleep(0)
        verdict = VERDICTS.get(name, forward("fine"))
        if isinstance(verdict, Exception):
            raise verdict
        return verdict


@pytest.fixture(autouse=True)
def _fresh() -> None:
    GATES.clear()
    VERDICTS.clear()


def gates(*names: str) -> None:
    GATES.update({name: asyncio.Event() for name in names})


CALLS = stream(text("First."), call("one", "{}"), call("two", "{}"), call("three", "{}"), reason="tool_calls")


def test_calls_are_judged_at_the_same_time_and_leave_in_order() -> None:
    async def scenario() -> None:
        gates("one", "two", "three")
        driver = Driver(Gated())
        driver.feed(CALLS)
        assert len(driver.tasks) == 3
        assert text_of(driver.out) == "First."
        GATES["three"].set()
        await driver.until(lambda: len(driver.tasks) == 2)
        GATES["two"].set()
        await driver.until(lambda: len(driver.tasks) == 1)
        assert calls_of(driver.out) == []
        GATES["one"].set()
        assert await driver.settled() == CALLS

    asyncio.run(scenario())


def test_text_before_a_held_call_has_left_and_keep_alives_continue() -> None:
    async def scenario() -> None:
        gates("one")
        driver = Driver(Gated())
        events = stream(text("a", "b"), call("one", "{", "}"), text("c"), reason="tool_calls")
        for event in events[:4]:
            driver.feed([event])
        assert driver.out == events[:4]
        for event in events[4:-1]:
            driver.feed([event])
        driver.feed([KeepAlive()])
        driver.feed([Usage(1)])
        assert driver.out == [*events[:5], KeepAlive()]
        driver.feed([events[-1]])
        GATES["one"].set()
        after = await driver.settled()
        assert normal(after) == normal([*events[:-1], Usage(1), events[-1]])

    asyncio.run(scenario())


def test_a_judge_that_does_not_answer_in_time_refuses() -> None:
    async def scenario() -> None:
        gates("two")
        driver = Driver(Gated(seconds=0.001))
        driver.feed(CALLS)
        after = await driver.settled()
        assert [name for name, _ in calls_of(after)] == ["one", "three"]
        assert "did not answer in time" in text_of(after)
        assert end_of(after) == StreamEnd("tool_calls")
        refused = [fact for fact in driver.context.annotations["policies"] if fact["verdict"] == "refuse"]
        assert [(fact["tool"], fact["reason"][:40]) for fact in refused] == [("two", "the policy did not answer in time: Timeo")]

    asyncio.run(scenario())


@pytest.mark.parametrize(("on_error", "left"), [("refuse", ["two"]), ("forward", ["one", "two", "three"])])
def test_a_failing_judge_follows_on_error(on_error: Any, left: list[str]) -> None:
    async def scenario() -> None:
        VERDICTS["one"] = ValueError("broken")
        VERDICTS["three"] = "nonsense"  # type: ignore[assignment]  # a value that is not a verdict fails too
        driver = Driver(Gated(on_error=on_error))
        driver.feed(CALLS)
        after = await driver.settled()
        assert [name for name, _ in calls_of(after)] == left
        assert "broken" not in text_of(after)
        assert len(driver.context.annotations["policies"]) == 3

    asyncio.run(scenario())


def test_verdicts_of_judges_are_recorded_with_their_reason() -> None:
    async def scenario() -> None:
        VERDICTS.update(one=refuse("no", reason="bad"), two=rewrite('{"x": 1}', name="other"))
        driver = Driver(Gated())
        driver.feed(CALLS)
        after = await driver.settled()
        assert calls_of(after) == [("other", '{"x": 1}'), ("three", "{}")]
        facts = driver.context.annotations["policies"]
        assert [(fact["tool"], fact["verdict"], fact.get("reason", "")) for fact in facts] == [
            *(("one", "refuse", "bad"), ("two", "rewrite", ""), ("three", "forward", "fine")),
        ]

    asyncio.run(scenario())


def test_the_upstream_breaks_off_while_a_call_is_held() -> None:
    async def scenario() -> None:
        gates("one")
        driver = Driver(Gated())
        events = [*stream(call("one", "{}"))[:-1], StreamError("upstream_truncated", "cut")]
        driver.feed(events)
        assert driver.out == events[:1]
        GATES["one"].set()
        assert await driver.settled() == events

    asyncio.run(scenario())


def test_the_client_hangs_up_while_a_call_is_judged() -> None:
    async def scenario() -> None:
        gates("one")
        driver = Driver(Gated())
        driver.feed(CALLS)
        for task in list(driver.tasks):
            task.cancel()
        await driver.settled()
        assert calls_of(driver.out) == []
        assert driver.stage.answer(Question(), forward()) == []

    asyncio.run(scenario())


def test_more_calls_than_may_be_judged_at_once_are_refused() -> None:
    async def scenario() -> None:
        gates("f")
        driver = Driver(Gated())
        driver.feed(stream(*(call("f", "{}", id=f"c{number}") for number in range(MAX_PENDING + 2)), reason="tool_calls"))
        assert len(driver.tasks) == MAX_PENDING
        GATES["f"].set()
        after = await driver.settled()
        assert len(calls_of(after)) == MAX_PENDING
        assert text_of(after).count("withheld") == 2

    asyncio.run(scenario())


def test_sentences_are_judged_while_the_text_continues() -> None:
    async def scenario() -> None:
        gates("Two.")
        VERDICTS["Three."] = refuse("[…]")
        driver = Driver(Gated(unit="sentence"))
        driver.feed(stream(text("One. Two. Three. Four.")))
        await driver.until(lambda: text_of(driver.out) == "One. ")
        GATES["Two."].set()
        after = await driver.settled()
        assert text_of(after) == "One. Two. […]"
        assert end_of(after) == StreamEnd("content_filter")

    asyncio.run(scenario())


def test_a_thousand_streams_wait_for_a_judge_and_no_text_is_delayed() -> None:
    async def scenario() -> None:
        gates("one")
        drivers = [Driver(Gated()) for _ in range(1000)]
        events = stream(text("a ", "b"), call("one", "{}"), reason="tool_calls")
        for driver in drivers:
            for event in events:
                driver.feed([event])
        assert all(driver.out == events[:5] for driver in drivers)
        GATES["one"].set()
        for driver in drivers:
            assert await driver.settled() == events

    asyncio.run(scenario())


@pytest.mark.parametrize("on_error", ["refuse", "forward"])
@pytest.mark.parametrize("error", [None, StreamglotError("too late", code="late")])
def test_a_piece_without_a_verdict_is_withheld_when_the_exchange_ends(on_error: Any, error: StreamglotError | None) -> None:
    """The policy did not fail, so its ``on_error`` does not count, and the client is not told of a failure."""
    context = ExchangeContext()
    stage = policy_stage([AskFirst(on_error=on_error)], clock=lambda: 0.0)(context)
    assert stage is not None
    outputs = stage.feed(CALLS)
    for question in [output for output in outputs if isinstance(output, Question)]:
        outputs += stage.answer(question, ExchangeEnded.by(error))
    events = [output for output in outputs if not isinstance(output, Question)]
    assert (calls_of(events), text_of(events)) == ([], "First.")
    assert {fact["reason"] for fact in context.annotations["policies"]} == {"the request ended before the verdict"}


# --- asking people


class AskFirst(Policy, frozen=True):
    seconds: float = 5.0

    def needs(self) -> Needs:
        return block("tool_call")

    async def decide(self, piece: Piece, context: JudgeContext, engine: Engine) -> Verdict:
        return ask(f"{piece.name}?")


def test_a_person_approves_changes_and_refuses() -> None:
    async def scenario() -> None:
        driver = Driver(AskFirst())
        approvals: Approvals = driver.engine.approvals
        driver.feed(CALLS)
        await driver.until(lambda: len(approvals.open()) == 3)
        first = approvals.open()[0]
        assert (first.message, first.tool, first.text, first.seconds, first.key) == ("one?", "one", "{}", 5.0, "k")
        ids = {request.tool: request.id for request in approvals.open()}
        approvals.decide(ids["three"], Decision(False))
        for broken in ("not json", "[1]", "", "[" * 100_000):
            with pytest.raises(RequestError, match="must be a JSON object"):
                approvals.decide(ids["two"], Decision(True, text=broken))
        approvals.decide(ids["two"], Decision(True, text='{"less": 1}', by="ann"))
        assert calls_of(driver.out) == []
        approvals.decide(ids["one"], Decision(True))
        with pytest.raises(RequestError, match="was already approved, and the first decision counts") as conflict:
            approvals.decide(ids["one"], Decision(False))
        assert (conflict.value.status, conflict.value.code) == (409, "already_decided")
        with pytest.raises(RequestError, match="there is no open approval"):
            approvals.decide("another", Decision(True))
        after = await driver.settled()
        assert calls_of(after) == [("one", "{}"), ("two", '{"less": 1}')]
        assert text_of(after) == "First.[refused by a person]"
        assert approvals.open() == []
        reasons = [fact["reason"] for fact in driver.context.annotations["policies"]]
        assert sorted(reasons) == ["decided by a person", "decided by a person", "decided by ann"]

    asyncio.run(scenario())


def test_nobody_decides_in_time() -> None:
    async def scenario() -> None:
        driver = Driver(AskFirst(seconds=0.001))
        driver.feed(CALLS)
        assert calls_of(await driver.settled()) == []
        assert driver.engine.approvals.open() == []

    asyncio.run(scenario())


def test_the_registry_notifies_and_is_bounded() -> None:
    async def scenario() -> None:
        notified: list[ApprovalRequest] = []
        approvals = Approvals(lambda: str(len(notified)), notified.append)
        request = ApprovalRequest("r", "p", "?", "tool_call")
        tasks = [asyncio.create_task(approvals.ask(request)) for _ in range(MAX_OPEN)]
        while len(notified) < MAX_OPEN:
            await asyncio.sleep(0)
        with pytest.raises(LimitExceeded, match="decide some"):
            await approvals.ask(request)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert approvals.open() == []

    asyncio.run(scenario())


# --- asking the client's user


class AskTheClient(Policy, frozen=True):
    def needs(self) -> Needs:
        return block("tool_call")

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        return ask(f"{piece.name}?", client=True)


def test_the_users_of_a_client_that_can_ask_are_asked_by_the_client() -> None:
    async def scenario() -> None:
        driver = Driver(AskTheClient(), context=ExchangeContext(key="k", can_ask=True))
        driver.feed(CALLS)
        after = await driver.settled()
        check(after)
        assert (calls_of(after), end_of(after)) == ([], StreamEnd("end"))
        asked = [event.data for event in after if isinstance(event, Extra)]
        assert [(data["name"], data["message"], data["arguments"]) for data in asked][:1] == [("one", "one?", "{}")]
        assert len(asked) == 3
        approvals: Approvals = driver.engine.approvals
        assert approvals.open() == []
        assert {fact["verdict"] for fact in driver.context.annotations["policies"]} == {"ask"}
        with pytest.raises(RequestError, match="there is no suspended call"):
            approvals.resume(asked[0]["id"], "another key")
        with pytest.raises(RequestError, match="must be a JSON object"):
            approvals.resume(asked[0]["id"], "k", "not json")
        assert approvals.is_suspended(asked[0]["id"])
        suspended = approvals.resume(asked[0]["id"], "k", "{}")
        again = Driver(AskTheClient(), context=ExchangeContext(can_ask=True, state={"approved_calls": {"call_one"}}))
        again.feed(stream(suspended.events, reason="tool_calls"))
        assert calls_of(await again.settled()) == [("one", "{}")]
        with pytest.raises(RequestError, match="there is no suspended call"):
            approvals.resume(asked[0]["id"], "k")

    asyncio.run(scenario())


def test_the_arguments_of_a_call_that_takes_free_text_may_be_any_text() -> None:
    async def scenario() -> None:
        approvals = Approvals(lambda: "1")
        approvals.suspend(ApprovalRequest("r", "p", "?", "tool_call", text="*** Begin Patch", seconds=600.0), [])
        assert approvals.resume("1", "", "*** Another Patch").request.id == "1"

    asyncio.run(scenario())


def test_suspended_calls_expire_and_are_bounded() -> None:
    async def scenario() -> None:
        numbers = iter(range(2 * MAX_OPEN))
        approvals = Approvals(lambda: str(next(numbers)))
        late = approvals.suspend(ApprovalRequest("r", "p", "?", "tool_call", seconds=0.0), [])
        assert approvals.is_suspended(late.request.id)
        with pytest.raises(RequestError, match="its time has passed"):
            approvals.resume(late.request.id, "")
        request = ApprovalRequest("r", "p", "?", "tool_call", seconds=600.0)
        first = approvals.suspend(request, [])
        assert not approvals.is_suspended(late.request.id)
        for _ in range(MAX_OPEN - 1):
            approvals.suspend(request, [])
        assert approvals.is_suspended(first.request.id)
        approvals.suspend(request, [])
        assert not approvals.is_suspended(first.request.id)

    asyncio.run(scenario())


# --- asking the upstream again

SECOND = stream(text("Better."))
REQUEST = Request(model="m", messages=[Message("user", [TextPart("Do it.")])])


def test_a_call_is_not_allowed_and_the_model_is_asked_again() -> None:
    async def scenario() -> None:
        VERDICTS["two"] = retry("Do it otherwise.", message="[no]")
        events = stream(text("I begin. "), call("two", "{}"), call("three", "{}"), reason="tool_calls")
        driver = Driver(Gated(), turns=[SECOND])
        await driver.request(REQUEST)
        driver.feed(events)
        after = await driver.settled()
        check(after)
        assert normal(after) == [*normal(events)[:4], *SECOND[1:]]
        (again,) = driver.asked
        assert [(message.role, message.text) for message in again.messages] == [
            *(("user", "Do it."), ("assistant", "I begin. "), ("user", "Do it otherwise.")),
        ]

    asyncio.run(scenario())


def test_the_model_is_asked_again_once_only() -> None:
    async def scenario() -> None:
        VERDICTS["two"] = retry("Otherwise.", message="[no]")
        events = stream(call("two", "{}"), reason="tool_calls")
        driver = Driver(Gated(), turns=[events])
        await driver.request(REQUEST)
        driver.feed(events)
        after = await driver.settled()
        assert after == stream(text("[no]"))
        assert len(driver.asked) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("unit", ["block", "answer"])
def test_without_an_upstream_a_retry_is_a_refusal(unit: str) -> None:
    async def scenario() -> None:
        VERDICTS["two"] = retry("Otherwise.", message="[no]")
        name = "two"
        events = stream(call(name, "{}") if unit == "block" else text(name), reason="tool_calls")
        driver = Driver(Gated(unit=unit))
        await driver.request(REQUEST)
        driver.feed(events)
        after = await driver.settled()
        assert (text_of(after), end_of(after)) == ("[no]", StreamEnd("content_filter"))

    asyncio.run(scenario())


def test_a_retry_that_the_engine_cannot_open_is_refused_with_its_message() -> None:
    async def scenario() -> None:
        VERDICTS["two"] = retry("Otherwise.", message="[no]")
        failed: list[Event] = [StreamError("busy", "no upstream", "upstream", True, 503)]
        driver = Driver(Gated(), turns=[failed])
        await driver.request(REQUEST)
        driver.feed(stream(call("two", "{}"), reason="tool_calls"))
        after = await driver.settled()
        check(after)
        assert (text_of(after), end_of(after)) == ("[no]", StreamEnd("content_filter"))
        asked, refused = driver.context.annotations["policies"]
        assert (asked["verdict"], refused["verdict"]) == ("retry", "refuse")
        assert refused["reason"] == "the upstream could not be asked again: no upstream"

    asyncio.run(scenario())


@pytest.mark.parametrize("unit", ["block", "answer"])
def test_the_usage_of_both_turns_of_a_retry_is_added(unit: str) -> None:
    async def scenario() -> None:
        VERDICTS["two"] = retry("Otherwise.")
        block = call("two", "{}") if unit == "block" else text("two")
        driver = Driver(Gated(unit=unit), turns=[[*SECOND[:-1], Usage(7, 3), SECOND[-1]]])
        await driver.request(REQUEST)
        driver.feed([*stream(block)[:-1], Usage(5, 2), StreamEnd("tool_calls")])
        after = await driver.settled()
        check(after)
        assert [event for event in after if isinstance(event, Usage)][-1] == Usage(12, 5)

    asyncio.run(scenario())


def test_no_retry_after_a_call_that_was_released_or_without_a_request() -> None:
    async def scenario() -> None:
        VERDICTS["two"] = retry("Otherwise.", message="[no]")
        for events, request in ((CALLS, REQUEST), (stream(call("two", "{}")), None)):
            driver = Driver(Gated(), turns=[SECOND])
            if request is not None:
                await driver.request(request)
            driver.feed(events)
            after = await driver.settled()
            assert "two" not in [name for name, _ in calls_of(after)]
            assert driver.asked == []

    asyncio.run(scenario())


def test_a_whole_answer_is_asked_for_again() -> None:
    async def scenario() -> None:
        VERDICTS["bad"] = retry("Again.", message="[no]")
        driver = Driver(Gated(unit="answer"), turns=[SECOND])
        await driver.request(REQUEST)
        driver.feed(stream(text("bad")))
        assert await driver.settled() == SECOND
        assert driver.asked[0].messages[-1].text == "Again."
        driver.feed([TextStart()])

    asyncio.run(scenario())


# --- several choices


def choice(index: int, events: list[Event]) -> list[Event]:
    return [Choice(index, event) for event in events]  # type: ignore[arg-type]  # none of them is a Choice


def test_each_choice_is_judged_for_itself_and_the_first_ends_last() -> None:
    async def scenario() -> None:
        gates("one", "two")
        driver = Driver(Gated())
        first = stream(text("a"), call("one", "{}"), reason="tool_calls")
        other = stream(text("b"), call("two", "{}", id="x"), reason="tool_calls")
        driver.feed([first[0], *choice(1, other[1:-1]), *first[1:-1]])
        driver.feed([*choice(1, other[-1:]), KeepAlive(), first[-1]])
        assert text_of(driver.out) == "a"
        GATES["one"].set()
        await driver.until(lambda: calls_of(driver.out) == [("one", "{}")])
        assert not isinstance(driver.out[-1], StreamEnd)
        VERDICTS["two"] = refuse("no")
        GATES["two"].set()
        after = await driver.settled()
        check(after)
        assert after[-1] == StreamEnd("tool_calls")
        second = [event.event for event in after if isinstance(event, Choice)]
        assert second == [*text("b"), *text("no"), StreamEnd("end")]
        assert driver.context.annotations["policies"][-1]["choice"] == 1

    asyncio.run(scenario())


def test_an_error_ends_all_choices() -> None:
    async def scenario() -> None:
        driver = Driver(Gated())
        events = stream(text("a"))
        error = StreamError("upstream_truncated", "cut")
        driver.feed([events[0], *choice(1, text("b")), *events[1:4], error])
        after = await driver.settled()
        check(after)
        assert after[-1] == error

    asyncio.run(scenario())


class NoX(Policy, frozen=True):
    """Ends the stream at an x."""

    stop: Any = None

    def needs(self) -> Needs:
        return delta("text")

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        return end("no x", stop=self.stop) if "x" in piece.text else forward()


def test_a_policy_ends_the_stream_from_another_choice() -> None:
    driver = Driver(NoX())
    events = stream(text("a", "b"))
    driver.feed([events[0], *choice(1, [TextStart()]), *events[1:3]])
    driver.feed([*choice(1, [TextDelta("x")]), *events[3:]])
    check(driver.out)
    assert driver.out[-1] == StreamError("policy_refused", "no x", "policy", False, 403)


def test_a_policy_ends_one_choice() -> None:
    driver = Driver(NoX(stop="length"))
    events = stream(text("a", "b"))
    other = [*text("c", "x", "d"), StreamEnd("end")]
    driver.feed([events[0], *choice(1, other), *events[1:]])
    check(driver.out)
    assert [event.event for event in driver.out if isinstance(event, Choice)] == [*text("c"), StreamEnd("length")]
    assert driver.out[-1] == StreamEnd("end")


def test_no_retry_with_several_choices() -> None:
    async def scenario() -> None:
        VERDICTS["two"] = retry("Otherwise.", message="[no]")
        driver = Driver(Gated(), turns=[SECOND])
        await driver.request(REQUEST)
        events = stream(call("two", "{}"), reason="tool_calls")
        driver.feed([events[0], *choice(1, [*text("b"), StreamEnd("end")]), *events[1:]])
        after = await driver.settled()
        assert (driver.asked, text_of(after), calls_of(after)) == ([], "[no]", [])

    asyncio.run(scenario())
