"""The metrics of the conventions for generative AI. One point for each attempt or request, never one for each chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ...json_types import JsonObject
from . import semconv
from .semconv import Names

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter

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
        self._server_duration = _seconds(meter, semconv.SERVER_DURATION, "Duration of a client's request")
        self._server_first = _seconds(
            meter, semconv.SERVER_FIRST_TOKEN, "Time to the first event of an answer", semconv.FIRST_TOKEN_SECONDS
        )
        self._server_token = _seconds(
            meter, semconv.SERVER_OUTPUT_TOKEN, "Time per output token after the first", semconv.OUTPUT_TOKEN_SECONDS
        )

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
                self._usage.record(count, {**attributes, semconv.TOKEN_TYPE: _TOKEN_TYPES[attribute]})
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
        for name in (semconv.REQUEST_MODEL, semconv.RESPONSE_MODEL):
            if name in limited:
                limited[name] = self._known_model(limited[name])
        return limited

    def _known_model(self, model: str) -> str:
        if len(self._models) < MODELS:
            self._models.add(model)
        return model if model in self._models else OTHER_MODELS


_TOKEN_TYPES: Final = {semconv.INPUT_TOKENS: semconv.INPUT, semconv.OUTPUT_TOKENS: semconv.OUTPUT}


def _seconds(meter: Meter, name: str, description: str, buckets: tuple[float, ...] = semconv.SECONDS) -> Histogram:
    return meter.create_histogram(name, unit="s", description=description, explicit_bucket_boundaries_advisory=list(buckets))


def _tokens(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(
        name, unit="{token}", description=description, explicit_bucket_boundaries_advisory=list(semconv.TOKENS)
    )
