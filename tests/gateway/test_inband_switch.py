"""A format that serves models with and without thinking: what the request says decides how the answer begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import body_of, path_of, understood
from gateway.running import Running, running
from gateway.scenarios import DONE, END, text_chunk
from gateway.upstream import HostileUpstream, sse, streamed

FORMATS = ("qwen3_coder", "hermes", "auto")


@pytest.fixture(scope="module")
def named(upstream: HostileUpstream) -> Iterator[Running]:
    """One upstream for each of these formats, whose model no profile knows."""
    upstream.scripts["unheard-of"] = streamed(sse(text_chunk("One."), text_chunk("</think>"), text_chunk("Two."), END, DONE))
    chat = upstreams_at(upstream.url)["work"]
    with running({"upstreams": {name: {**chat, "inband": name} for name in FORMATS}}) as gateway:
        yield gateway


THOUGHT = ("One.", "Two.")
ANSWERED = ("", "One.Two.")


@pytest.mark.parametrize(
    ("format", "client", "more", "expected"),
    [
        ("qwen3_coder", "openai_chat", {}, THOUGHT),
        ("qwen3_coder", "openai_chat", {"reasoning_effort": "high"}, THOUGHT),
        ("qwen3_coder", "openai_chat", {"reasoning_effort": "none"}, ANSWERED),
        ("qwen3_coder", "openai_chat", {"reasoning": {"enabled": False}}, ANSWERED),
        ("qwen3_coder", "openai_chat", {"reasoning": {"max_tokens": 0}}, ANSWERED),
        ("qwen3_coder", "openai_chat", {"chat_template_kwargs": {"enable_thinking": False}}, ANSWERED),
        ("qwen3_coder", "anthropic", {"thinking": {"type": "disabled"}}, ANSWERED),
        ("hermes", "openai_chat", {}, ANSWERED),
        ("hermes", "openai_chat", {"reasoning_effort": "high"}, ANSWERED),
        ("hermes", "openai_chat", {"chat_template_kwargs": {"thinking": True}}, THOUGHT),
        ("hermes", "openai_chat", {"chat_template_kwargs": {"thinking": "yes"}}, ANSWERED),
        ("hermes", "openai_chat", {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, THOUGHT),
        # A field that only the client's own dialect has does not reach this upstream.
        ("hermes", "ollama", {"chat_template_kwargs": {"thinking": True}}, ANSWERED),
        # Without a format there is nothing to look for.
        ("auto", "openai_chat", {"chat_template_kwargs": {"thinking": True}}, ("", "One.</think>Two.")),
    ],
)
def test_the_request_decides_whether_the_answer_begins_with_reasoning(
    named: Running, format: str, client: str, more: dict[str, Any], expected: tuple[str, str]
) -> None:
    model = f"{format}/unheard-of"
    found = understood(client, named.ask(path_of(client, model), {**body_of(client, model), **more}))
    assert (found.reasoning, found.text) == expected
