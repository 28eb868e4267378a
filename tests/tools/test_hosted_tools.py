"""Tools that clients expect their provider to host, answered by tools of ours: the vendors' own clients see their own forms."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from gateway.running import Running, running
from streamglot.events import Echo
from streamglot.messages import Request, ToolChoice, ToolSpec
from streamglot.tools.hosted import HostedTools, tool_for
from streamglot.tools.questions import Offer, TurnCall
from streamglot.tools.tool import Tool, ToolOutput
from tools.chat_model import ChatModel

# Coroutines, because functions run in threads, and their results come in any order.
TOOLS = """
import json
import streamglot

@streamglot.tool(name="docs.search")
async def search(city: str) -> str:
    "Searches."
    if city == "Rome":
        raise streamglot.ToolError("no such page")
    return json.dumps([{"url": "https://example.com/" + city, "title": city, "text": "all about " + city}])

@streamglot.tool(name="docs.run")
async def run(city: str) -> str:
    return "ran " + city

@streamglot.tool(name="docs.draw")
async def draw(city: str) -> streamglot.ToolOutput:
    from streamglot.messages import MediaPart
    return streamglot.ToolOutput(media=[MediaPart("image/png", "iVBORw0KGgo=")])
"""
HOSTED = {
    "web_search*": "docs.search",
    "file_search": "docs.search",
    "code_*": "docs.run",
    "image_generation": "docs.draw",
    "googleSearch": "docs.search",
    "codeExecution": "docs.run",
    "urlContext": "docs.search",
}


@contextmanager
def gateway_of(model: ChatModel, folder: Path, **more: Any) -> Iterator[Running]:
    (folder / "mytools.py").write_text(TOOLS)
    config = {
        "upstreams": {"scripted": {"base_url": model.url, "models": ["m"]}},
        "tools": {"enabled": ["docs.*"], "python": [str(folder / "mytools.py")], "hosted": HOSTED},
        **more,
    }
    with running(config) as gateway:
        yield gateway


@pytest.mark.parametrize("streamed", [True, False])
def test_responses_clients_see_items_of_hosted_tools(model: ChatModel, tmp_path: Path, streamed: bool) -> None:
    with gateway_of(model, tmp_path) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)

        def ask(tool: str) -> tuple[Any, list[str]]:
            asked: dict[str, Any] = {"model": "m", "input": "weather?", "tools": [{"type": tool}]}
            if not streamed:
                return client.responses.create(**asked), []
            with client.responses.stream(**asked) as stream:
                seen: list[str] = [event.type for event in stream]
                return stream.get_final_response(), seen

        answer, seen = ask("web_search")
        paris, rome, message = answer.output
        assert (paris.type, paris.status, paris.action.query) == ("web_search_call", "completed", "Paris")
        assert [source.url for source in paris.action.sources] == ["https://example.com/Paris"]
        assert (rome.type, rome.status) == ("web_search_call", "failed")
        assert (message.type, answer.status) == ("message", "completed")
        if streamed:
            begin = seen.index("response.output_item.added")
            assert seen[begin : begin + 5] == [
                "response.output_item.added",
                "response.web_search_call.in_progress",
                "response.web_search_call.searching",
                "response.web_search_call.completed",
                "response.output_item.done",
            ]
        items = [item.model_dump(exclude_none=True) for item in answer.output]
        history: list[Any] = [{"role": "user", "content": "weather?"}, *items, {"role": "user", "content": "thanks"}]
        client.responses.create(model="m", input=history)
        assert [message["role"] for message in model.bodies[-1]["messages"]] == ["user", "assistant", "user"]
        [ran, *_], _ = (ask("code_interpreter")[0].output, None)
        assert (ran.type, ran.code, ran.outputs[0].logs) == ("code_interpreter_call", "Paris", "ran Paris")
        [found, *_], _ = (ask("file_search")[0].output, None)
        assert (found.type, found.queries, found.results[0].filename) == ("file_search_call", ["Paris"], "Paris")
        images = [item for item in ask("image_generation")[0].output if item.type == "image_generation_call"]
        assert [image.result for image in images] == ["iVBORw0KGgo=", "iVBORw0KGgo="]


@pytest.mark.parametrize("streamed", [True, False])
def test_messages_clients_see_blocks_of_hosted_tools(model: ChatModel, tmp_path: Path, streamed: bool) -> None:
    with gateway_of(model, tmp_path) as gateway:
        client = anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0)

        def ask(tool: dict[str, Any]) -> Any:
            asked: dict[str, Any] = {
                "model": "m",
                "max_tokens": 100,
                "messages": [{"role": "user", "content": "weather?"}],
                "tools": [tool],
            }
            if not streamed:
                return client.messages.create(**asked)
            with client.messages.stream(**asked) as stream:
                return stream.get_final_message()

        answer = ask({"type": "web_search_20250305", "name": "web_search"})
        use, result, _, failed, text = answer.content
        assert (use.type, use.name, use.input) == ("server_tool_use", "web_search", {"query": "Paris", "city": "Paris"})
        assert (result.type, result.tool_use_id) == ("web_search_tool_result", use.id)
        assert [(entry.url, entry.title) for entry in result.content] == [("https://example.com/Paris", "Paris")]
        assert failed.content.error_code == "unavailable"
        assert (text.type, answer.stop_reason) == ("text", "end_turn")
        again = [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]},
            {"role": "user", "content": "thanks"},
        ]
        client.messages.create(model="m", max_tokens=10, messages=again)  # type: ignore[arg-type]  # blocks as the client gives them back
        assert [message["role"] for message in model.bodies[-1]["messages"]] == ["user", "assistant", "user"]
        ran = ask({"type": "code_execution_20250522", "name": "code_execution"}).content[1]
        assert (ran.type, ran.content.stdout) == ("code_execution_tool_result", "ran Paris")


@pytest.mark.parametrize("streamed", [True, False])
def test_gemini_clients_see_parts_and_metadata_of_hosted_tools(model: ChatModel, tmp_path: Path, streamed: bool) -> None:
    with gateway_of(model, tmp_path) as gateway:
        client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=gateway.url))

        def ask(tool: types.Tool) -> tuple[list[types.Part], Any]:
            config = types.GenerateContentConfig(tools=[tool])
            if streamed:
                chunks = list(client.models.generate_content_stream(model="m", contents="weather?", config=config))
            else:
                chunks = [client.models.generate_content(model="m", contents="weather?", config=config)]
            candidates = [chunk.candidates[0] for chunk in chunks if chunk.candidates]
            parts = [part for one in candidates if one.content for part in one.content.parts or []]
            return parts, candidates[-1]

        parts, last = ask(types.Tool(google_search=types.GoogleSearch()))
        assert "".join(part.text or "" for part in parts).startswith("[{")
        assert last.grounding_metadata.web_search_queries == ["Paris", "Rome"]
        assert [chunk.web.uri for chunk in last.grounding_metadata.grounding_chunks] == ["https://example.com/Paris"]
        parts, _ = ask(types.Tool(code_execution=types.ToolCodeExecution()))
        code = next(part.executable_code for part in parts if part.executable_code)
        executed = next(part.code_execution_result for part in parts if part.code_execution_result)
        assert (code.code, executed.output) == ("Paris", "ran Paris")
        _, last = ask(types.Tool(url_context=types.UrlContext()))
        assert [entry.retrieved_url for entry in last.url_context_metadata.url_metadata] == ["Paris", "Rome"]


def test_a_forced_hosted_tool_forces_the_tool_of_ours(model: ChatModel, tmp_path: Path) -> None:
    with gateway_of(model, tmp_path) as gateway:
        body = {"model": "m", "input": "hi", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}
        assert gateway.ask("/v1/responses", body).status == 200
        assert model.bodies[0]["tool_choice"] == {"type": "function", "function": {"name": "docs__search"}}


def test_a_key_gets_no_hosted_tool_that_it_may_not_use(model: ChatModel, tmp_path: Path) -> None:
    server = {"keys": [{"name": "k", "hash": "sha256:" + hashlib.sha256(b"secret").hexdigest(), "tools": ["docs.run"]}]}
    with gateway_of(model, tmp_path, server=server) as gateway:
        body = {"model": "m", "input": "hi", "tools": [{"type": "web_search"}]}
        answer = gateway.ask("/v1/responses", body, {"authorization": "Bearer secret"})
        assert answer.status == 200, answer.body
        assert "tools.web_search" in answer.headers["x-streamglot-dropped"]
        assert not any(tool["function"]["name"] == "docs__search" for body in model.bodies for tool in body.get("tools", []))


def test_a_stand_in_that_is_not_offered_leaves_the_hosted_tool_where_it_is() -> None:
    spec = ToolSpec("web_search", kind="server", native=Echo("openai_responses", {"type": "web_search"}))
    hosted = {"web_search": "docs.search"}
    request = Request(tools=[spec], dialect="openai_responses")
    missing = HostedTools(request, Offer({}, hosted=hosted))
    assert (missing.declared, missing.shows("docs__search")) == ([spec], False)
    there = HostedTools(request, Offer({"docs__search": Tool("docs.search")}, hosted=hosted))
    assert there.declared == []
    assert there.choice(ToolChoice("required", ["web_search", "x"])) == ToolChoice("required", ["docs__search", "x"])
    assert there.choice(ToolChoice("required")) == ToolChoice("required")
    assert there.events(TurnCall("c", "docs__search", pieces=["{"]), ToolOutput("no", is_error=True)) is not None
    assert there.events(TurnCall("c", "other"), ToolOutput("no")) is None
    unknown = HostedTools(Request(tools=[spec]), Offer({"docs__search": Tool("docs.search")}, hosted=hosted))
    assert not unknown.shows("docs__search")
    assert tool_for("web_search_preview", {"web_search*": "a", "*": "b"}) == "a"
    assert tool_for("x", {}) is None
