"""Spans and metrics by the OpenTelemetry conventions, W3C trace context, exemplars."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import (
    error_attributes,
    gen_ai_attributes,
    http_attributes,
    mcp_attributes,
    server_attributes,
)
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.conftest import upstreams_at
from gateway.dialect_clients import body_of
from gateway.running import Running, running
from gateway.scenarios import DONE, END, PLAIN, chunk, text_chunk
from gateway.telemetry import Telemetry
from gateway.telemetry import telemetry as in_memory
from gateway.upstream import HostileUpstream, sse, streamed, unfinished, whole
from streamglot.errors import StreamglotError
from streamglot.events import StreamEnd, StreamStart, Usage
from streamglot.gateway.observe import semconv
from streamglot.gateway.observe.metrics import Spread, trace_id_of
from streamglot.gateway.observe.semconv import LATEST, MODELS, NEXT_VERSION, OPT_IN, OTHER_MODELS, RELEASED, names_for
from streamglot.gateway.observe.tracing import Tracing
from streamglot.messages import OutputFormat, Request
from streamglot.tools.mcp.source import McpTool
from streamglot.tools.questions import RunTool, TurnCall
from streamglot.tools.tool import TRACE_CONTEXT, Tool, ToolError, ToolOutput
from streamglot.upstream import Upstream
from streamglot.upstream.providers import PROVIDERS, convention_name, operation_name
from streamglot.upstream.routing.routes import Candidate

CHAT = "/v1/chat/completions"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.fixture
def telemetry() -> Telemetry:
    found = in_memory()
    found.exporter.clear()
    return found


def traced(upstream: HostileUpstream, **more: Any) -> dict[str, Any]:
    """Without a store: a stored session would add its id to every span, which has tests of its own."""
    return {"server": {"telemetry": True}, "store": {"url": "none"}, "upstreams": upstreams_at(upstream.url, **more)}


def ask(gateway: Running, model: str, request_id: str, stream: bool = True, **more: Any) -> int:
    headers = {"traceparent": PARENT, "tracestate": "vendor=1", "baggage": "secret=1", "x-request-id": request_id}
    status = gateway.ask(CHAT, {**body_of("openai_chat", model, stream), **more}, headers).status
    gateway.line(request_id)
    return status


# --- names


def constants(*modules: object) -> set[str]:
    return {
        value for module in modules for name, value in inspect.getmembers(module) if name.isupper() and isinstance(value, str)
    }


def test_every_attribute_of_the_released_set_is_in_the_registry() -> None:
    known = constants(gen_ai_attributes, error_attributes, server_attributes, http_attributes, mcp_attributes)
    values = {semconv.CHAT, semconv.EMBEDDINGS, semconv.EXECUTE_TOOL, semconv.FUNCTION, semconv.INPUT, semconv.OUTPUT}
    values.add(semconv.TOOLS_CALL)
    own = {value for value in constants(semconv) if value.startswith("streamglot")}
    metrics = {semconv.SERVER_DURATION, semconv.SERVER_FIRST_TOKEN, semconv.SERVER_OUTPUT_TOKEN}
    attributes = constants(semconv) - values - own - metrics - {semconv.OTHER_ERROR, OTHER_MODELS, OPT_IN, LATEST}
    assert {*attributes, RELEASED.cache_write_tokens} <= known


def test_every_metric_of_the_released_set_is_in_the_registry() -> None:
    ours = {RELEASED.duration, RELEASED.other_duration, RELEASED.first_chunk, RELEASED.output_chunk, RELEASED.token_usage}
    ours |= {semconv.SERVER_DURATION, semconv.SERVER_FIRST_TOKEN, semconv.SERVER_OUTPUT_TOKEN}
    assert ours == constants(gen_ai_metrics)


def test_operations_and_providers_of_the_registry_are_used() -> None:
    operations = {value.value for value in gen_ai_attributes.GenAiOperationNameValues}
    assert {operation_name(name) for name in ("openai_chat", "gemini", "openai_completions", "anthropic")} <= operations
    assert {semconv.EMBEDDINGS, semconv.EXECUTE_TOOL} <= operations
    providers = {value.value for value in gen_ai_attributes.GenAiProviderNameValues}
    assert all(provider.convention in providers for provider in PROVIDERS if provider.convention)
    found = {
        convention_name(Upstream(name="mine", dialect=dialect, base_url=url))
        for dialect, url in (
            ("openai_chat", "https://api.openai.com/v1"),
            ("gemini", "https://generativelanguage.googleapis.com/v1beta"),
            ("openai_chat", "https://me.openai.azure.com/openai/v1"),
            ("gemini", "https://europe-west1-aiplatform.googleapis.com/v1"),
            ("bedrock_converse", "https://bedrock-runtime.eu-west-1.amazonaws.com"),
        )
    }
    assert found == {"openai", "gcp.gemini", "azure.ai.openai", "gcp.vertex_ai", "aws.bedrock"}
    assert found <= providers
    assert convention_name(Upstream(name="mine", base_url="http://127.0.0.1:1/v1")) == "mine"


def test_the_environment_selects_the_set_of_names() -> None:
    assert names_for({}) is RELEASED
    assert names_for({OPT_IN: "http"}) is RELEASED
    assert names_for({OPT_IN: f"http, {LATEST}"}) is NEXT_VERSION


# --- spans


def test_a_request_has_a_server_span_and_each_attempt_a_client_span(upstream: HostileUpstream, telemetry: Telemetry) -> None:
    upstream.scripts["traced"] = streamed(PLAIN)
    with running(traced(upstream)) as gateway:
        assert ask(gateway, "work/traced", "t1", temperature=0.5, max_tokens=7, stop=["x"], seed=3, top_p=0.9, n=1) == 200
        port = int(upstream.url.rpartition(":")[2])
    attempt, server = telemetry.spans()
    assert (server.kind, server.name) == (SpanKind.SERVER, f"POST {CHAT}")
    assert (attempt.kind, attempt.name) == (SpanKind.CLIENT, "chat traced")
    assert f"{server.context.trace_id:032x}" == f"{attempt.context.trace_id:032x}" == TRACE_ID
    assert server.parent is not None
    assert f"{server.parent.span_id:016x}" == "b7ad6b7169203331"
    assert attempt.parent is not None
    assert attempt.parent.span_id == server.context.span_id
    of_attempt = dict(attempt.attributes or {})
    assert of_attempt.pop(semconv.TIME_TO_FIRST_CHUNK) > 0  # type: ignore[operator]  # it is a number
    assert of_attempt == {
        semconv.OPERATION: "chat",
        semconv.PROVIDER: "work",
        semconv.REQUEST_MODEL: "traced",
        semconv.SERVER_ADDRESS: "127.0.0.1",
        semconv.SERVER_PORT: port,
        semconv.UPSTREAM: "work",
        semconv.REQUEST_STREAM: True,
        semconv.TEMPERATURE: 0.5,
        semconv.MAX_TOKENS: 7,
        semconv.STOP_SEQUENCES: ("x",),
        semconv.SEED: 3,
        semconv.TOP_P: 0.9,
        semconv.RESPONSE_ID: of_attempt[semconv.RESPONSE_ID],
        semconv.RESPONSE_MODEL: of_attempt[semconv.RESPONSE_MODEL],
        semconv.FINISH_REASONS: ("stop",),
        semconv.INPUT_TOKENS: 5,
        semconv.OUTPUT_TOKENS: 2,
    }
    of_server = server.attributes or {}
    assert of_server[semconv.HTTP_ROUTE] == CHAT
    assert of_server[semconv.HTTP_STATUS] == 200
    assert of_server[semconv.REQUEST_MODEL] == "work/traced"
    assert of_server[semconv.ENDING] == "end"
    assert semconv.INPUT_TOKENS not in of_server, "backends add up the counts of all spans"


def test_a_retry_has_a_span_of_its_own_and_the_error_is_named(upstream: HostileUpstream, telemetry: Telemetry) -> None:
    upstream.scripts["refusing"] = whole({"error": {"message": "busy"}}, 503)
    with running(traced(upstream, attempts=2)) as gateway:
        assert ask(gateway, "work/refusing", "t2") == 503
    *attempts, server = telemetry.spans()
    assert [span.kind for span in attempts] == [SpanKind.CLIENT, SpanKind.CLIENT]
    for span in (*attempts, server):
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})[semconv.ERROR_TYPE] == (server.attributes or {})[semconv.ERROR_TYPE]
    assert (server.attributes or {})[semconv.ATTEMPTS] == 2


def test_a_cut_stream_ends_its_span_with_an_error(upstream: HostileUpstream, telemetry: Telemetry) -> None:
    upstream.scripts["cut"] = unfinished(sse(text_chunk("Half")))
    with running(traced(upstream)) as gateway:
        ask(gateway, "work/cut", "t3")
    attempt, server = telemetry.spans()
    for span in (attempt, server):
        assert (span.attributes or {})[semconv.ERROR_TYPE] == "upstream_truncated"
        assert span.status.status_code is StatusCode.ERROR
    assert (attempt.attributes or {})[semconv.FINISH_REASONS] == ("error",)
    assert (server.attributes or {})[semconv.HTTP_STATUS] == 200, "the status that the client was sent before the cut"


def test_an_upstream_in_this_process_has_an_internal_span(upstream: HostileUpstream, telemetry: Telemetry) -> None:
    with running(traced(upstream)) as gateway:
        assert ask(gateway, "replay/replay", "t5") == 200
    assert telemetry.spans()[0].kind is SpanKind.INTERNAL


def test_a_judge_is_a_part_of_the_request_that_it_judges(upstream: HostileUpstream, telemetry: Telemetry) -> None:
    upstream.scripts["judged"] = streamed(PLAIN)
    judge = {"use": "llm_judge", "model": "work/judging", "instructions": "The text must be polite.", "apply_to": ["text"]}
    upstream.scripts["judging"] = streamed(PLAIN)
    with running({**traced(upstream), "policies": [judge]}) as gateway:
        ask(gateway, "work/judged", "t6")
    spans = {span.name: span for span in telemetry.spans()}
    server = spans[f"POST {CHAT}"]
    for name in ("chat judged", "chat judging"):
        parent = spans[name].parent
        assert parent is not None
        assert parent.span_id == server.context.span_id


def test_a_request_that_asks_no_upstream_has_a_server_span_only(upstream: HostileUpstream, telemetry: Telemetry) -> None:
    with running(traced(upstream, models=["known"])) as gateway:
        assert ask(gateway, "nowhere/model", "t4") == 404
        assert (
            gateway.ask("/v1beta/models/nowhere/x:generateContent", body_of("gemini", "nowhere/x", False)).status == 400
        )  # gemini-cli repeats a request that is answered with 404
    first, second = telemetry.spans()
    assert (first.attributes or {})[semconv.ERROR_TYPE] == "model_not_found"
    assert second.name == "POST /v1beta/models/{model}:generateContent", "a route has no names that clients choose"


def test_embeddings_have_spans(upstream: HostileUpstream, telemetry: Telemetry) -> None:
    upstream.scripts["vectors"] = whole({"data": [], "usage": {"prompt_tokens": 4, "total_tokens": 4}})
    with running(traced(upstream)) as gateway:
        headers = {"traceparent": PARENT}
        assert gateway.ask("/v1/embeddings", {"model": "work/vectors", "input": "x"}, headers).status == 200
    attempt, server = telemetry.spans()
    assert attempt.name == "embeddings vectors"
    assert (attempt.attributes or {})[semconv.INPUT_TOKENS] == 4
    assert server.name == "POST /v1/embeddings"
    assert attempt.parent is not None
    assert attempt.parent.span_id == server.context.span_id
    assert f"{attempt.context.span_id:016x}" in upstream.requests("vectors")[-1].headers["traceparent"]


class Lookup(Tool):
    async def run(self, arguments: dict[str, Any]) -> ToolOutput:
        if arguments:
            raise ToolError("no such thing")
        return ToolOutput("found")


@pytest.mark.parametrize("environment", [{}, {OPT_IN: LATEST}], ids=["released", "coming"])
def test_a_tool_call_has_a_span(telemetry: Telemetry, environment: dict[str, str]) -> None:
    async def run_tool(tool: Tool, arguments: dict[str, Any]) -> ToolOutput:
        return await tool.run(arguments)

    executor: Any = SimpleNamespace(run=run_tool)
    services = SimpleNamespace(tracer=Tracing(environment))

    def call(arguments: dict[str, Any]) -> RunTool:
        return RunTool(executor, Lookup("docs.find", "Finds"), TurnCall("call_1", "docs__find"), arguments, 1.0)

    assert asyncio.run(call({}).resolve(services)).text == "found"
    with pytest.raises(ToolError):
        asyncio.run(call({"wrong": 1}).resolve(services))
    good, bad = telemetry.spans()
    assert (good.kind, good.name) == (SpanKind.INTERNAL, "execute_tool docs.find")
    assert dict(good.attributes or {}) == {
        semconv.OPERATION: "execute_tool",
        semconv.TOOL_NAME: "docs.find",
        semconv.TOOL_CALL_ID: "call_1",
        semconv.TOOL_TYPE: "function",
        semconv.TOOL_DESCRIPTION: "Finds",
    }
    assert (bad.attributes or {})[semconv.ERROR_TYPE] == "ToolError"
    assert bool(telemetry.points("gen_ai.execute_tool.duration")) is bool(environment)


def test_the_span_of_an_mcp_tool_names_the_method_and_its_server_gets_the_trace_context(telemetry: Telemetry) -> None:
    passed: list[str] = []

    async def call(name: str, arguments: dict[str, Any]) -> ToolOutput:
        passed.append(TRACE_CONTEXT.get()["traceparent"])
        return ToolOutput(f"{name} {arguments}")

    source: Any = SimpleNamespace(name="docs", call=call)
    tool = McpTool(source, "find", "", {}, None)
    executor: Any = SimpleNamespace(run=lambda tool, arguments: tool.run(arguments))
    asyncio.run(RunTool(executor, tool, TurnCall("", "docs__find"), {}, 1.0).resolve(SimpleNamespace(tracer=Tracing({}))))
    (span,) = telemetry.spans()
    assert dict(span.attributes or {}) == {
        semconv.OPERATION: "execute_tool",
        semconv.TOOL_NAME: "docs.find",
        semconv.TOOL_TYPE: "function",
        semconv.MCP_METHOD: "tools/call",
    }
    assert [parent.split("-")[1:3] for parent in passed] == [[f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"]]
    assert TRACE_CONTEXT.get() == {}


def test_the_spans_of_a_stored_conversation_name_it(upstream: HostileUpstream, telemetry: Telemetry, tmp_path: Path) -> None:
    upstream.scripts["told"] = streamed(PLAIN)
    stored = {"store": {"url": f"sqlite:///{tmp_path / 'turns.db'}"}}
    with running({**traced(upstream), **stored}) as gateway:
        headers = {"x-streamglot-session": "thread-1", "x-request-id": "t7"}
        sessions = set()
        for _ in range(2):
            answer = gateway.ask(CHAT, body_of("openai_chat", "work/told", False), headers)
            sessions.add(answer.headers["x-streamglot-session"])
    spans = telemetry.spans()
    assert [span.kind for span in spans] == [SpanKind.CLIENT, SpanKind.SERVER] * 2
    assert {(span.attributes or {})[semconv.CONVERSATION_ID] for span in spans} == sessions
    assert len(sessions) == 1


# --- one attempt, without a gateway


def attempt_of(environment: dict[str, str], model: str, **request: Any) -> Any:
    candidate = Candidate(Upstream(name="mine", base_url="https://models.example/v1"), model)
    return Tracing(environment).attempt(candidate, Request(model=model, **request))


def test_all_token_counts_are_attributes_of_the_span(telemetry: Telemetry) -> None:
    for environment, write in (({}, "cache_creation"), ({OPT_IN: LATEST}, "cache_write")):
        attempt = attempt_of(environment, "counted", stream=True, top_k=4, n=2, output=OutputFormat("json_object"))
        attempt.seen([StreamStart("id", "counted-2026")])
        attempt.seen([Usage(10, 5, 4, 3, 2), StreamEnd("tool_calls")])
        attempt.close()
        attributes = telemetry.spans()[-1].attributes or {}
        assert attributes[semconv.CACHE_READ_TOKENS] == 4
        assert attributes[f"gen_ai.usage.{write}.input_tokens"] == 3
        assert attributes[semconv.REASONING_TOKENS] == 2
        assert attributes[semconv.FINISH_REASONS] == ("tool_call",)
        assert attributes[semconv.RESPONSE_MODEL] == "counted-2026"
        assert (attributes[semconv.TOP_K], attributes[semconv.CHOICE_COUNT], attributes[semconv.OUTPUT_TYPE]) == (4, 2, "json")
        assert isinstance(attributes[semconv.TOP_K], int if environment else float)
        assert (attributes[semconv.SERVER_ADDRESS], attributes[semconv.SERVER_PORT]) == ("models.example", 443)
    assert len(telemetry.spans()) == 2, "closing an attempt that has ended does nothing"


def test_an_attempt_that_is_given_up_is_cancelled(telemetry: Telemetry) -> None:
    attempt_of({}, "left").close()
    attempt_of({}, "left").failed(asyncio.CancelledError())
    attempt_of({}, "left").failed(StreamglotError("no", code="not_found", status=404))
    kinds = [(span.attributes or {})[semconv.ERROR_TYPE] for span in telemetry.spans()]
    assert kinds == ["cancelled", "cancelled", "not_found"]


def test_the_stream_continues_when_a_span_processor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[Any] = []
    in_memory()
    tracing = Tracing({}, lines.append)
    attempt = tracing.attempt(Candidate(Upstream(name="mine"), "m"), Request())
    monkeypatch.setattr(tracing.instruments, "attempt", lambda *_: 1 / 0)
    attempt.seen([StreamStart(), StreamEnd()])
    assert lines[0]["event"] == "tracing_failed"


# --- metrics


def by_model(telemetry: Telemetry, metric: str, model: str) -> list[Any]:
    return [point for point in telemetry.points(metric) if point.attributes.get(semconv.REQUEST_MODEL) == model]


def test_the_metrics_of_the_released_set(upstream: HostileUpstream, telemetry: Telemetry) -> None:
    upstream.scripts["metered"] = streamed(
        sse(text_chunk("a")), sse(text_chunk("b")), sse(text_chunk("c"), END), PLAIN.partition(b"\n\n")[2]
    )
    with running(traced(upstream)) as gateway:
        assert ask(gateway, "work/metered", "m1") == 200
        assert ask(gateway, "work/metered", "m2", stream=False) == 200
    durations = by_model(telemetry, RELEASED.duration, "metered")
    assert sum(point.count for point in durations) == 2
    assert durations[0].explicit_bounds == semconv.SECONDS
    assert durations[0].attributes[semconv.SERVER_ADDRESS] == "127.0.0.1"
    assert sum(point.count for point in by_model(telemetry, RELEASED.first_chunk, "metered")) == 1, "streams only"
    tokens = by_model(telemetry, RELEASED.token_usage, "metered")
    assert {point.attributes[semconv.TOKEN_TYPE] for point in tokens} == {"input", "output"}
    assert tokens[0].explicit_bounds == semconv.TOKENS
    server = by_model(telemetry, semconv.SERVER_DURATION, "work/metered")
    assert sum(point.count for point in server) == 2
    first = by_model(telemetry, semconv.SERVER_FIRST_TOKEN, "work/metered")
    assert first[0].explicit_bounds == semconv.FIRST_TOKEN_SECONDS


def test_the_time_per_chunk_is_the_mean_of_a_stream(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 11.0, 11.5, 13.0, 14.0))
    monkeypatch.setattr(Tracing, "clock", staticmethod(lambda: next(times)))
    attempt = attempt_of({}, "paced", stream=True)
    for events in ([StreamStart()], [Usage(1, 1)], [StreamEnd()]):
        attempt.seen(events)
    assert by_model(telemetry, RELEASED.first_chunk, "paced")[0].sum == pytest.approx(1.0)
    assert by_model(telemetry, RELEASED.output_chunk, "paced")[0].sum == pytest.approx(1.0)
    assert by_model(telemetry, RELEASED.duration, "paced")[0].sum == pytest.approx(4.0)


def test_the_metrics_of_the_coming_set(telemetry: Telemetry) -> None:
    attempt = attempt_of({OPT_IN: LATEST}, "future", stream=True)
    attempt.seen([StreamStart()])
    attempt.seen([Usage(10, 5, 4, 3, 2), StreamEnd()])
    for attribute, counter in NEXT_VERSION.token_counters.items():
        found = by_model(telemetry, counter, "future")
        assert found[0].value == (telemetry.spans()[-1].attributes or {})[attribute]
    for histogram in (
        *NEXT_VERSION.token_histograms.values(),
        NEXT_VERSION.duration,
        NEXT_VERSION.first_chunk,
        NEXT_VERSION.output_chunk,
    ):
        assert by_model(telemetry, histogram, "future")[0].count == 1
    assert not by_model(telemetry, RELEASED.token_usage, "future")


def test_models_that_clients_make_up_share_a_time_series(telemetry: Telemetry) -> None:
    tracing = Tracing({})
    candidates = [Candidate(Upstream(name="mine"), f"made-up-{number}") for number in range(MODELS + 2)]
    for candidate in candidates:
        tracing.attempt(candidate, Request()).close()
    assert by_model(telemetry, RELEASED.duration, f"made-up-{MODELS - 1}")
    assert not by_model(telemetry, RELEASED.duration, f"made-up-{MODELS + 1}")
    assert by_model(telemetry, RELEASED.duration, OTHER_MODELS)


# --- trace context


def test_the_upstream_gets_the_context_of_the_client_span(upstream: HostileUpstream, telemetry: Telemetry) -> None:
    upstream.scripts["context"] = streamed(PLAIN)
    with running(traced(upstream)) as gateway:
        ask(gateway, "work/context", "w1")
    headers = upstream.requests("context")[-1].headers
    assert headers["traceparent"] == f"00-{TRACE_ID}-{telemetry.spans()[0].context.span_id:016x}-01"
    assert headers["tracestate"] == "vendor=1"
    assert "baggage" not in headers


def test_without_telemetry_the_upstream_gets_the_context_of_the_client(upstream: HostileUpstream) -> None:
    upstream.scripts["context-passed"] = streamed(PLAIN)
    upstream.scripts["context-vectors"] = whole({"data": []})
    with running({"upstreams": upstreams_at(upstream.url)}) as gateway:
        ask(gateway, "work/context-passed", "w2")
        gateway.ask("/v1/embeddings", {"model": "work/context-vectors", "input": "x"}, {"traceparent": PARENT})
        gateway.ask(CHAT, body_of("openai_chat", "work/context-passed"), {"x-request-id": "w3"})
    first, last = upstream.requests("context-passed")
    assert (first.headers["traceparent"], first.headers["tracestate"]) == (PARENT, "vendor=1")
    assert upstream.requests("context-vectors")[0].headers["traceparent"] == PARENT
    assert "traceparent" not in last.headers


# --- exemplars


@pytest.mark.parametrize("telemetry_on", [False, True])
def test_latency_histograms_have_exemplars(upstream: HostileUpstream, telemetry_on: bool) -> None:
    in_memory()
    upstream.scripts["exemplary"] = streamed(sse(chunk({"content": "Hi"}), END, DONE))
    config = {**traced(upstream), "server": {"telemetry": telemetry_on}}
    with running(config) as gateway:
        ask(gateway, "work/exemplary", "e1")
        page = gateway.ask("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        plain = gateway.ask("/metrics")
    assert page.headers["content-type"].startswith("application/openmetrics-text")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert TRACE_ID not in plain.body.decode()
    exemplars = {
        family.name: sample.exemplar.labels["trace_id"]
        for family in text_string_to_metric_families(page.body.decode())  # type: ignore[no-untyped-call]  # the library has none
        for sample in family.samples
        if sample.exemplar is not None
    }
    histograms = ("first_event_seconds", "gap_seconds", "longest_gap_seconds")
    assert exemplars == {f"streamglot_{name}": TRACE_ID for name in histograms}


def test_a_trace_id_is_taken_from_a_valid_context_only() -> None:
    assert trace_id_of({"traceparent": PARENT}) == TRACE_ID
    for wrong in ("", "00-" + "0" * 32 + "-b7ad6b7169203331-01", PARENT.upper(), PARENT[:-3], 'x"} 1\n'):
        assert trace_id_of({"traceparent": wrong}) == ""
    assert trace_id_of({}) == ""


def test_the_newest_exemplar_of_several_processes_is_shown() -> None:
    one, two = Spread(), Spread()
    one.add(0.02, "1" * 32, 5.0)
    two.add(0.02, "2" * 32, 9.0)
    for both in (one.plus(two), two.plus(one)):
        assert [traced.trace_id for traced in both.exemplars.values()] == ["2" * 32]
        assert both.sum == pytest.approx(0.04)
