"""Policies, tools and sessions, as clients of the gateway meet them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.turns import Call, Turn
from agents.wires import streamed as wire
from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, asked, body_of, in_turn, path_of
from gateway.judges import SCRIPTED, judged
from gateway.raw import raw
from gateway.running import Running, running
from gateway.scenarios import DONE, END, WEATHER, calls, chunk, text_chunk
from gateway.stored_turns import keeping, kept
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, Until, sse, streamed
from pitfalls.text_judge import REFUSED, RELEASE
from streamglot.gateway import lifecycle
from tools.scripted import Model, call, events_of, exchange_of, executor_of, text
from tools.scripted import calls as turn_of

SECRET = "AKIAIOSFODNN7EXAMPLE"
WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
MEDIA = {"ollama": "application/x-ndjson"}
REDACT = {"use": "redact", "detectors": ["api_keys"], "apply_to": ["text", "reasoning", "tool_arguments"]}


@pytest.fixture(scope="module")
def redacting(upstream: HostileUpstream) -> Iterator[Running]:
    with running({"upstreams": upstreams_at(upstream.url), "policies": [REDACT]}) as started:
        yield started


# --- one gate for all dialects


@pytest.mark.parametrize(("via", "client"), in_turn(WIRES, [name for name in CLIENT_DIALECTS if name != "openai_completions"]))
def test_a_policy_holds_in_every_dialect_for_text_reasoning_and_arguments(
    redacting: Running, upstream: HostileUpstream, via: str, client: str
) -> None:
    """litellm#35257: a policy was skipped in one dialect though the log said it had passed. aisix#558: arguments were never
    scanned. mastra#23784, litellm#41936: a key that was split over two chunks leaked."""
    turn = Turn(
        text=f"the key {SECRET} is it",
        reasoning=f"I know {SECRET} by heart",
        calls=[Call("call_1", "weather", {"city": f"Paris {SECRET}!"})],
    )
    name = f"leaking-{via}"
    upstream.scripts[name] = streamed(b"".join(wire(via, turn, "m")), media_type=MEDIA.get(via, "text/event-stream"))
    for stream in (True, False) if client not in STREAMS_ONLY else (True,):
        answer = redacting.ask(
            path_of(client, f"{UPSTREAM_NAMES[via]}/{name}", stream),
            body_of(client, f"{UPSTREAM_NAMES[via]}/{name}", stream, ("weather",)),
        )
        assert answer.status == 200
        found = asked(redacting, client, f"{UPSTREAM_NAMES[via]}/{name}", stream, ("weather",))
        everything = found.text + found.reasoning + json.dumps(found.calls)
        assert SECRET[4:] not in everything
        assert SECRET.encode() not in answer.body
        assert "is it" in found.text
        assert found.calls[0][0] == "weather"
        assert found.calls[0][1]["city"].startswith("Paris [")


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_a_secret_in_pieces_of_one_character_does_not_leak(redacting: Running, upstream: HostileUpstream, client: str) -> None:
    """mastra#23784, litellm#41936."""
    upstream.scripts["leaking-characters"] = streamed(sse(*map(text_chunk, f"the key {SECRET} is it"), END, DONE))
    found = asked(redacting, client, "work/leaking-characters")
    assert SECRET[4:] not in found.text
    assert found.text.startswith("the key [")
    assert found.text.endswith("] is it")


@pytest.mark.parametrize("client", ["openai_chat", "openai_responses", "anthropic", "gemini", "ollama"])
def test_text_flows_under_a_policy_and_nothing_follows_the_end(
    redacting: Running, upstream: HostileUpstream, client: str
) -> None:
    """litellm#31503: with a guardrail the stream became one lump, and the verdict came behind ``[DONE]``."""
    go_on = threading.Event()
    name = f"flowing-{client}"
    upstream.scripts[name] = streamed(
        sse(text_chunk("It is well known. ")), Until(go_on), sse(text_chunk(f"So is {SECRET}"), END, DONE)
    )
    with raw(redacting.port) as one:
        path = path_of(client, f"work/{name}")
        one.post(path, body_of(client, f"work/{name}"), {"connection": "close"})
        assert b"well known" in one.read_until(b"well known"), "it is held until the end"
        go_on.set()
        rest = one.read_all()
    assert SECRET.encode() not in rest
    ends = {"openai_chat": b"[DONE]", "openai_responses": b"response.completed", "anthropic": b"message_stop"}
    mark = ends.get(client, b'"done":true' if client == "ollama" else b'"finishReason":"STOP"')
    last = rest[rest.rindex(b'{"model"' if client == "ollama" else b"data: ") :]
    assert mark in last, "something follows the end"


# --- judges


