"""The methods of the dialect objects that the gateway calls by name."""

from __future__ import annotations

from typing import Any

import pytest

from streamglot.dialects import DIALECTS, dialect
from streamglot.dialects.endpoint import encoded, path_segment
from streamglot.errors import ConfigError, RequestError
from streamglot.events import StreamError
from streamglot.messages import Request

USER: dict[str, Any] = {"role": "user", "content": "Hello"}
BODIES: dict[str, dict[str, Any]] = {
    "openai_chat": {"model": "m", "messages": [USER]},
    "openai_responses": {"model": "m", "input": "Hello"},
    "anthropic": {"model": "m", "max_tokens": 5, "messages": [USER]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
    "ollama": {"model": "m", "messages": [USER]},
    "openai_completions": {"model": "m", "prompt": "Hello"},
    "agui": {"threadId": "t", "runId": "r", "messages": [{"id": "1", **USER}], "tools": [], "context": [], "state": {}},
    "vercel_ui": {"id": "c", "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}]},
}


def test_every_client_dialect_has_a_body_here() -> None:
    assert {name for name in DIALECTS if DIALECTS[name].has_writer} == set(BODIES)


@pytest.mark.parametrize("name", BODIES)
def test_a_client_dialect_parses_its_request(name: str) -> None:
    assert dialect(name).parse_request(BODIES[name]).messages[-1].text == "Hello"


@pytest.mark.parametrize("name", sorted(set(DIALECTS) - {"qwen_web", "bedrock_invoke"}))
def test_an_error_body_has_the_message(name: str) -> None:
    assert "it broke" in str(dialect(name).error_body(StreamError(message="it broke", code="upstream")))


@pytest.mark.parametrize("name", ["qwen_web", "bedrock_invoke"])
def test_a_dialect_of_upstreams_only_has_no_error_body(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' has no error body: only upstreams speak it"):
        dialect(name).error_body(StreamError(message="it broke", code="upstream"))


@pytest.mark.parametrize("name", ["agui", "vercel_ui"])
def test_a_dialect_of_clients_only_has_no_endpoint(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' has no endpoint: only clients speak it"):
        dialect(name).endpoint("http://localhost", Request(model="m", messages=[]))


def test_a_name_that_a_url_cannot_contain_is_refused() -> None:
    with pytest.raises(RequestError, match="half a surrogate pair"):
        encoded("a\ud800")


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_change_the_path_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="would change the path"):
        path_segment(name)


def test_a_model_keeps_its_name_unless_a_dialect_changes_it() -> None:
    assert dialect("agui").model_name("m") == "m"
