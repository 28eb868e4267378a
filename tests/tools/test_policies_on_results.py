"""A policy judges the result of a tool before anyone sees it: the client, the store and the model get the same changed result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import streamglot
from gateway.running import running
from streamglot.engine.observer import Observer
from streamglot.errors import StreamglotError
from streamglot.events import Event, StepEnd, StreamEnd, StreamError, ToolResult
from streamglot.messages import MediaPart, Request, TextPart
from streamglot.policies import (
    FORWARD,
    JudgeContext,
    Needs,
    Piece,
    Policy,
    Verdict,
    When,
    ask,
    block,
    end,
    forward,
    load_policies,
    refuse,
    replace,
    request,
    retry,
    rewrite,
)
from streamglot.policies.builtin.compose import DryRun, Parallel
from streamglot.stages.stage import ExchangeContext
from streamglot.store import Database, Queries, TurnDetail
from streamglot.tools.loop import STEP
from streamglot.tools.settings import ToolLimits
from streamglot.tools.tool import ToolOutput
from tools.chat_model import ChatModel
from tools.scripted import Model, call, calls, events_of, exchange_of, executor_of, hanging_tool, text
from waiting import soon, until

pytestmark = pytest.mark.anyio

SECRET = "ann@paris.example"
TOOL = f"""
import streamglot

@streamglot.tool
async def contact(city: str) -> str:
    "Whom to ask in a city."
    return "ask {SECRET} in " + city
