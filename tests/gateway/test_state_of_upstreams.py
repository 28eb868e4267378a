"""Agents whose upstreams refuse a turn without the state of the one before it, under the names that people give to upstreams.

Between the two turns the gateway starts again, and the upstream gets another name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conformance.state import Trip, next_request, state_of

from gateway.running import Answer, Running, running
from gateway.upstream import HostileUpstream, sse, streamed
from waiting import until


class Provider(NamedTuple):
    """``answer``: what it sends, as events or as lines. ``needs``: the state that it wants back, with its fields."""

    name: str
    dialect: str
    answer: list[dict[str, Any]]
    needs: list[tuple[str, Any]]
    lines: bool = False


def chat(*deltas: dict[str, Any]) -> list[dict[str, Any]]:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chunks: list[dict[str, Any]] = [{"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    last = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
    return [*chunks, {"id": "c", "model": "m", "choices": [last]}]


def blocks(*content: tuple[dict[str, Any], dict[str, Any]]) -> list[dict[str, Any]]:
    message = {"id": "m", "model": "c", "role": "assistant", "content": [], "usage": {"input_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, (start, delta) in enumerate(content):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta}] if delta else []
        events.append({"type": "content_block_stop", "index": index})
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
    return [*events, end, {"type": "message_stop"}]


def items(*output: dict[str, Any]) -> list[dict[str, Any]]:
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "output": list(output),
        "status": "completed",
    }
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {**response, "output": [], "status": "in_progress"}}]
    for index, item in enumerate(output):
        added = {**item, "content": []} if "content" in item else item
        events.append({"type": "response.output_item.added", "output_index": index, "item": added})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*events, {"type": "response.completed", "response": response}]


SIGNED = {"type": "signature_delta", "signature": "c2lnbmVk"}
DETAILS = [
    {"type": "reasoning.text", "text": "Hm.", "signature": "s", "format": "anthropic-claude-v1", "index": 0},
    {"type": "reasoning.encrypted", "data": "d", "id": "r1", "format": "anthropic-claude-v1", "index": 1},
]
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "Y21w"}
TEXT = {"type": "output_text", "text": "Done.", "annotations": []}
MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [TEXT]}
CODE = {"executableCode": {"language": "PYTHON", "code": "1"}}
RESULT = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}
CALLED = {"functionCall": {"id": "call_1", "name": "f", "args": {}}, "thoughtSignature": "c2ln"}
DEEPSEEK = Provider("deepseek", "openai_chat", chat({"reasoning_content": "Hm."}), [("reasoning_content", "Hm.")])
CLAUDE = Provider(
    "claude",
    "anthropic",
    blocks(
        ({"type": "thinking", "thinking": "Hm."}, SIGNED),
        ({"type": "redacted_thinking", "data": "cmVk"}, {}),
        ({"type": "text", "text": "Done."}, {}),
    ),
    [("signature", "c2lnbmVk"), ("data", "cmVk")],
)
GOOGLE = Provider(
    "google",
    "gemini",
    [
        {"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": "Yes, "}]}}]},
        {
            "candidates": [
                {"index": 0, "content": {"role": "model", "parts": [{"text": "all day.", "thoughtSignature": "dGV4dA=="}]}}
            ]
        },
        {"candidates": [{"index": 0, "content": {"role": "model", "parts": [CODE, RESULT]}}]},
        {"candidates": [{"index": 0, "content": {"role": "model", "parts": [CALLED]}, "finishReason": "STOP"}]},
    ],
    [("thoughtSignature", "dGV4dA=="), ("thoughtSignature", "c2ln")],
)
PROVIDERS = (
    DEEPSEEK,
    Provider("groq", "openai_chat", chat({"reasoning": "Hm."}), [("reasoning", "Hm.")]),
    Provider(
        "openrouter",
        "openai_chat",
        chat({"reasoning": "Hm.", "reasoning_details": DETAILS[:1]}, {"reasoning_details": DETAILS[1:]}),
        [("reasoning_details", DETAILS), ("reasoning", "Hm.")],
    ),
    CLAUDE,
    Provider("azure", "openai_responses", items(REASONING, SEARCH, MESSAGE), [("encrypted_content", "ZW5j")]),
    GOOGLE,
    Provider(
        "box",
        "ollama",
        [
            {"model": "m", "message": {"role": "assistant", "content": "", "thinking": "Hm."}, "done": False},
            {"model": "m", "message": {"role": "assistant", "content": "Done."}, "done": True, "done_reason": "stop"},
        ],
        [],
        lines=True,
    ),
)
PATHS = {
    "openai_chat": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "openai_responses": "/v1/responses",
    "ollama": "/api/chat",
}


@pytest.fixture(params=["store", "none"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}" if request.param == "store" else "none"


def serve(provider: Provider, upstream: HostileUpstream, url: str, name: str, **more: Any) -> Any:
    settings = {"dialect": provider.dialect, "base_url": upstream.url, "attempts": 1, **more}
    return running({"upstreams": {name: settings}, "store": {"url": url}})


def ask(gateway: Running, client: str, model: str, body: dict[str, Any], streams: bool) -> Answer:
    if client == "gemini":
        verb = "streamGenerateContent?alt=sse" if streams else "generateContent"
        answer = gateway.ask(f"/v1beta/models/{model}:{verb}", body)
    else:
        answer = gateway.ask(PATHS[client], {"model": model, "stream": streams, **body})
    assert answer.status == 200, answer.body
    return answer


def first_body(client: str) -> dict[str, Any]:
    text = "Go on."
    match client:
        case "gemini":
            return {"contents": [{"role": "user", "parts": [{"text": text}]}]}
        case "openai_responses":
            return {"input": [{"role": "user", "content": text}]}
    return {"messages": [{"role": "user", "content": text}], **({"max_tokens": 9} if client == "anthropic" else {})}


def script(provider: Provider) -> Any:
    if provider.lines:
        return streamed(*(b"%b\n" % sse(line)[6:-2] for line in provider.answer), media_type="application/x-ndjson")
    return streamed(sse(*provider.answer), *([sse("[DONE]")] if provider.dialect == "openai_chat" else []))


def converse(
    provider: Provider, upstream: HostileUpstream, url: str, trip: Trip, second: Callable[[str], Any] | None = None
) -> tuple[dict[str, Any], Answer]:
    """Two turns with a new process and a new name between them: what the upstream gets in the second, and the answer."""
    upstream.scripts["m"] = upstream.scripts["models/m"] = [script(provider)] * 2
    with serve(provider, upstream, url, provider.name) as gateway:
        answer = ask(gateway, trip.client, f"{provider.name}/m", first_body(trip.client), trip.streamed)
        written = answer.body if trip.client != "ollama" else answer.body.replace(b'{"model"', b'data: {"model"')
    body = next_request(trip, written if trip.streamed else b"", {} if trip.streamed else answer.json())
    before = len(upstream.seen)
    with second(url) if second is not None else serve(provider, upstream, url, "renamed") as gateway:
        answer = ask(gateway, trip.client, "renamed/m", body, trip.streamed)
    until(lambda: len(upstream.seen) > before)
    return upstream.seen[-1].body, answer


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_a_second_turn_has_the_state_of_the_first(upstream: HostileUpstream, url: str, provider: Provider, streams: bool) -> None:
    """The client speaks the upstream's dialect and returns everything."""
    sent, answer = converse(provider, upstream, url, Trip(provider.dialect, streams, "everything", False))
    assert state_of(sent) == provider.needs
    assert "x-streamglot-dropped" not in answer.headers
    match provider.name:
        case "azure":
            assert [item for item in sent["input"] if item.get("role") != "user"] == [REASONING, SEARCH, MESSAGE]
        case "google":
            parts = next(content["parts"] for content in sent["contents"] if content["role"] == "model")
            signed = {"text": "all day.", "thoughtSignature": "dGV4dA=="}
            assert parts == [{"text": "Yes, "}, signed, CODE, RESULT, CALLED]
        case "box":
            assert [message.get("thinking") for message in sent["messages"]] == [None, "Hm.", None]


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_a_chat_client_carries_the_state_of_every_upstream(upstream: HostileUpstream, url: str, provider: Provider) -> None:
    sent, _ = converse(provider, upstream, url, Trip("openai_chat", True, "everything", False))
    assert state_of(sent) == provider.needs


