"""The steps of a tool loop in the store: written while they run, whole, and shown as a tree."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from cli.shell import Shell
from gateway.process import serving
from store.turns import answer, ask, asynchronous, user
from streamglot.cli.output.transcript import tree_of
from streamglot.engine.turn_recorder import TurnRecorder
from streamglot.store import Database, Queries, Session, Started, Store, StoreSettings, TurnDetail, prune_turns
from streamglot.store.rows import StepEntry
from streamglot.store.turns import Finished
from streamglot.tools.settings import ToolLimits
from tools.chat_model import ChatModel
from tools.scripted import Model, call, calls, events_of, exchange_of, executor_of, text
from waiting import until

TOOLS = """
import pathlib, time
import streamglot

@streamglot.tool(read_only=True)
def weather(city: str) -> str:
    with open("{runs}", "a") as runs:
        runs.write(city + "\\n")
    if city == "Rome":
        time.sleep({seconds})
    return "sunny in " + city
"""


def _turns(url: str) -> list[TurnDetail]:
    async def read() -> list[TurnDetail]:
        database = await Database.open(url)
        try:
            queries = Queries(database)
            found = [await queries.turn(turn.id) for turn in await queries.turns()]
            return [turn for turn in found if turn is not None]
        finally:
            await database.close()

    return asyncio.run(read())


def test_a_gateway_killed_in_the_middle_of_a_loop_leaves_the_steps_that_ran(tmp_path: Path, model: ChatModel) -> None:
    runs, url = tmp_path / "runs", f"sqlite:///{tmp_path / 'store.db'}"
    (tmp_path / "mytools.py").write_text(TOOLS.format(runs=runs, seconds=600))
    more = f'[tools]\nenabled = ["weather"]\npython = ["{tmp_path / "mytools.py"}"]\n'
    more += "[tools.limits]\nseconds = 600\ntotal_seconds = 600\n"
    body = {
        "model": "up/m",
        "messages": [{"role": "user", "content": "weather?"}],
        "stream": True,
        "streamglot": {"tools": ["weather"]},
    }

    def ask_until_it_dies(port: int) -> None:
        from gateway.worker_client import asked

        with suppress(Exception):
            asked(port, "/v1/chat/completions", body)

    with serving(tmp_path / "one", model.url.removesuffix("/v1"), url, more=more) as served:
        asking = threading.Thread(target=ask_until_it_dies, args=(served.port,))
        asking.start()
        until(lambda: any("seconds" in step for turn in _turns(url) for step in turn.steps if step["kind"] == "tool"))
        until(lambda: runs.exists() and len(runs.read_text().split()) == 2)
        served.kill()
        asking.join()
    with serving(tmp_path / "two", model.url.removesuffix("/v1"), url, more=more):
        until(lambda: all(turn.ending for turn in _turns(url)))
    [turn] = _turns(url)
    assert turn.ending == "interrupted"
    turned, paris, rome = turn.steps
    assert (turned["kind"], turned["reason"], turned["input_tokens"], turned["upstream"]) == ("model", "tool_calls", 10, "up")
    assert (paris["arguments"], paris["result"], paris["is_error"]) == ('{"city":"Paris"}', "sunny in Paris", False)
    assert rome["name"] == "weather"
    assert "result" not in rome
    assert sorted(runs.read_text().split()) == ["Paris", "Rome"]
    assert len(model.bodies) == 1


def test_logs_show_draws_the_steps_as_a_tree(tmp_path: Path, model: ChatModel) -> None:
    shell = Shell(tmp_path)
    (tmp_path / "mytools.py").write_text(TOOLS.format(runs=tmp_path / "runs", seconds=0))
    config = tmp_path / "streamglot.toml"
    config.write_text(
        f'[tools]\npython = ["{tmp_path / "mytools.py"}"]\n{config.read_text()}'
        f'[upstreams.scripted]\nbase_url = "{model.url}"\nmodels = ["m"]\n'
    )
    asked = shell.run("query", "-m", "m", "-T", "weather", "What is the weather?")
    assert asked.returncode == 0, asked.stderr
    shown = shell.run("logs", "show").stdout.decode()
    lines = [line for line in shown.splitlines() if line[:1] in "├│└ " and line.strip()]
    assert lines[0].startswith("├─ 1  tool_calls, scripted, 10/5 tokens")
    assert lines[1].startswith('│  ├─ weather({"city":"Paris"})')
    assert lines[2].strip("│ ") == "sunny in Paris"
    assert lines[3].startswith('│  └─ weather({"city":"Rome"})')
    assert lines[5].startswith("└─ 2  end, scripted, 10/5 tokens")
    whole = msgspec.json.decode(shell.run("logs", "show", "--json").stdout)
    assert [step["kind"] for step in whole["steps"]] == ["model", "tool", "tool", "model"]


def test_the_tree_shows_errors_calls_without_a_result_and_nothing_that_a_terminal_obeys() -> None:
    tool: dict[str, Any] = {"step": 1, "kind": "tool", "name": "rm\x1b[2J", "arguments": "{}"}
    lines = [line for _, line in tree_of([tool, {**tool, "seconds": 1.0, "is_error": True, "result": "x" * 500}])]
    assert lines[1] == "└─ 1  did not end"
    assert lines[3].endswith("did not end")
    assert "error: xxx" in lines[5]
    assert "(500 characters)" in lines[5]
    assert not any("\x1b" in line for line in lines)
    assert list(tree_of([])) == []
    failed = [line for _, line in tree_of([{**tool, "arguments": "", "seconds": 0.0, "is_error": True}])]
    assert failed[-1].endswith("error")
    costly = [{"step": 1, "kind": "model", "reason": "end", "cost": 0.5, "input_tokens": None, "output_tokens": 7}]
    assert "?/7 tokens" in next(line for _, line in tree_of(costly) if "end" in line)


@asynchronous
async def test_an_oversized_result_is_stored_whole(tmp_path: Path) -> None:
    def report() -> str:
        return "x" * 1000

    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path / 'store.db'}"))
    turn = store.start(Session(id="s"), Started(request=ask(user("hi"))))
    model = Model([calls(call("a", "report")), text("ok")])
    executor = executor_of(report, limits=ToolLimits(result_chars=10))
    await events_of(exchange_of(model, executor, observers=[TurnRecorder(turn)]))
    await store.writer.flush()
    found = await store.queries.turn(turn.id)
    assert found is not None
    assert len(found.steps[1]["result"]) == 1000
    assert model.results()[0].text.startswith("xxxxxxxxxx\n[cut here")
    await store.close()


@asynchronous
async def test_steps_without_contents_keep_what_ran_and_how_long(url: str) -> None:
    store = await Store.open(StoreSettings(url=url, content=False))
    turn = store.start(Session(id="s"), Started(request=ask(user("hi"))))
    step = {"number": 1, "step": 1, "kind": "tool", "name": "weather", "arguments": "secret", "result": "secret", "seconds": 1.0}
    turn.step(1, {**step, "seconds": 0.0})
    turn.step(1, step)
    await store.writer.flush()
    turn.step(1, step)
    turn.finish(Finished(ending="end", response=answer("ok")))
    await store.writer.flush()
    found = await store.queries.turn(turn.id)
    assert found is not None
    assert found.steps == [{"number": 1, "step": 1, "kind": "tool", "name": "weather", "seconds": 1.0}]
    assert (await prune_turns(store.database, older_than=-60)).turns == 1
    assert await store.queries._steps(turn.id) == []
    await store.close()


def test_a_step_that_does_not_fit_loses_its_contents_first() -> None:
    entry = StepEntry(kind="steps", turn_id="t", number=1, step={"name": "a", "result": "x"}, weight=9999)
    lighter = entry.lighter()
    assert lighter is not None
    assert lighter.step == {"name": "a"}
    assert lighter.lighter() is None
