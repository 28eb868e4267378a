"""Tools of ours behind the gateway: how a request asks for them, and what clients of each dialect see."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from gateway.running import Running, running
from streamglot.errors import RequestError
from streamglot.gateway.admission import take_tool_options, tools_for
from tools.chat_model import ChatModel
from waiting import WAIT_SECONDS, until

TOOLS = """
import streamglot

@streamglot.tool(name="weather.now")
async def weather(city: str) -> str:
    "The weather in a city."
    return "sunny in " + city
"""
ANSWER = "sunny in Paris and sunny in Rome"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "What is the weather?"}]}
ASKED = {"streamglot": {"tools": ["weather.*"]}}
ROLES = ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]


@contextmanager
def gateway_of(model: ChatModel, folder: Path, **more: Any) -> Iterator[Running]:
    (folder / "mytools.py").write_text(TOOLS)
    config: Mapping[str, Any] = {
        "upstreams": {"scripted": {"base_url": model.url, "models": ["m"]}},
        "tools": {"enabled": ["weather.*"], "python": [str(folder / "mytools.py")]},
        **more,
    }
    with running(config) as gateway:
        yield gateway


def test_a_user_of_the_client_approves_tools_of_ours(model: ChatModel, tmp_path: Path) -> None:
    """The calls wait for the client's next request. Then the tools run, and the model goes on."""
    policies = [{"use": "human_approval", "ask": "client"}]
    with gateway_of(model, tmp_path, policies=policies) as gateway:
        body = {
            "messages": [{"id": "1", "role": "user", "content": "q"}],
            "threadId": "t",
            "runId": "r",
            "forwardedProps": {"model": "m"},
        }
        headers = {"x-streamglot-tools": "weather.now"}

        def run(**more: Any) -> list[dict[str, Any]]:
            lines = gateway.ask("/agui", {**body, **more}, headers).body.decode().splitlines()
            return [msgspec.json.decode(line[6:]) for line in lines if line.startswith("data: {")]

        first = run()
        assert not [event for event in first if event["type"].startswith("TOOL_CALL")]
        decisions = [
            {"interruptId": one["id"], "status": "resolved", "payload": {"approved": True}}
            for one in first[-1]["outcome"]["interrupts"]
        ]
        second = run(resume=decisions)
    results = [event["content"] for event in second if event["type"] == "TOOL_CALL_RESULT"]
    assert sorted(results) == ["sunny in Paris", "sunny in Rome"]
    assert "".join(event["delta"] for event in second if event["type"] == "TEXT_MESSAGE_CONTENT") == ANSWER
    assert second[-1]["outcome"]["type"] == "success"


def test_a_request_asks_for_tools_in_its_body_or_a_header(model: ChatModel, tmp_path: Path) -> None:
    with gateway_of(model, tmp_path) as gateway:
        plain = gateway.ask("/v1/chat/completions", CHAT).json()["choices"][0]["message"]
        assert "tools" not in model.bodies[-1]
        assert plain["content"] != ANSWER
        for asked, headers in ((ASKED, {}), ({}, {"x-streamglot-tools": "weather.now, "})):
            answer = gateway.ask("/v1/chat/completions", {**CHAT, **asked}, headers).json()
            assert answer["choices"][0]["message"]["content"] == ANSWER
            assert "tool_calls" not in answer["choices"][0]["message"]
            assert (answer["choices"][0]["finish_reason"], answer["usage"]["prompt_tokens"]) == ("stop", 20)
            assert "streamglot" not in model.bodies[-1]
            assert model.bodies[-1]["tools"][0]["function"]["name"] == "weather__now"
        wrong = gateway.ask("/v1/chat/completions", {**CHAT, "streamglot": {"tools": ["nothing"]}})
        assert (wrong.status, "selects no tool" in wrong.body.decode()) == (400, True)


def test_a_route_or_a_key_offers_tools(model: ChatModel, tmp_path: Path) -> None:
    route = {"models": ["m"], "to": [{"upstream": "scripted"}], "tools": ["weather.*"]}
    with gateway_of(model, tmp_path, routes=[route]) as gateway:
        assert gateway.ask("/v1/chat/completions", CHAT).json()["choices"][0]["message"]["content"] == ANSWER
        gateway.ask("/v1/chat/completions", CHAT, {"x-streamglot-tools": ""})
        assert "tools" not in model.bodies[-1]


