"""What a client may send: conversations that are there, bodies that are compressed, addresses as clients have them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dialect_clients import body_of, path_of
from gateway.running import Running
from gateway.upstream import HostileUpstream, whole

FIELD = {"openai_responses": "input", "gemini": "contents"}
NAMED = ("openai_chat", "openai_responses", "anthropic", "gemini", "agui", "vercel_ui")
WRONG = {
    "missing": None,
    "null": None,
    "an empty list": [],
    "text": "q",
    "a number": 5,
    "an object": {"a": 1},
    "a list of numbers": [1],
}
MEANT = {("openai_responses", "text"), ("gemini", "text"), ("gemini", "an object")}
"""What some dialects accept as a conversation."""


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("upstream_dialect", ["openai_chat", "ollama"])
@pytest.mark.parametrize("client", NAMED)
def test_a_request_without_a_conversation_is_refused_by_its_field(
    gateway: Running, upstream: HostileUpstream, client: str, upstream_dialect: str, stream: bool
) -> None:
    name = f"nothing-{client}-{stream}"
    model, field = f"{upstream_dialect}/{name}", FIELD.get(client, "messages")
    for about, value in WRONG.items():
        if (client, about) in MEANT:
            continue
        body: dict[str, Any] = {**body_of(client, model, stream), field: value}
        if about == "missing":
            del body[field]
        found = gateway.ask(path_of(client, model, stream), body)
        assert found.status == 400, (about, found)
        assert field in found.body.decode(), (about, found)
    assert not upstream.requests(name)


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/responses/compact"])
def test_other_requests_need_a_conversation_too(gateway: Running, path: str) -> None:
    found = gateway.ask(path, {"model": "openai_chat/x"})
    assert (found.status, b"must have at least one entry" in found.body) == (400, True)


def test_an_empty_conversation_that_has_a_meaning_is_sent(gateway: Running, upstream: HostileUpstream) -> None:
    loaded = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", "content": ""}}
    upstream.scripts["loads"] = whole({**loaded, "done_reason": "load", "done": True})
    for body in ({}, {"messages": []}):
        found = gateway.ask("/api/chat", {"model": "ollama/loads", "stream": False, **body})
        assert (found.status, found.json()["done_reason"]) == (200, "load")
    upstream.scripts["continues"] = whole({"id": "resp_2", "object": "response", "status": "completed", "output": []})
    for field, value in (("previous_response_id", "resp_1"), ("prompt", {"id": "pmpt_1"}), ("conversation", "conv_1")):
        gateway.ask("/v1/responses", {"model": "openai_responses/continues", field: value})
        assert upstream.requests("continues")[-1].body[field] == value