@pytest.mark.parametrize("provider", [DEEPSEEK, CLAUDE], ids=lambda provider: provider.name)
def test_the_documented_field_alone(upstream: HostileUpstream, url: str, provider: Provider) -> None:
    """A client that keeps only ``reasoning_content``: enough for who writes it, and with the store for everybody."""
    sent, answer = converse(provider, upstream, url, Trip("openai_chat", True, "documented", False))
    if provider is DEEPSEEK or url != "none":
        assert state_of(sent) == provider.needs
        assert "x-streamglot-dropped" not in answer.headers
    else:
        assert state_of(sent) == []
        assert answer.headers["x-streamglot-dropped"] == "messages.reasoning"


def test_another_maker_gets_no_packed_state_and_the_client_learns_it(upstream: HostileUpstream, url: str) -> None:
    def elsewhere(url: str) -> Any:
        return serve(CLAUDE, upstream, url, "renamed", state="another")

    sent, answer = converse(CLAUDE, upstream, url, Trip("openai_chat", True, "everything", False), elsewhere)
    assert state_of(sent) == []
    assert answer.headers["x-streamglot-dropped"] == "messages.reasoning"


def test_upstreams_with_one_state_share_it(upstream: HostileUpstream, url: str) -> None:
    """Two addresses of one server, and a setting that says so."""
    settings = {"dialect": "anthropic", "attempts": 1, "state": "claude"}
    other = upstream.url.replace("127.0.0.1", "localhost")
    upstream.scripts["m"] = [script(CLAUDE)] * 2
    two = {"a": {**settings, "base_url": upstream.url}, "b": {**settings, "base_url": other}}
    trip = Trip("openai_chat", True, "everything", False)
    with running({"upstreams": two, "store": {"url": url}}) as gateway:
        answer = ask(gateway, "openai_chat", "a/m", first_body("openai_chat"), True)
        ask(gateway, "openai_chat", "b/m", next_request(trip, answer.body, {}), True)
    assert state_of(upstream.seen[-1].body) == CLAUDE.needs


def test_a_compaction_is_one_for_the_client(upstream: HostileUpstream, url: str) -> None:
    provider = Provider("openai", "openai_responses", items(COMPACTION, MESSAGE), [("encrypted_content", "Y21w")])
    sent, _ = converse(provider, upstream, url, Trip("openai_responses", True, "everything", False))
    assert [item for item in sent["input"] if item.get("role") != "user"] == [COMPACTION, MESSAGE]