def test_both_kinds_of_tools_in_one_turn(model: ChatModel, tmp_path: Path) -> None:
    own = {"type": "function", "function": {"name": "theirs", "parameters": {"type": "object"}}}
    with gateway_of(model, tmp_path) as gateway:
        first = gateway.ask("/v1/chat/completions", {**CHAT, **ASKED, "tools": [own]}).json()["choices"][0]
        assert [call["function"]["name"] for call in first["message"]["tool_calls"]] == ["theirs", "theirs"]
        assert first["finish_reason"] == "tool_calls"
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "theirs"} for call in first["message"]["tool_calls"]]
        messages = [*CHAT["messages"], first["message"], *results]
        gateway.ask("/v1/chat/completions", {**CHAT, **ASKED, "tools": [own], "messages": messages})
        contents = [message["content"] for message in model.bodies[-1]["messages"] if message["role"] == "tool"]
        assert sorted(contents) == ["sunny in Paris", "sunny in Rome", "theirs", "theirs"]
        called = model.bodies[-1]["messages"][1]["tool_calls"]
        assert len(called) == 4


def test_chat_clients_see_the_final_answer(model: ChatModel, tmp_path: Path) -> None:
    with gateway_of(model, tmp_path) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        chunks = list(client.chat.completions.create(**CHAT, stream=True, extra_body=ASKED))  # type: ignore[call-overload]  # a dict of fields
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks if chunk.choices)


def test_responses_clients_see_calls_of_a_server(model: ChatModel, tmp_path: Path) -> None:
    with gateway_of(model, tmp_path) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        with client.responses.stream(model="m", input="weather?", extra_body=ASKED) as stream:
            answer = stream.get_final_response()
        calls = [item for item in answer.output if item.type == "mcp_call"]
        assert [(call.name, call.output, call.server_label) for call in calls] == [
            ("weather__now", "sunny in Paris", "streamglot"),
            ("weather__now", "sunny in Rome", "streamglot"),
        ]
        assert (answer.output_text, answer.status) == (ANSWER, "completed")
        # The client brings the items back: the model sees its calls and their results again.
        history: list[Any] = [
            {"role": "user", "content": "weather?"},
            *(item.model_dump(exclude_none=True) for item in answer.output),
        ]
        client.responses.create(model="m", input=[*history, {"role": "user", "content": "thanks"}], extra_body=ASKED)
        assert [message["role"] for message in model.bodies[-1]["messages"]] == ROLES


def test_clients_of_messages_see_blocks_of_a_server(model: ChatModel, tmp_path: Path) -> None:
    with gateway_of(model, tmp_path) as gateway:
        client = anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0)
        asked: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "weather?"}]}
        with client.beta.messages.stream(**asked, extra_body=ASKED) as stream:
            answer = stream.get_final_message()
        assert [block.type for block in answer.content] == [
            "mcp_tool_use",
            "mcp_tool_result",
            "mcp_tool_use",
            "mcp_tool_result",
            "text",
        ]
        assert answer.stop_reason == "end_turn"
        history = [
            *asked["messages"],
            {"role": "assistant", "content": answer.to_dict()["content"]},
            {"role": "user", "content": "ok"},
        ]
        client.beta.messages.create(**{**asked, "messages": history}, extra_body=ASKED)
        assert [message["role"] for message in model.bodies[-1]["messages"]] == ROLES


def test_a_history_with_our_calls_is_understood_without_tools(model: ChatModel, tmp_path: Path) -> None:
    texts = [{"type": "text", "text": "sunny"}]
    content = [
        {"type": "mcp_tool_use", "id": "a", "name": "weather__now", "server_name": "streamglot", "input": {"city": "Paris"}},
        {"type": "mcp_tool_result", "tool_use_id": "a", "is_error": False, "content": texts},
        {"type": "text", "text": "It is sunny."},
    ]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}, {"role": "user", "content": "y"}]
    with gateway_of(model, tmp_path) as gateway:
        gateway.ask("/v1/messages", {"model": "m", "max_tokens": 9, "messages": messages})
        assert [message["role"] for message in model.bodies[-1]["messages"]] == ["user", "assistant", "user"]
        assert model.bodies[-1]["messages"][1]["content"] == "It is sunny."
        asked = {"model": "m", "max_tokens": 9, "messages": messages, **ASKED}
        gateway.ask("/v1/messages", asked)
        assert [message["role"] for message in model.bodies[-1]["messages"]] == ["user", "assistant", "tool", "assistant", "user"]


