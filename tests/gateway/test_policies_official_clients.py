"""Verdicts on a stream with reasoning, text and two calls, read by the vendors' own clients through the gateway."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import Request, urlopen

import openai
import pytest
from msgspec import Struct, field

from clients.node import CLIENTS, PATHS, SUMMARIES_ONLY, NodeClients
from gateway.conftest import upstreams_at
from gateway.dialect_clients import SCHEMA, body_of, path_of
from gateway.judges import REFUSAL, SCRIPTED, judged
from gateway.official import (
    CHAT_TOOLS,
    OFFICIAL,
    USER,
    anthropic_client,
    gemini_client,
    ollama_client,
    openai_client,
)
from gateway.running import Running, running
from gateway.scenarios import DONE, PARIS, UTC, called, calls, chunk, text_chunk, usage
from gateway.test_official_clients import IN_STREAM, arguments, family
from gateway.upstream import Cut, Hang, HostileUpstream, head, piece, sse, streamed
from streamglot.policies import refuse, rewrite
from streamglot.policies.verdicts import Verdict
from waiting import WAIT_SECONDS, until

BEGIN = sse(chunk({"reasoning_content": "Hm."}), text_chunk("Let me look."))
WEATHER = sse(calls(called(0, "call_a", "weather", '{"city":')), calls(called(0, arguments='"Paris"}')))
TIME = sse(calls(called(1, "call_b", "time", '{"tz":')), calls(called(1, arguments='"UTC"}')))
TWO_CALLS = streamed(BEGIN, WEATHER, TIME, sse(chunk({}, "tool_calls"), usage(5, 9), DONE))
TEXT = "Let me look."
CET = {"tz": "CET"}


class Case(Struct):
    """What is decided, and what a client must understand after that. ``late`` is text behind a call that was forwarded."""

    verdicts: dict[str, Verdict | Exception]
    calls: list[tuple[str, Any]] = field(default_factory=list)
    text: str = TEXT
    late: str = ""

    def words(self, late_is_thinking: bool) -> tuple[str, str]:
        """The text and the reasoning."""
        return (self.text, "Hm." + self.late) if late_is_thinking else (self.text + self.late, "Hm.")


WITHHELD = "[withheld: the policy {} {}]"
CASES = {
    "all_forwarded": Case({}, [("weather", PARIS), ("time", UTC)]),
    "second_rewritten": Case({"time": rewrite('{"tz":"CET"}')}, [("weather", PARIS), ("time", CET)]),
    "second_renamed": Case({"time": rewrite('{"city":"Paris"}', name="weather")}, [("weather", PARIS), ("weather", PARIS)]),
    "second_refused": Case({"time": refuse(REFUSAL)}, [("weather", PARIS)], late=REFUSAL),
    "first_refused": Case({"weather": refuse(REFUSAL)}, [("time", UTC)], TEXT + REFUSAL),
    "all_refused": Case({"weather": refuse(REFUSAL), "time": refuse(REFUSAL)}, [], TEXT + REFUSAL + REFUSAL),
    "judge_raises": Case(
        {"time": ValueError("a broken judge")},
        [("weather", PARIS)],
        late=WITHHELD.format("gateway.judges:ScriptedJudge", "failed"),
    ),
    "judge_is_silent": Case(
        {}, [("weather", PARIS)], late=WITHHELD.format("gateway.judges:SilentJudge", "did not answer in time")
    ),
}
LATE_IS_THINKING = ("anthropic", "ai-sdk-anthropic")
"""Text behind a call cannot be sent back in this dialect, so its stream has it as thinking (docs/decisions/0005)."""
WITH_CALLS = {
    "openai_chat": "tool_calls",
    "openai_responses": "completed",
    "anthropic": "tool_use",
    "gemini": "STOP",
    "ollama": "stop",
}
WITHOUT_CALLS = {**WITH_CALLS, "openai_chat": "stop", "anthropic": "end_turn"}


@pytest.fixture(scope="module")
def gateways(upstream: HostileUpstream) -> Iterator[dict[str, Running]]:
    """One whose judges are scripted, and one whose judge never answers about the second call."""
    upstreams = {"work": upstreams_at(upstream.url, breaker={"failures": 10**9})["work"]}
    settings = {"server": {"default_model": "m"}, "upstreams": upstreams}
    silent = {"use": "gateway.judges:SilentJudge", "tool": "time"}
    with (
        running({**settings, "policies": [SCRIPTED]}) as scripted,
        running({**settings, "policies": [silent]}) as unanswered,
    ):
        yield {"scripted": scripted, "judge_is_silent": unanswered}


# --- verdicts


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("client", OFFICIAL)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_verdict_is_understood(
    gateways: dict[str, Running], upstream: HostileUpstream, client: str, case: str, stream: bool
) -> None:
    expected = CASES[case]
    upstream.scripts["m"] = TWO_CALLS
    with judged(expected.verdicts):
        reading = OFFICIAL[client](gateways.get(case, gateways["scripted"]).url, "m", stream)
    assert reading.error is None
    assert (reading.text, reading.reasoning) == expected.words(stream and client in LATE_IS_THINKING)
    assert [(name, arguments(value)) for name, value in reading.calls] == expected.calls
    assert reading.finish == (WITH_CALLS if expected.calls else WITHOUT_CALLS)[client]
    assert reading.usage == (5, 9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_verdict_is_understood_in_node(
    node: NodeClients, gateways: dict[str, Running], upstream: HostileUpstream, client: str, case: str
) -> None:
    expected = CASES[case]
    upstream.scripts["m"] = TWO_CALLS
    with judged(expected.verdicts):
        answer = node.read(client, gateways.get(case, gateways["scripted"]).url + PATHS.get(client, ""))
    assert answer["error"] is None
    text, reasoning = expected.words(client in LATE_IS_THINKING)
    assert answer["text"] == text
    assert answer["reasoning"] == reasoning or (client in SUMMARIES_ONLY and not answer["reasoning"])
    assert [(call["name"], json.loads(call["arguments"])) for call in answer["toolCalls"]] == expected.calls


# --- streams that are watched while a call is held


def chat_texts(url: str) -> Iterator[str]:
    with openai_client(url).chat.completions.create(model="m", messages=[USER], tools=CHAT_TOOLS, stream=True) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                yield choice.delta.content or ""


def responses_texts(url: str) -> Iterator[str]:
    tools: Any = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in ("weather", "time")]
    with openai_client(url).responses.create(model="m", input="q", tools=tools, stream=True) as events:
        for event in events:
            yield event.delta if event.type == "response.output_text.delta" else ""
            if event.type == "response.failed":
                error = event.response.error
                raise openai.APIError(error.message if error is not None else "", None, body=None)  # type: ignore[arg-type]  # no request is at hand


def anthropic_texts(url: str) -> Iterator[str]:
    tools: Any = [{"name": name, "input_schema": SCHEMA} for name in ("weather", "time")]
    with anthropic_client(url).messages.stream(model="m", max_tokens=99, messages=[USER], tools=tools) as events:
        for event in events:
            yield event.text if event.type == "text" else ""


def gemini_texts(url: str) -> Iterator[str]:
    client = gemini_client(url)  # it closes its connections when it is collected
    for answer in client.models.generate_content_stream(model="m", contents="q"):
        for candidate in answer.candidates or []:
            for part in (candidate.content and candidate.content.parts) or []:
                yield "" if part.thought else part.text or ""


def ollama_texts(url: str) -> Iterator[str]:
    for line in ollama_client(url).chat(model="m", messages=[USER], tools=CHAT_TOOLS, stream=True):
        yield line.message.content or ""


def event_texts(dialect: str, text: str, error: str) -> Callable[[str], Iterator[str]]:
    """Reads a dialect whose own client runs in Node, line by line. ``text`` and ``error`` are types of its events."""

    def texts(url: str) -> Iterator[str]:
        body = json.dumps(body_of(dialect, "m")).encode()
        request = Request(url + path_of(dialect, "m"), body, {"content-type": "application/json"})
        with urlopen(request, timeout=WAIT_SECONDS) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    yield event["delta"] if event["type"] == text else ""
                    if event["type"] == error:
                        raise RuntimeError(event)

    return texts


STREAMED: dict[str, Callable[[str], Iterator[str]]] = {
    "openai_chat": chat_texts,
    "openai_responses": responses_texts,
    "anthropic": anthropic_texts,
    "gemini": gemini_texts,
    "ollama": ollama_texts,
    "agui": event_texts("agui", "TEXT_MESSAGE_CONTENT", "RUN_ERROR"),
    "vercel_ui": event_texts("vercel_ui", "text-delta", "error"),
}


def read_text(texts: Iterator[str]) -> str:
    """Reads until the text before the calls is there."""
    read = ""
    while read != TEXT:
        read += next(texts)
    return read


@pytest.mark.parametrize("client", STREAMED)
def test_text_comes_before_the_verdict_on_a_call(gateways: dict[str, Running], upstream: HostileUpstream, client: str) -> None:
    """The judge waits until the client has the text: a gateway that delays it would wait for ever."""
    upstream.scripts["m"] = TWO_CALLS
    with judged({"weather": refuse(REFUSAL)}, held=("weather", "time")) as script:
        texts = STREAMED[client](gateways["scripted"].url)
        read_text(texts)
        until(lambda: sorted(script.asked) == ["time", "weather"], lambda: f"not judged at the same time: {script.asked}")
        script.release.set()
        assert "".join(texts) == REFUSAL


@pytest.mark.parametrize("client", STREAMED)
def test_the_client_hangs_up_while_a_call_is_judged(gateways: dict[str, Running], upstream: HostileUpstream, client: str) -> None:
    upstream.scripts["m"] = [head(transfer_encoding="chunked"), piece(BEGIN + WEATHER + TIME), Hang()]
    before = len(upstream.requests("m"))
    with judged(held=("weather",)) as script:
        texts = STREAMED[client](gateways["scripted"].url)
        read_text(texts)
        until(lambda: script.asked == ["weather"])
        texts.close()  # type: ignore[attr-defined]  # these are generators
        until(lambda: script.cancelled == ["weather"], lambda: "the judge goes on for a client that is gone")
        until(lambda: upstream.requests("m")[before].closed, lambda: "the upstream goes on for a client that is gone")


@pytest.mark.parametrize("client", STREAMED)
def test_the_upstream_breaks_off_while_a_call_is_held(
    gateways: dict[str, Running], upstream: HostileUpstream, client: str
) -> None:
    """The client gets an error, so it does not run the call that it has received."""
    upstream.scripts["m"] = [head(transfer_encoding="chunked"), piece(BEGIN + WEATHER + TIME[:-40]), Cut()]
    with judged(held=("weather",)) as script:
        texts = STREAMED[client](gateways["scripted"].url)
        read_text(texts)
        until(lambda: script.asked[:1] == ["weather"])
        script.release.set()
        with pytest.raises(IN_STREAM.get(family(client), RuntimeError)):
            list(texts)