@pytest.fixture(scope="module")
def judging(upstream: HostileUpstream) -> Iterator[Running]:
    """It looks at its clock so often that no silence of a test is too short for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "TICK_SECONDS", 0.01)
        settings = {"server": {"keep_alive_seconds": 0.01}, "upstreams": upstreams_at(upstream.url)}
        with running({**settings, "policies": [SCRIPTED]}) as started:
            yield started


@pytest.mark.parametrize("client", [name for name in CLIENT_DIALECTS if name != "openai_completions"])
def test_a_client_is_kept_alive_while_a_judge_thinks(judging: Running, upstream: HostileUpstream, client: str) -> None:
    """Elsewhere a client timed out because nothing was sent while a judge ran."""
    upstream.scripts["judged-slowly"] = streamed(sse(text_chunk("Let me look."), calls(WEATHER), chunk({}, "tool_calls"), DONE))
    marks = {"anthropic": b"event: ping", "gemini": b'"text":""', "ollama": b'"content":""', "vercel_ui": b": keep-alive"}
    model = "work/judged-slowly"
    with judged(held=("weather",)) as script, raw(judging.port) as one:
        one.post(path_of(client, model), body_of(client, model, True, ("weather",)), {"connection": "close"})
        one.read_until(b"look.")
        for _ in range(3):
            assert marks.get(client, b": ping") in one.read_until(marks.get(client, b": ping"))
        script.release.set()
        assert b"Paris" in one.read_all().replace(b"\\", b"")


@pytest.fixture(scope="module")
def text_judging(upstream: HostileUpstream) -> Iterator[Running]:
    with running({"upstreams": upstreams_at(upstream.url), "policies": [{"use": "pitfalls.text_judge:TextJudge"}]}) as started:
        yield started


@pytest.mark.parametrize("client", ["openai_chat", "openai_responses", "anthropic", "gemini", "ollama"])
def test_a_piece_is_not_shown_before_its_verdict(text_judging: Running, upstream: HostileUpstream, client: str) -> None:
    """openai-agents-python#959: the text had been shown when the judge said no. What is not judged flows."""
    model = "work/tripwire"
    upstream.scripts["tripwire"] = streamed(
        sse(chunk({"reasoning_content": "Hm, well."}), text_chunk("the forbidden"), text_chunk(" words"), END, DONE)
    )
    RELEASE.clear()
    with raw(text_judging.port) as one:
        one.post(path_of(client, model), body_of(client, model), {"connection": "close"})
        before = one.read_until(b"Hm, well.")
        assert b"Hm, well." in before, "reasoning is not judged and flows"
        RELEASE.set()
        everything = before + one.read_all()
    assert b"forbidden" not in everything
    assert REFUSED.encode() in everything


# --- tools


def _none() -> None: ...


EMPTY: dict[str, Callable[[], Any]] = {
    "none": _none,
    "empty_text": lambda: "",
    "white_space": lambda: " \n",
    "empty_list": list,
    "empty_object": dict,
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", EMPTY)
async def test_every_call_gets_a_result_that_says_something(name: str) -> None:
    """A call whose result was missing or empty was made again for ever."""

    def look() -> Any:
        return EMPTY[name]()

    model = Model([turn_of(call("a", "look"), call("b", "look"), call("c", "unknown_tool")), text("ok")])
    await events_of(exchange_of(model, executor_of(look)))
    found = model.results()
    assert [result.call_id for result in found] == ["a", "b", "c"]
    assert all(result.text.strip() for result in found), found


# --- sessions


def test_probes_of_an_agent_do_not_take_its_session(upstream: HostileUpstream, tmp_path: Path) -> None:
    """Claude Code sends a request for one token and one for a title under the id of the session."""
    upstream.scripts["probed"] = streamed(b"".join(wire("anthropic", Turn(text="Done."), "m")))
    who = {"user_id": "user_x_account__session_3f6b1c9e-4d1a-4b5e-9c0f-0123456789ab"}
    common = {"model": "claude/probed", "stream": True, "metadata": who}
    tools = [{"name": "shell", "input_schema": {"type": "object"}}]

    def said_by(role: str, words: str) -> dict[str, Any]:
        return {"role": role, "content": words}

    requests = [
        {**common, "max_tokens": 1, "messages": [said_by("user", "quota")]},
        {**common, "max_tokens": 500, "tools": tools, "messages": [said_by("user", "Fix the bug in the parser")]},
        {
            **common,
            "max_tokens": 100,
            "system": "Analyze if this message indicates a new conversation topic and write a title for it.",
            "messages": [said_by("user", "Fix the bug in the parser")],
        },
        {
            **common,
            "max_tokens": 500,
            "tools": tools,
            "messages": [
                said_by("user", "Fix the bug in the parser"),
                said_by("assistant", "Done."),
                said_by("user", "And test it"),
            ],
        },
    ]
    url = f"sqlite:///{tmp_path}/turns.db"
    with keeping(upstream, url) as gateway:
        for body in requests:
            assert gateway.ask("/v1/messages", body).status == 200
        found = kept(url, lambda turns: len(turns) == 4 and all(turn.ending for turn in turns))
        listed = gateway.ask("/sessions").json()
    assert [turn.probe for turn in found] == [True, False, True, False]
    assert len({turn.session_id for turn in found}) == 1
    assert [session["title"] for session in listed["data"]] == ["Fix the bug in the parser"]