def test_agents_see_calls_and_results(model: ChatModel, tmp_path: Path) -> None:
    with gateway_of(model, tmp_path) as gateway:
        run = {
            "threadId": "t",
            "runId": "r",
            "messages": [{"id": "1", "role": "user", "content": "weather?"}],
            "tools": [],
            "context": [],
        }
        shown = gateway.ask("/agui", {**run, "state": {}, "forwardedProps": {"model": "m"}, **ASKED}).body.decode()
        assert (shown.count('"TOOL_CALL_RESULT"'), shown.count('"RUN_FINISHED"')) == (2, 1), shown
        ui = {"id": "c", "model": "m", "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "weather?"}]}]}
        shown = gateway.ask("/ui", {**ui, **ASKED}).body.decode()
        assert (shown.count('"tool-output-available"'), shown.count('"providerExecuted":true') >= 2) == (2, True), shown


def test_a_hosted_tool_is_mapped_to_a_tool_of_ours(model: ChatModel, tmp_path: Path) -> None:
    asked = {"model": "m", "input": "weather?", "tools": [{"type": "web_search"}]}
    tools = {"enabled": ["weather.*"], "python": [str(tmp_path / "mytools.py")], "hosted": {"web_search": "weather.now"}}
    with gateway_of(model, tmp_path, tools=tools) as gateway:
        answer = gateway.ask("/v1/responses", asked).json()
        assert [item["type"] for item in answer["output"]] == ["web_search_call", "web_search_call", "message"]


def test_a_hosted_tool_that_nobody_has_is_left_out_and_named(model: ChatModel, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"model": "m", "input": "weather?", "tools": [{"type": "web_search"}]}
    with gateway_of(model, tmp_path) as gateway:
        answer = gateway.ask("/v1/responses", asked)
        assert (answer.status, answer.headers["x-streamglot-dropped"]) == (200, "tools.web_search")
        assert "tools" not in model.bodies[-1]
        forced = gateway.ask("/v1/responses", {**asked, "tool_choice": {"type": "web_search"}})
        assert forced.status == 400


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        ({"streamglot": 5}, {}, "must be an object"),
        ({"streamglot": {"tool": []}}, {}, "must be an object"),
        ({"streamglot": {"tools": "weather"}}, {}, "must be a list"),
        ({"streamglot": {"tools": ["a"] * 65}}, {}, "may name at most 64"),
    ],
)
def test_options_that_mean_nothing_are_refused(body: dict[str, Any], headers: dict[str, str], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        take_tool_options(body, headers)


def test_a_key_gets_no_tools_but_its_own() -> None:
    assert tools_for(None, ["weather.*"], ["time"]) == ["weather.*"]
    assert tools_for(["weather.now"], ["weather.*"], []) == ["weather.now"]
    assert tools_for(["weather.*"], ["weather.*"], []) == ["weather.*"]
    assert tools_for([], ["weather.*"], ["time"]) == []
    assert tools_for(["time"], None, []) == ["time"]
    for asked in ("*", "time", "weather.[a-z]*"):
        with pytest.raises(RequestError, match="may not use the tools"):
            tools_for([asked], ["weather.*"], [])
    assert msgspec.json.encode(tools_for(None, None, ["time"])) == b'["time"]'


def test_a_stop_while_a_second_call_waits_for_a_person_ends_the_stream(model: ChatModel, tmp_path: Path) -> None:
    """One call is approved and one is open, and the model's turn has ended before: the answer ends as stopped, not as an error."""
    more = {
        "policies": [{"use": "human_approval", "seconds": 600.0}],
        "server": {"keep_alive_seconds": 0.1},  # sends the head of an answer whose first event is held
        "store": {"url": f"sqlite:///{tmp_path}/kept.db"},
    }
    with gateway_of(model, tmp_path, **more) as gateway:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_SECONDS)
        connection.request("POST", "/v1/chat/completions", msgspec.json.encode({**CHAT, **ASKED, "stream": True}))
        response = connection.getresponse()

        def questions() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = gateway.ask("/approvals").json()["approvals"]
            return found

        until(lambda: len(questions()) == 2)
        first = questions()[0]
        assert gateway.ask(f"/approvals/{first['id']}", {"approved": True}).status == 200
        until(lambda: len(questions()) == 1)
        assert gateway.ask(f"/v1/streams/{response.headers['x-streamglot-stream']}/stop", {}).status == 200
        body = response.read()
        connection.close()
        assert b"internal_error" not in body
        assert body.endswith(b"data: [DONE]\n\n")
        until(lambda: not questions())
