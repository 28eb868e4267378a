"""The OpenTelemetry semantic conventions for generative AI: names of attributes and metrics, buckets, and the metrics themselves.

There are two sets of names. The released one (v1.41) is the default. The coming one has other names for some metrics and for one
attribute; ``OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental`` selects it. A test compares the released names with the
constants of opentelemetry-semantic-conventions.

The metrics have one point for each attempt or request, never one for each chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ...json_types import JsonObject

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter

# --- attributes

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
CHOICE_COUNT: Final = "gen_ai.request.choice.count"
SEED: Final = "gen_ai.request.seed"
TOP_K: Final = "gen_ai.request.top_k"
TOP_P: Final = "gen_ai.request.top_p"
TEMPERATURE: Final = "gen_ai.request.temperature"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
OUTPUT_TYPE: Final = "gen_ai.output.type"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
MCP_METHOD: Final = "mcp.method.name"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"

# --- values

CHAT: Final = "chat"
EMBEDDINGS: Final = "embeddings"
EXECUTE_TOOL: Final = "execute_tool"
FUNCTION: Final = "function"
TOOLS_CALL: Final = "tools/call"
INPUT: Final = "input"
OUTPUT: Final = "output"
OTHER_ERROR: Final = "_OTHER"

# --- metrics that both sets have

SERVER_DURATION: Final = "gen_ai.server.request.duration"
SERVER_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"
SERVER_OUTPUT_TOKEN: Final = "gen_ai.server.time_per_output_token"

# --- buckets

SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN_SECONDS: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
OUTPUT_TOKEN_SECONDS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKENS: Final = tuple(4**power for power in range(14))
"""1 to 67,108,864 tokens."""

# --- names of our own

SCOPE: Final = "streamglot"
CLIENT_DIALECT: Final = "streamglot.client.dialect"
UPSTREAM: Final = "streamglot.upstream"
ATTEMPTS: Final = "streamglot.attempts"
CACHED: Final = "streamglot.cached"
ENDING: Final = "streamglot.ending"
REQUEST_ID: Final = "streamglot.request.id"

# --- what differs

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
LATEST: Final = "gen_ai_latest_experimental"


class Names(Struct, frozen=True):
    """Names that differ between the sets. ``token_usage`` is one histogram with a token type; a set without it has
    ``token_counters`` (by attribute of the span) and ``token_histograms`` (by token type). ``tool_duration`` is empty where the
    set has none."""

    duration: str
    other_duration: str
    first_chunk: str
    output_chunk: str
    cache_write_tokens: str
    token_usage: str
    token_counters: Mapping[str, str]
    token_histograms: Mapping[str, str]
    tool_duration: str


RELEASED: Final = Names(
    duration="gen_ai.client.operation.duration",
    other_duration="gen_ai.client.operation.duration",
    first_chunk="gen_ai.client.operation.time_to_first_chunk",
    output_chunk="gen_ai.client.operation.time_per_output_chunk",
    cache_write_tokens="gen_ai.usage.cache_creation.input_tokens",
    token_usage="gen_ai.client.token.usage",
    token_counters={},
    token_histograms={},
    tool_duration="",
)
NEXT_VERSION: Final = Names(
    duration="gen_ai.client.inference.duration",
    other_duration="gen_ai.client.operation.duration",
    first_chunk="gen_ai.client.inference.time_to_first_chunk",
    output_chunk="gen_ai.client.inference.time_per_output_chunk",
    cache_write_tokens="gen_ai.usage.cache_write.input_tokens",
    token_usage="",
    token_counters={
        INPUT_TOKENS: "gen_ai.client.inference.usage.input_tokens",
        OUTPUT_TOKENS: "gen_ai.client.inference.usage.output_tokens",
        CACHE_READ_TOKENS: "gen_ai.client.inference.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_write.input_tokens": "gen_ai.client.inference.usage.cache_write.input_tokens",
        REASONING_TOKENS: "gen_ai.client.inference.usage.reasoning.output_tokens",
    },
    token_histograms={
        INPUT_TOKENS: "gen_ai.client.inference.operation.input_tokens",
        OUTPUT_TOKENS: "gen_ai.client.inference.operation.output_tokens",
    },
    tool_duration="gen_ai.execute_tool.duration",
)


def names_for(environment: Mapping[str, str]) -> Names:
    """The set that the environment selects."""
    chosen = {word.strip() for word in environment.get(OPT_IN, "").split(",")}
    return NEXT_VERSION if LATEST in chosen else RELEASED


Attributes = JsonObject

MODELS: Final = 500
"""Names of models that metrics tell apart. Clients choose the names, and each name is a time series that is never removed."""
OTHER_MODELS: Final = "other"


class Instruments:
    """``meter`` is one of OpenTelemetry. ``names`` is the set of names that is written."""

    def __init__(self, meter: Meter, names: Names) -> None:
        self._models: set[str] = set()
        self._duration = _seconds(meter, names.duration, "Duration of a request to an upstream")
        self._other_duration = (
            self._duration
            if names.other_duration == names.duration
            else _seconds(meter, names.other_duration, "Duration of a request to an upstream that is no inference")
        )
        self._first_chunk = _seconds(meter, names.first_chunk, "Time to the first chunk of a stream")
        self._output_chunk = _seconds(meter, names.output_chunk, "Mean time between two chunks of a stream")
        self._usage = _tokens(meter, names.token_usage, "Tokens of a request") if names.token_usage else None
        self._counters = {
            attribute: meter.create_counter(name, unit="{token}", description="Tokens used")
            for attribute, name in names.token_counters.items()
        }
        self._histograms = {
            attribute: _tokens(meter, name, "Tokens of a request") for attribute, name in names.token_histograms.items()
        }
        self._tool = _seconds(meter, names.tool_duration, "Duration of a tool call") if names.tool_duration else None
        self._server_duration = _seconds(meter, SERVER_DURATION, "Duration of a client's request")
        self._server_first = _seconds(meter, SERVER_FIRST_TOKEN, "Time to the first event of an answer", FIRST_TOKEN_SECONDS)
        self._server_token = _seconds(meter, SERVER_OUTPUT_TOKEN, "Time per output token after the first", OUTPUT_TOKEN_SECONDS)

    def attempt(
        self,
        attributes: Attributes,
        usage: Mapping[str, int],
        seconds: float,
        first_chunk: float | None,
        output_chunk: float | None,
        inference: bool,
    ) -> None:
        """Records an attempt at an upstream that has ended. The keys of ``usage`` are attributes of the span. Times are in
        seconds."""
        attributes = self._limited(attributes)
        (self._duration if inference else self._other_duration).record(seconds, attributes)
        if first_chunk is not None:
            self._first_chunk.record(first_chunk, attributes)
        if output_chunk is not None:
            self._output_chunk.record(output_chunk, attributes)
        for attribute, count in usage.items():
            if self._usage is not None and attribute in _TOKEN_TYPES:
                self._usage.record(count, {**attributes, TOKEN_TYPE: _TOKEN_TYPES[attribute]})
            if attribute in self._counters:
                self._counters[attribute].add(count, attributes)
            if attribute in self._histograms:
                self._histograms[attribute].record(count, attributes)

    def request(self, attributes: Attributes, seconds: float, first: float | None, per_token: float | None) -> None:
        """Records a request of a client that has ended."""
        attributes = self._limited(attributes)
        self._server_duration.record(seconds, attributes)
        if first is not None:
            self._server_first.record(first, attributes)
        if per_token is not None:
            self._server_token.record(per_token, attributes)

    def tool(self, attributes: Attributes, seconds: float) -> None:
        if self._tool is not None:
            self._tool.record(seconds, attributes)

    def _limited(self, attributes: Attributes) -> Attributes:
        limited = dict(attributes)
        for name in (REQUEST_MODEL, RESPONSE_MODEL):
            if name in limited:
                limited[name] = self._known_model(limited[name])
        return limited

    def _known_model(self, model: str) -> str:
        if len(self._models) < MODELS:
            self._models.add(model)
        return model if model in self._models else OTHER_MODELS


_TOKEN_TYPES: Final = {INPUT_TOKENS: INPUT, OUTPUT_TOKENS: OUTPUT}


def _seconds(meter: Meter, name: str, description: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
    return meter.create_histogram(name, unit="s", description=description, explicit_bucket_boundaries_advisory=list(buckets))


def _tokens(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(name, unit="{token}", description=description, explicit_bucket_boundaries_advisory=list(TOKENS))
