"""The vendors' own Python clients over upstreams of other dialects: right answers, and right exceptions."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import ollama
import openai
import pytest
from google.genai import errors

from gateway.official import OFFICIAL, USER, anthropic_client, gemini_client, openai_client
from gateway.running import Running
from gateway.scenarios import PARIS, SCENARIOS, TEXT, lines, message, text_chunk
from gateway.scenarios import anthropic as messages_of
from gateway.scenarios import gemini as candidate
from gateway.upstream import UPSTREAM_NAMES, Cut, Hang, HostileUpstream, Script, head, sse, streamed, unfinished, whole
from streamglot import collect
from streamglot.dialects import dialect

FINISHES = {
    "openai_chat": "tool_calls",
    "openai_responses": "completed",
    "anthropic": "tool_use",
    "gemini": "STOP",
    "ollama": "stop",
}
TOOL_SCENARIOS = {
    "openai_chat": "reasoning_text_call",
    "openai_responses": "responses_all",
    "anthropic": "anthropic_all",
    "gemini": "gemini_all",
    "ollama": "ollama_all",
}


def arguments(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


@pytest.mark.parametrize("wire", TOOL_SCENARIOS)
@pytest.mark.parametrize("client", OFFICIAL)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_tools_and_reasoning(gateway: Running, upstream: HostileUpstream, client: str, wire: str, stream: bool) -> None:
    name = TOOL_SCENARIOS[wire]
    scenario = SCENARIOS[name]
    script = scenario.script
    if not stream:  # the same answer as the upstream would give it whole
        reader = dialect(wire).reader()
        body = b"".join(step.partition(b"\r\n")[2][:-2] for step in script[1:-1] if isinstance(step, bytes))
        script = whole(dialect(wire).build_response(collect([*reader.feed(body), *reader.close()])))
    model = f"official-{name}-{stream}"
    upstream.scripts[model] = script
    reading = OFFICIAL[client](gateway.url, f"{UPSTREAM_NAMES[wire]}/{model}", stream)
    assert reading.error is None
    assert reading.text == scenario.text
    assert reading.reasoning == scenario.reasoning
    assert [(called, arguments(value)) for called, value in reading.calls] == [("weather", PARIS)]
    assert reading.finish == FINISHES[client]
    if scenario.usage is not None:
        assert reading.usage == scenario.usage[:2]


@pytest.mark.parametrize(
    "name", ["plain", "interleaved", "thinking-split", "bytes_of_characters", "no_arguments", "call_with_stop", "cached_usage"]
)
@pytest.mark.parametrize("client", OFFICIAL)
def test_a_few_of_the_hostile_ones(gateway: Running, upstream: HostileUpstream, client: str, name: str) -> None:
    scenario = SCENARIOS[name]
    upstream.scripts[name] = scenario.script
    reading = OFFICIAL[client](gateway.url, f"{scenario.via}/{name}", True)
    assert (reading.text, reading.reasoning) == (scenario.text, scenario.reasoning)
    assert [(called, arguments(value)) for called, value in reading.calls] == scenario.calls


# --- exceptions

RAISED: dict[str, dict[int, type[Exception]]] = {
    "openai": {
        400: openai.BadRequestError,
        401: openai.AuthenticationError,
        404: openai.NotFoundError,
        429: openai.RateLimitError,
        500: openai.InternalServerError,
        502: openai.InternalServerError,
        503: openai.InternalServerError,
        504: openai.InternalServerError,
    },
    "anthropic": {
        400: anthropic.BadRequestError,
        401: anthropic.AuthenticationError,
        404: anthropic.NotFoundError,
        429: anthropic.RateLimitError,
        500: anthropic.InternalServerError,
        502: anthropic.InternalServerError,
        503: anthropic.InternalServerError,
        504: anthropic.InternalServerError,
    },
    "gemini": {
        status: errors.ClientError if status < 500 else errors.ServerError for status in (400, 401, 404, 429, 500, 502, 503, 504)
    },
    "ollama": dict.fromkeys((400, 401, 404, 429, 500, 502, 503, 504), ollama.ResponseError),
}


def family(client: str) -> str:
    return client.partition("_")[0]


def refusal(wire: str, status: int) -> Script:
    """How an upstream of this dialect says no."""
    bodies: dict[str, Any] = {
        "anthropic": {"type": "error", "error": {"type": "api_error", "message": "no, sorry"}},
        "gemini": {"error": {"code": status, "message": "no, sorry", "status": "INTERNAL"}},
        "ollama": {"error": "no, sorry"},
    }
    body = bodies.get(wire, {"error": {"message": "no, sorry", "type": "server_error", "param": None, "code": None}})
    return whole(body, status, **({"retry_after": "7"} if status == 429 else {}))


STATUSES = (400, 401, 404, 429, 500, 503)


def by_wire(client: str, number: int, wires: list[str]) -> str:
    """The wire for the case with this number: over all clients, each wire has each case."""
    return wires[(list(OFFICIAL).index(client) + number) % len(wires)]


@pytest.mark.parametrize("client", OFFICIAL)
def test_a_status_is_the_right_exception(gateway: Running, upstream: HostileUpstream, client: str) -> None:
    for number, status in enumerate(STATUSES):
        wire = by_wire(client, number, list(TOOL_SCENARIOS))
        model = f"refusal-{wire}-{status}"
        upstream.scripts[model] = refusal(wire, status)
        for stream in (True, False):
            with pytest.raises(RAISED[family(client)][status]) as raised:
                OFFICIAL[client](gateway.url, f"{UPSTREAM_NAMES[wire]}/{model}", stream)
            assert "no, sorry" in str(raised.value)
            assert wire in str(raised.value)
            assert status_of(raised.value) == status
            if status == 429 and isinstance(raised.value, (openai.APIStatusError, anthropic.APIStatusError)):
                assert raised.value.response.headers["retry-after"] == "7"


def status_of(error: Any) -> int:
    found: int = getattr(error, "status_code", None) or error.code
    return found


BEFORE: dict[str, tuple[Script, int]] = {
    "timeout": ([Hang()], 504),
    "truncation": (whole(b"", media_type="text/event-stream"), 502),
    "hangs_up": ([Cut()], 502),
    "error_in_200": (whole({"error": {"message": "busy", "type": "server_error", "code": 503}}), 503),
}


@pytest.mark.parametrize("fault", BEFORE)
@pytest.mark.parametrize("client", OFFICIAL)
def test_a_fault_before_the_first_byte(gateway: Running, upstream: HostileUpstream, client: str, fault: str) -> None:
    script, status = BEFORE[fault]
    wire = by_wire(client, list(BEFORE).index(fault), ["openai_chat", "anthropic", "gemini"])
    model = f"before-{fault}"
    upstream.scripts[model] = script
    for stream in (True, False):
        with pytest.raises(RAISED[family(client)][status]) as raised:
            OFFICIAL[client](gateway.url, f"{'short_first_byte_' * (fault == 'timeout')}{UPSTREAM_NAMES[wire]}/{model}", stream)
        assert status_of(raised.value) == status


MIDDLE: dict[str, dict[str, Script]] = {
    "truncation": {
        "openai_chat": unfinished(sse(text_chunk("Hello"))),
        "anthropic": unfinished(messages_of(*TEXT)),
        "gemini": unfinished(sse(candidate({"text": "Hello"}))),
        "ollama": unfinished(lines(message(content="Hello"))),
    },
    "error": {
        "openai_chat": streamed(sse(text_chunk("Hello"), {"error": {"message": "on fire", "code": 500}})),
        "anthropic": streamed(messages_of(*TEXT, ("error", {"error": {"type": "api_error", "message": "on fire"}}))),
        "gemini": streamed(
            sse(candidate({"text": "Hello"}), {"error": {"code": 500, "message": "on fire", "status": "INTERNAL"}})
        ),
        "ollama": streamed(lines(message(content="Hello"), {"error": "on fire"}), media_type="application/x-ndjson"),
    },
    "silence": {"short_idle_work": [head(), sse(text_chunk("Hello")), Hang()]},
}
IN_STREAM: dict[str, tuple[type[Exception], ...]] = {
    "openai": (openai.APIError,),
    "anthropic": (anthropic.APIStatusError,),
    "gemini": (errors.ServerError,),
    "ollama": (ollama.ResponseError,),
}


@pytest.mark.parametrize(("fault", "wire"), [(fault, wire) for fault, wires in MIDDLE.items() for wire in wires])
@pytest.mark.parametrize("client", OFFICIAL)
def test_a_fault_in_the_middle(gateway: Running, upstream: HostileUpstream, client: str, fault: str, wire: str) -> None:
    model = f"middle-{fault}-{wire}"
    upstream.scripts[model] = MIDDLE[fault][wire]
    if client == "openai_responses":  # this client hands the failure over as an event
        reading = OFFICIAL[client](gateway.url, f"{UPSTREAM_NAMES.get(wire, wire)}/{model}", True)
        assert reading.finish == "failed"
        assert reading.error is not None
        assert "request id" in reading.error
        return
    with pytest.raises(IN_STREAM[family(client)]) as raised:
        OFFICIAL[client](gateway.url, f"{UPSTREAM_NAMES.get(wire, wire)}/{model}", True)
    assert "request id" in str(raised.value)


@pytest.mark.parametrize(("fault", "wire"), [(fault, wire) for fault, wires in MIDDLE.items() for wire in wires])
@pytest.mark.parametrize("client", OFFICIAL)
def test_a_fault_in_the_middle_of_a_whole_answer(
    gateway: Running, upstream: HostileUpstream, client: str, fault: str, wire: str
) -> None:
    model = f"middle-{fault}-{wire}"
    upstream.scripts[model] = MIDDLE[fault][wire]
    with pytest.raises(tuple(RAISED[family(client)].values())) as raised:
        OFFICIAL[client](gateway.url, f"{UPSTREAM_NAMES.get(wire, wire)}/{model}", False)
    assert status_of(raised.value) >= 500


def test_the_clients_do_not_repeat_what_is_of_no_use(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["once-by-client-400"] = refusal("openai_chat", 400)
    with pytest.raises(openai.BadRequestError):
        openai_client(gateway.url, 2).chat.completions.create(model="work/once-by-client-400", messages=[USER])
    with pytest.raises(anthropic.BadRequestError):
        anthropic_client(gateway.url, 2).messages.create(model="work/once-by-client-400", max_tokens=9, messages=[USER])
    assert len(upstream.requests("once-by-client-400")) == 2


def test_the_request_id_reaches_the_exception(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["named-500"] = refusal("openai_chat", 500)
    with pytest.raises(openai.InternalServerError) as raised:
        openai_client(gateway.url).chat.completions.create(
            model="work/named-500", messages=[USER], extra_headers={"x-request-id": "mine-7"}
        )
    assert raised.value.request_id == "mine-7"
    assert "mine-7" in raised.value.message
    assert upstream.requests("named-500")[0].headers["x-request-id"] == "mine-7"


# --- lists of models


def test_models_are_listed_for_every_client(gateway: Running) -> None:
    assert [model.id for model in openai_client(gateway.url).models.list()] == ["replay"]
    assert [model.id for model in anthropic_client(gateway.url).models.list()] == ["replay"]
    google = gemini_client(gateway.url)
    assert [model.name for model in google.models.list()] == ["models/replay"]
    assert [model.model for model in ollama.Client(host=gateway.url).list().models] == ["replay"]
    assert openai_client(gateway.url).models.retrieve("replay").id == "replay"
    assert anthropic_client(gateway.url).models.retrieve("replay").id == "replay"
    assert google.models.get(model="replay").name == "models/replay"


def test_tokens_are_counted(gateway: Running, upstream: HostileUpstream) -> None:
    client = anthropic_client(gateway.url)
    estimate = client.messages.count_tokens(model="work/m", messages=[{"role": "user", "content": "Hello " * 100}])
    assert 100 < estimate.input_tokens < 300
    upstream.scripts["counted"] = whole({"input_tokens": 123})
    assert client.messages.count_tokens(model="claude/counted", messages=[USER]).input_tokens == 123
    assert upstream.requests("counted")[0].path == "/v1/messages/count_tokens"
    upstream.scripts["uncounted"] = refusal("anthropic", 401)
    with pytest.raises(anthropic.AuthenticationError):
        client.messages.count_tokens(model="claude/uncounted", messages=[USER])


def test_embeddings_are_passed_on(gateway: Running, upstream: HostileUpstream) -> None:
    vector = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
    upstream.scripts["embed"] = whole(
        {"object": "list", "data": [vector], "model": "embed", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    )
    answer = openai_client(gateway.url).embeddings.create(model="work/embed", input="q", encoding_format="float")
    assert answer.data[0].embedding == [0.5, 0.25]
    assert upstream.requests("embed")[0].path == "/v1/embeddings"
    upstream.scripts["no-embed"] = refusal("openai_chat", 429)
    with pytest.raises(openai.RateLimitError) as raised:
        openai_client(gateway.url).embeddings.create(model="work/no-embed", input="q")
    assert raised.value.response.headers["retry-after"] == "7"
    upstream.scripts["hang-embed"] = [Hang()]
    with pytest.raises(openai.InternalServerError):
        openai_client(gateway.url).embeddings.create(model="short_first_byte_work/hang-embed", input="q")
    with pytest.raises(openai.BadRequestError):
        openai_client(gateway.url).embeddings.create(model="claude/embed", input="q")