"""
REDACT = {"use": "redact", "detectors": ["email"], "apply_to": ["tool_results"], "replacement": "[hidden]"}
ASKED = {"streamglot": {"tools": ["contact"]}}
SAID = [{"role": "user", "content": "whom?"}]
RUN = {"threadId": "t", "runId": "r", "tools": [], "context": [], "state": {}, "forwardedProps": {"model": "m"}}
PARTS = [{"type": "text", "text": "whom?"}]
CLIENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"model": "m", "messages": SAID}),
    "chat, stream": ("/v1/chat/completions", {"model": "m", "messages": SAID, "stream": True}),
    "chat, whole with extensions": ("/v1/chat/completions", {"model": "m", "messages": SAID, "extensions": True}),
    "chat, activity as extensions": (
        "/v1/chat/completions",
        {"model": "m", "messages": SAID, "stream": True, "streamglot": {"tools": ["contact"], "activity": "extensions"}},
    ),
    "chat, activity as reasoning": (
        "/v1/chat/completions",
        {"model": "m", "messages": SAID, "stream": True, "streamglot": {"tools": ["contact"], "activity": "reasoning"}},
    ),
    "responses": ("/v1/responses", {"model": "m", "input": "whom?"}),
    "responses, stream": ("/v1/responses", {"model": "m", "input": "whom?", "stream": True}),
    "messages": ("/v1/messages", {"model": "m", "max_tokens": 99, "messages": SAID}),
    "messages, stream": ("/v1/messages", {"model": "m", "max_tokens": 99, "messages": SAID, "stream": True}),
    "gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", {"contents": [{"role": "user", "parts": [{"text": "whom?"}]}]}),
    "ollama": ("/api/chat", {"model": "m", "messages": SAID}),
    "agui": ("/agui", {**RUN, "messages": [{"id": "1", "role": "user", "content": "whom?"}]}),
    "ui": ("/ui", {"id": "c", "model": "m", "messages": [{"id": "1", "role": "user", "parts": PARTS}]}),
}
SHOWING = [name for name in CLIENTS if name not in ("chat", "chat, stream", "gemini", "ollama")]
"""Clients that see the results themselves, beside the answer of the model, which repeats them."""


def _config(model: ChatModel, folder: Path, policy: Mapping[str, Any]) -> dict[str, Any]:
    (folder / "contacts.py").write_text(TOOL)
    return {
        "upstreams": {"scripted": {"base_url": model.url, "models": ["m"]}},
        "tools": {"enabled": ["contact"], "python": [str(folder / "contacts.py")]},
        "store": {"url": f"sqlite:///{folder / 'store.db'}"},
        "policies": [policy],
    }


def _stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("store.db*")))


async def _turns(folder: Path) -> list[TurnDetail]:
    database = await Database.open(f"sqlite:///{folder / 'store.db'}")
    try:
        queries = Queries(database)
        return [turn for found in await queries.turns() if (turn := await queries.turn(found.id)) is not None]
    finally:
        await database.close()


def test_no_client_dialect_shows_what_a_policy_redacts_in_a_result(model: ChatModel, tmp_path: Path) -> None:
    with running(_config(model, tmp_path, REDACT)) as gateway:
        for name, (path, body) in CLIENTS.items():
            answer = gateway.ask(path, {**ASKED, **body})
            shown = answer.body.decode()
            assert answer.status == 200, (name, shown)
            assert SECRET not in shown, name
            sent_to_model = [message["content"] for message in model.bodies[-1]["messages"] if message["role"] == "tool"]
            assert sent_to_model == ["ask [hidden] in Paris", "ask [hidden] in Rome"], name
            if name in SHOWING:
                before_the_answer = shown.replace("ask [hidden] in Paris and ask [hidden] in Rome", "")
                assert "ask [hidden] in Paris" in before_the_answer, (name, shown)
        assert SECRET not in str(gateway.lines)
        until(lambda: _stored(tmp_path).count(b"ask [hidden] in Rome") >= len(CLIENTS), lambda: "the turns were not stored")
    assert SECRET.encode() not in _stored(tmp_path)


def test_a_policy_that_stores_originals_stores_them_in_its_record_alone(model: ChatModel, tmp_path: Path) -> None:
    policy = {**REDACT, "store_original": True}
    path, body = CLIENTS["messages"]
    with running(_config(model, tmp_path, policy)) as gateway:
        assert SECRET not in gateway.ask(path, {**ASKED, **body}).body.decode()
        until(lambda: SECRET.encode() in _stored(tmp_path), lambda: "the original was not stored")
    [turn] = asyncio.run(_turns(tmp_path))
    assert [(fact["original"], fact["changed"]) for fact in turn.verdicts] == [(SECRET, "[hidden]")] * 2
    assert [step["result"] for step in turn.steps if step["kind"] == "tool"] == ["ask [hidden] in Paris", "ask [hidden] in Rome"]
    turn.verdicts.clear()
    assert SECRET not in str(turn)


def test_the_library_gives_changed_results(model: ChatModel) -> None:
    @streamglot.tool
    async def contact(city: str) -> str:
        return f"ask {SECRET} in {city}"

    policies = load_policies([REDACT])
    with streamglot.Client(upstreams=[model.upstream()], tools=[contact], policies=policies) as client:
        events = list(client.stream(model="m", messages="whom?"))
    assert [event.content for event in events if isinstance(event, ToolResult)] == [
        "ask [hidden] in Paris",
        "ask [hidden] in Rome",
    ]
    assert SECRET not in str(events)


# --- verdicts, through the engine


class OnResults(Policy, frozen=True):
    """Gives one verdict on every result. ``asks``: the verdict comes from ``decide``."""

    verdict: Any = FORWARD
    needed: Any = None  # needs; results in answers unless given
    asks: bool = False
    fails: bool = False

    def needs(self) -> Needs:
        return self.needed or block("tool_result")

    def judge(self, piece: Piece, context: JudgeContext) -> Any:
        if self.fails:
            raise RuntimeError("broken")
        return super().judge(piece, context) if self.asks else self.verdict

    async def decide(self, piece: Piece, context: JudgeContext, engine: Any) -> Verdict:
        verdict: Verdict = self.verdict
        return verdict


class Watch(Observer):
    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def annotated(self, subject: str, fact: dict[str, Any]) -> None:
        if subject == STEP and "result" in fact:
            self.steps.append(fact)


class Ran:
    """An exchange with one call of one tool, whose result is ``raw``."""

    def __init__(self, *policies: Policy, raw: Any = "raw", limits: ToolLimits | None = None) -> None:
        async def look() -> Any:
            return raw

        self.model = Model([calls(call("a", "look")), text("done")])
        self.watch = Watch()
        self.context = ExchangeContext("r1", "openai_chat", "", "m", tools=["*"])
        self.exchange = exchange_of(
            self.model,
            executor_of(look, limits=limits),
            policies=policies,
            observers=[self.watch],
            context=self.context,
        )
        self.events: list[Event] = []

    async def run(self) -> Ran:
        self.events = await events_of(self.exchange)
        return self

    @property
    def shown(self) -> list[tuple[str, bool]]:
        return [(event.content, event.is_error) for event in self.events if isinstance(event, ToolResult)]

    @property
    def sent_to_model(self) -> list[tuple[str, bool]]:
        return [(part.text, part.is_error) for part in self.model.results()]

    @property
    def stored(self) -> list[tuple[str, bool]]:
        return [(step["result"], step["is_error"]) for step in self.watch.steps]


@pytest.mark.parametrize("needed", [block("tool_result"), request("tool_result"), block("tool_result") | request("tool_result")])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (FORWARD, ("raw", False)),
        (rewrite(name="other"), ("raw", False)),
        (rewrite("changed"), ("changed", False)),
        (replace("other"), ("other", False)),
        (replace(""), ("The tool ran and returned no output.", False)),
        (refuse("[no]"), ("[no]", True)),
        (refuse(""), (f"[withheld by the policy {__name__}:OnResults]", True)),
        (retry("again", message="[not that]"), ("[not that]", True)),
    ],
)
async def test_the_client_the_store_and_the_model_get_the_same_result(
    needed: Needs, asks: bool, verdict: Verdict, expected: tuple[str, bool]
) -> None:
    ran = await Ran(OnResults(verdict=verdict, needed=needed, asks=asks)).run()
    assert ran.shown == ran.sent_to_model == ran.stored == [expected]
    assert isinstance(ran.events[-1], StreamEnd)
    verdicts = ran.context.annotations.get("policies", [])
    assert len(verdicts) == (verdict is not FORWARD or asks)  # judged once, although the result passes twice


async def test_a_policy_ends_the_exchange_at_a_result() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def look() -> str:
        await started.wait()
        return SECRET

    async def hang() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    model = Model([calls(call("a", "look"), call("b", "hang"), call("c", "hang")), text("never")])
    policy = OnResults(verdict=end("that is enough"))
    limits = ToolLimits(concurrent=2)
    events = await events_of(exchange_of(model, executor_of(look, hang, limits=limits), policies=[policy]))
    last = events[-1]
    assert isinstance(last, StreamError)
    assert (last.message, last.origin) == ("that is enough", "policy")
    assert sorted(event.call_id for event in events if isinstance(event, ToolResult)) == ["a", "b", "c"]
    assert SECRET not in str(events)
    assert len(model.requests) == 1
    await soon(cancelled.is_set)


async def test_two_results_at_which_a_policy_ends_the_exchange_end_it_once() -> None:
    model = Model([calls(call("a", "look"), call("b", "look", '{"n": 2}')), text("never")])

    async def look(n: int = 1) -> str:
        return f"raw {n}"

    events = await events_of(exchange_of(model, executor_of(look), policies=[OnResults(verdict=end())]))
    assert isinstance(events[-1], StreamError)
    assert "ended the exchange at a result of look" in events[-1].message
    assert len([event for event in events if isinstance(event, ToolResult)]) == 2


async def test_a_policy_that_fails_withholds_the_result() -> None:
    ran = await Ran(OnResults(fails=True)).run()
    [(said, failed)] = ran.shown
    assert said.startswith("[withheld: the policy")
    assert failed
    assert ran.sent_to_model == ran.stored == ran.shown
    assert (await Ran(OnResults(fails=True, on_error="forward")).run()).sent_to_model == [("raw", False)]


async def test_a_person_decides_about_a_result() -> None:
    ran = Ran(OnResults(verdict=ask("show this?")))
    running = asyncio.ensure_future(ran.run())
    await soon(lambda: bool(ran.model.approvals.open()))
    [asked] = ran.model.approvals.open()
    assert (asked.kind, asked.tool, asked.text) == ("tool_result", "look", "raw")
    ran.model.approvals.decide(asked.id, streamglot.policies.Decision(approved=True, text="edited"))
    assert (await running).shown == ran.sent_to_model == ran.stored == [("edited", False)]


async def test_an_exchange_that_is_stopped_during_a_check_withholds_the_result() -> None:
    ran = Ran(OnResults(verdict=ask("show this?")))
    running = asyncio.ensure_future(ran.run())
    await soon(lambda: bool(ran.model.approvals.open()))
    ran.exchange.stop()
    await running
    assert ran.shown == [("The tool 'look' was stopped before it finished.", True)]
    ran = Ran(OnResults(verdict=ask("show this?")))
    running = asyncio.ensure_future(ran.run())
    await soon(lambda: bool(ran.model.approvals.open()))
    ran.exchange.interrupt(StreamglotError("the gateway stops"))
    await running
    assert ran.shown == [("The result of 'look' could not be checked and is withheld.", True)]
    assert "raw" not in str(ran.stored)


async def test_a_tool_that_is_stopped_gets_its_result_also_where_policies_check() -> None:
    hangs, started, _ = hanging_tool()
    exchange = exchange_of(Model([calls(call("a", "hangs"))]), executor_of(hangs), policies=[OnResults()])
    reading = asyncio.ensure_future(events_of(exchange))
    await soon(started.is_set)
    exchange.stop()
    results = [event.content for event in await reading if isinstance(event, ToolResult)]
    assert results == ["The tool 'hangs' was stopped before it finished."]


async def test_results_that_the_loop_writes_itself_are_checked_too() -> None:
    model = Model([calls(call("a", SECRET)), text("done")])
    policies = load_policies([REDACT])

    async def look() -> str:
        return ""

    events = await events_of(exchange_of(model, executor_of(look), policies=policies))
    [shown] = [event.content for event in events if isinstance(event, ToolResult)]
    assert shown == "The tool '[hidden]' does not exist. The tools are: look."
    assert model.results()[0].text == shown


async def test_the_part_of_a_result_that_is_cut_off_is_checked_for_the_store() -> None:
    ran = await Ran(*load_policies([REDACT]), raw="x" * 20 + f" {SECRET}", limits=ToolLimits(result_chars=10)).run()
    assert ran.shown == ran.sent_to_model
    assert ran.shown[0][0].startswith("xxxxxxxxxx\n[cut here")
    assert ran.stored == [("x" * 20 + " [hidden]", False)]


async def test_a_refused_result_loses_its_media_and_a_changed_one_keeps_them() -> None:
    output = ToolOutput("raw", media=[MediaPart("image/png", data="AAAA")])
    refused = await Ran(OnResults(verdict=refuse("[no]")), raw=output).run()
    assert [part.content for part in refused.model.results()] == [[TextPart("[no]")]]
    output = ToolOutput("raw", media=[MediaPart("image/png", data="AAAA")])
    changed = await Ran(OnResults(verdict=rewrite("new")), raw=output).run()
    assert [len(part.content) for part in changed.model.results()] == [2]


async def test_placeholders_hide_a_value_from_the_model_and_give_it_back_to_tools() -> None:
    """Mode ``restore``: the model sees a placeholder in the result, and a tool that it passes the placeholder to gets the value."""
    got: list[str] = []

    async def look() -> str:
        return f"ask {SECRET}"

    async def mail(to: str) -> str:
        got.append(to)
        return f"sent to {to}"

    model = Model([calls(call("a", "look")), calls(call("b", "mail", '{"to": "[email_1]"}')), text("I wrote to [email_1]")])
    policies = load_policies([{"use": "redact", "detectors": ["email"], "mode": "restore"}])
    events = await events_of(exchange_of(model, executor_of(look, mail), policies=policies))
    assert [part.text for part in model.results()] == ["ask [email_1]", "sent to [email_1]"]
    assert got == [SECRET]
    assert streamglot.collect(events).choices[0].text == f"I wrote to {SECRET}"


async def test_conditions_on_tools_and_directions_apply_to_results() -> None:
    for when, expected in (
        (When(tools=["look"]), "changed"),
        (When(tools=["other"]), "raw"),
        (When(directions=["answer"]), "changed"),
        (When(directions=["request"]), "raw"),
        (When(models=["another"]), "raw"),
    ):
        ran = await Ran(OnResults(verdict=rewrite("changed"), when=when)).run()
        assert ran.shown == ran.sent_to_model == [(expected, False)], when


async def test_parallel_policies_judge_a_result_in_the_direction_that_each_of_them_sees() -> None:
    for strict in (block("tool_result"), request("tool_result")):
        both = Parallel(policies=[OnResults(verdict=refuse("[no]"), needed=strict), OnResults(needed=request("tool_result"))])
        ran = await Ran(both).run()
        assert ran.shown == ran.sent_to_model == [("[no]", True)]


@pytest.mark.parametrize("needed", [block("tool_result"), request("tool_result")])
@pytest.mark.parametrize("asks", [False, True])
async def test_a_dry_run_changes_no_result_and_records_its_verdict(needed: Needs, asks: bool) -> None:
    ran = Ran(DryRun(policy=OnResults(verdict=refuse("[no]"), needed=needed, asks=asks)))
    ran.model.before_ends = lambda: soon(lambda: len(ran.model.requests) == 1 or "policies" in ran.context.annotations)
    await ran.run()
    assert ran.shown == ran.sent_to_model == ran.stored == [("raw", False)]
    [fact] = ran.context.annotations["policies"]
    assert (fact["verdict"], fact["dry_run"], fact["tool"]) == ("refuse", True, "look")


async def test_steps_are_as_before_where_a_policy_checks_results() -> None:
    ran = await Ran(OnResults(verdict=forward())).run()
    assert [type(event) for event in ran.events if isinstance(event, (ToolResult, StepEnd))] == [ToolResult, StepEnd]


async def test_the_results_of_a_client_are_checked_in_its_request() -> None:
    """A result of the client's own tool comes with a request: the policy judges it there, as before."""
    seen: list[str] = []

    class Note(OnResults, frozen=True):
        def judge(self, piece: Piece, context: JudgeContext) -> Any:
            seen.append(piece.text)
            return FORWARD

    asked = Request("m", messages=[streamglot.Message("tool", [streamglot.messages.ToolResultPart("z", [TextPart("theirs")])])])
    model = Model([calls(call("a", "look")), text("done")])

    async def look() -> str:
        return "ours"

    await events_of(
        exchange_of(model, executor_of(look), policies=[Note(needed=request("tool_result"))], messages=asked.messages)
    )
    assert seen == ["theirs", "ours"]
