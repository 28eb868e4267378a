"""``server.reasoning_summary``: thoughts that no provider summarised, condensed by another model."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import body_of, path_of, understood
from gateway.opaque import readable, strings
from gateway.running import Answer, Running, running
from gateway.scenarios import DONE, END, anthropic, block, called, calls, chunk, stopped, text_chunk, usage
from gateway.upstream import HostileUpstream, Until, sse, streamed, whole
from streamglot.config import load
from streamglot.errors import ConfigError
from streamglot.framing.sse import Sse
from waiting import WAIT_SECONDS

SECRET, SHORT = "First I weigh the pears, then the apples.", "It compares fruit."
SUMMARISER = "work/summariser"
THINKS = (chunk({"reasoning_content": SECRET[:20]}), chunk({"reasoning_content": SECRET[20:]}), text_chunk("Pears."))
SIGNED = anthropic(
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": SECRET},
        {"type": "signature_delta", "signature": "c2lnbmVk"},
    ),
    *block(
        1,
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}},
        {"type": "input_json_delta", "partial_json": "{}"},
    ),
    *stopped("tool_use"),
)
CLIENTS = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "agui", "vercel_ui")


@pytest.fixture(autouse=True)
def scripts(upstream: HostileUpstream) -> None:
    upstream.scripts["thinks"] = streamed(sse(*THINKS, END, DONE))
    upstream.scripts["summariser"] = streamed(sse(text_chunk(SHORT), END, usage(11, 3), DONE))


def config(upstream: HostileUpstream, **server: Any) -> dict[str, Any]:
    return {"server": {"reasoning_summary": SUMMARISER, **server}, "upstreams": upstreams_at(upstream.url)}


@pytest.fixture(scope="module")
def beside(upstream: HostileUpstream) -> Iterator[Running]:
    with running(config(upstream)) as started:
        yield started


@pytest.fixture(scope="module")
def replacing(upstream: HostileUpstream) -> Iterator[Running]:
    with running(config(upstream, reasoning="summary")) as started:
        yield started


def ask(gateway: Running, client: str, model: str, stream: bool = True, **more: Any) -> Answer:
    body = {**body_of(client, model, stream, ("weather",)), **more}
    answer = gateway.ask(path_of(client, model, stream), body)
    assert answer.status == 200, answer.body
    return answer


def frames(answer: Answer) -> list[Any]:
    found = [frame.data for frame in Sse().feed(answer.body) if frame.kind == "data" and frame.data != b"[DONE]"]
    return [msgspec.json.decode(frame) for frame in found]


def test_a_chat_client_gets_the_summary_beside_the_thoughts(beside: Running, upstream: HostileUpstream) -> None:
    chunks = frames(ask(beside, "openai_chat", "work/thinks"))
    deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == SECRET
    entries = [entry for delta in deltas for entry in delta.get("reasoning_details", ())]
    assert [(entry["type"], entry["summary"]) for entry in entries if "summary" in entry] == [("reasoning.summary", SHORT)]
    assert [text for each in chunks for text in each.get("extensions", {}).get("reasoning_summary", ())] == [SHORT]
    assert all(each["choices"] for each in chunks if "extensions" in each)
    asked = upstream.requests("summariser")[-1].body
    assert asked["messages"][-1] == {"role": "user", "content": SECRET}
    message = ask(beside, "openai_chat", "work/thinks", False).json()
    assert message["extensions"] == {"reasoning_summary": [SHORT]}
    assert message["choices"][0]["message"]["reasoning_content"] == SECRET
    assert message["choices"][0]["message"]["reasoning_details"][-1]["summary"] == SHORT
    assert "reasoning" not in str(gateway_answer_in_strict(beside))


def gateway_answer_in_strict(gateway: Running) -> Any:
    body = body_of("openai_chat", "work/thinks", False)
    return gateway.ask("/v1/chat/completions", body, {"x-streamglot-output": "strict"}).json()["choices"]


def test_responses_and_agui_clients_get_it_in_their_own_form(beside: Running) -> None:
    answer = ask(beside, "openai_responses", "work/thinks", False).json()
    thoughts = [item for item in answer["output"] if item["type"] == "reasoning"]
    assert [part["text"] for item in thoughts for part in item["summary"]] == [SHORT]
    assert [part["text"] for item in thoughts for part in item.get("content") or ()] == [SECRET]
    assert answer["extensions"]["reasoning_summary"] == [SHORT]
    events = frames(ask(beside, "openai_responses", "work/thinks"))
    assert "".join(event["delta"] for event in events if event["type"] == "response.reasoning_summary_text.delta") == SHORT
    events = frames(ask(beside, "agui", "work/thinks"))
    started = {event["messageId"]: event.get("metadata") for event in events if event["type"] == "REASONING_MESSAGE_START"}
    said = [(started[event["messageId"]], event["delta"]) for event in events if event["type"] == "REASONING_MESSAGE_CONTENT"]
    assert said[-1] == ({"summary": True}, SHORT)
    assert "".join(text for metadata, text in said if metadata is None) == SECRET


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_gets_the_summary_in_place_of_the_thoughts(replacing: Running, client: str, stream: bool) -> None:
    if client in ("agui", "vercel_ui") and not stream:
        return
    answer = ask(replacing, client, "work/thinks", stream)
    found = understood(client, answer, stream)
    assert (found.error, found.text.strip()) == (None, "Pears.")
    assert found.reasoning == SHORT
    assert "pears" not in answer.body.decode(errors="replace").replace("Pears", "")
    if not stream:
        assert answer.json()["extensions"]["reasoning_summary"] == [SHORT]


@pytest.mark.parametrize("mode", ["beside", "replacing"])
def test_what_a_provider_summarised_is_left_alone(request: pytest.FixtureRequest, upstream: HostileUpstream, mode: str) -> None:
    entry = {"type": "reasoning.summary", "summary": "Given.", "index": 0}
    upstream.scripts["summarised"] = streamed(sse(chunk({"reasoning_details": [entry]}), text_chunk("Pears."), END, DONE))
    before = len(upstream.requests("summariser"))
    answer = ask(request.getfixturevalue(mode), "openai_chat", "work/summarised", False).json()
    assert answer["choices"][0]["message"]["reasoning_content"] == "Given."
    assert "extensions" not in answer
    assert len(upstream.requests("summariser")) == before


@pytest.mark.parametrize("mode", ["beside", "replacing"])
def test_the_answer_does_not_wait_for_its_summary(request: pytest.FixtureRequest, upstream: HostileUpstream, mode: str) -> None:
    """The summary never comes: the text is there before the upstream has ended, and so is the end of the stream."""
    gateway: Running = request.getfixturevalue(mode)
    never, gate = threading.Event(), threading.Event()
    upstream.scripts["summariser"] = [Until(never)]
    upstream.scripts["two-parts"] = streamed(sse(*THINKS), Until(gate), sse(END, DONE))
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_SECONDS)
    body = msgspec.json.encode(body_of("openai_chat", "work/two-parts"))
    connection.request("POST", path_of("openai_chat", ""), body)
    response = connection.getresponse()
    received = b""
    while b"Pears." not in received:
        line = response.readline()
        assert line, received
        received += line
    gate.set()
    received += response.read()
    connection.close()
    assert b"data: [DONE]" in received
    assert SHORT.encode() not in received
    assert (b"weigh" in received) is (mode == "beside")
    never.set()


def test_a_summary_that_fails_leaves_the_answer_as_it_is(beside: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["summariser"] = whole({"error": {"message": "no"}}, status=400)
    answer = ask(beside, "openai_chat", "work/thinks", False).json()
    assert answer["choices"][0]["message"]["content"] == "Pears."
    assert "extensions" not in answer
    assert "no" in beside.log_line(lambda line: line.get("event") == "summary_failed")["message"]


@pytest.mark.parametrize("mode", ["beside", "replacing"])
def test_a_summary_does_not_go_back_to_the_upstream(request: pytest.FixtureRequest, upstream: HostileUpstream, mode: str) -> None:
    """The upstream gets its own thoughts again, in the field in which it wrote them."""
    gateway: Running = request.getfixturevalue(mode)
    message = ask(gateway, "openai_chat", "work/thinks", False).json()["choices"][0]["message"]
    assert SHORT in str(message)
    first = body_of("openai_chat", "work/thinks", False)
    again = {**first, "messages": [*first["messages"], message, {"role": "user", "content": "and?"}]}
    assert gateway.ask("/v1/chat/completions", again).status == 200
    returned = upstream.requests("thinks")[-1].body["messages"][1]
    assert returned == {"role": "assistant", "content": "Pears.", "reasoning_content": SECRET}


@pytest.mark.parametrize("key", ["", "ab" * 32], ids=["open", "sealed"])
def test_state_comes_back_with_the_thoughts_that_were_replaced(upstream: HostileUpstream, key: str) -> None:
    """The provider refuses a signature without the text that it signed. The client has neither."""
    upstream.scripts["signed"] = streamed(SIGNED)
    with running(config(upstream, reasoning="summary", reasoning_key=key)) as gateway:
        model = "claude/signed"
        first = body_of("openai_chat", model, False, ("weather",))
        answer = ask(gateway, "openai_chat", model, False)
        message = answer.json()["choices"][0]["message"]
        assert message["reasoning_content"] == SHORT
        shown = readable("\n".join(strings(answer.json())))
        assert (SECRET in shown, "c2lnbmVk" in shown) == (not key, not key)
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
        again = {**first, "messages": [*first["messages"], message, result]}
        assert gateway.ask("/v1/chat/completions", again).status == 200
        [thought] = [
            part
            for each in upstream.requests("signed")[-1].body["messages"]
            for part in (each["content"] if isinstance(each["content"], list) else ())
            if part["type"] == "thinking"
        ]
        assert (thought["thinking"], thought["signature"]) == (SECRET, "c2lnbmVk")


def test_the_cost_of_summaries_is_counted(upstream: HostileUpstream, tmp_path: Path) -> None:
    kept = {**config(upstream), "store": {"url": f"sqlite:///{tmp_path}/kept.db"}}
    kept["upstreams"]["cheap"] = kept["upstreams"]["work"]
    kept["server"]["reasoning_summary"] = "cheap/summariser"
    with running(kept) as gateway:
        answer = ask(gateway, "openai_chat", "work/thinks")
        turn = gateway.ask(f"/turns/{answer.headers['x-streamglot-turn']}")
        assert '"upstream":"cheap"' in turn.body.decode().replace(" ", ""), turn.body
        page = gateway.ask("/metrics").body.decode()
        counted = [line for line in page.splitlines() if 'upstream="cheap"' in line and "token" in line]
        assert any(line.endswith(" 11.0") for line in counted), page
        assert any(line.endswith(" 3.0") for line in counted), page


def test_the_next_turn_of_a_tool_loop_does_not_wait(upstream: HostileUpstream, tmp_path: Path) -> None:
    """Both turns think. The first summary comes only after the upstream has got the result of the tool."""
    (tmp_path / "pantry.py").write_text(
        "import streamglot\n\n\n@streamglot.tool\ndef weather(city: str) -> str:\n    return 'sunny'\n"
    )
    gate = threading.Event()
    call = calls(called(0, "call_a", "weather", '{"city": "Paris"}'))
    first = streamed(sse(THINKS[0], THINKS[1], call, chunk({}, "tool_calls"), DONE))
    second = streamed(sse(chunk({"reasoning_content": "Then I decide."}), text_chunk("Pears."), END, DONE))
    upstream.scripts["looping"] = [first, second]
    upstream.scripts["summariser"] = [Until(gate), *streamed(sse(text_chunk(SHORT), END, DONE))]
    tools = {"tools": {"enabled": ["weather"], "python": [f"{tmp_path}/pantry.py"]}}
    with running({**config(upstream), **tools}) as gateway:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_SECONDS)
        body = {**body_of("openai_chat", "work/looping"), "streamglot": {"tools": ["weather"]}}
        connection.request("POST", path_of("openai_chat", ""), msgspec.json.encode(body))
        response = connection.getresponse()
        received = b""
        while b"Pears." not in received:
            line = response.readline()
            assert line, received
            received += line
        gate.set()
        received += response.read()
        connection.close()
        assert received.count(SHORT.encode()) == 4, received  # two summaries, each in the details and in the extensions


def test_the_setting_needs_a_model(tmp_path: Path) -> None:
    file = tmp_path / "streamglot.toml"
    file.write_text('[server]\nreasoning = "summary"\n')
    with pytest.raises(ConfigError, match=r"name one in server\.reasoning_summary"):
        load(file, {})
