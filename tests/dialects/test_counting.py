"""Requests of clients for token counts and model listings."""

from __future__ import annotations

from typing import Any

import pytest

from streamglot import DIALECTS, RequestError


@pytest.mark.parametrize(
    ("dialect", "body", "answer"),
    [
        ("anthropic", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, {"input_tokens": 7}),
        ("openai_responses", {"model": "m", "input": "Hi"}, {"object": "response.input_tokens", "input_tokens": 7}),
        ("gemini", {"contents": [{"parts": [{"text": "Hi"}]}]}, {"totalTokens": 7}),
        ("gemini", {"generateContentRequest": {"model": "models/m", "contents": "Hi"}}, {"totalTokens": 7}),
        ("gemini", {"generate_content_request": {"model": "models/m", "contents": "Hi"}}, {"totalTokens": 7}),
    ],
)
def test_tokens_of_a_request(dialect: str, body: dict[str, Any], answer: dict[str, Any]) -> None:
    counting = DIALECTS[dialect]
    request = counting.parse_count(body, "m")
    assert (request.model, request.messages[0].text) == ("m", "Hi")
    assert counting.count_body(7) == answer


def test_an_invalid_request_is_refused() -> None:
    with pytest.raises(RequestError, match="generateContentRequest"):
        DIALECTS["gemini"].parse_count({"generateContentRequest": 5}, "m")


def test_model_listings_for_editors() -> None:
    from streamglot.dialects.ollama import wire as catalog

    models = [("a", "x"), ("b:latest", "y")]
    assert [entry["name"] for entry in catalog.tags(models)["models"]] == ["a", "b:latest"]
    assert all("expires_at" in entry for entry in catalog.running(models)["models"])
    shown = catalog.show("a", "x", 8192)
    assert shown["model_info"] == {"general.architecture": "x", "general.basename": "a", "x.context_length": 8192}
    assert "x.context_length" not in catalog.show("a", "x")["model_info"]
    assert "tools" in shown["capabilities"]
    assert tuple(map(int, catalog.version()["version"].split("."))) >= (0, 6, 4), "editors want at least this one"
