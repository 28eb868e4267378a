"""Reads InvokeModel chunks: decodes them, then passes them to the reader of the model family's dialect, or reads them here if
the family has none. Builds responses in the format of a family that has a dialect.

This is the only reader that uses other dialects, because its wire format wraps theirs. It looks them up in the registry when the
first chunk has shown the family.
"""

from __future__ import annotations

import base64
import json
from typing import Final, Unpack

import msgspec

from ...errors import ConfigError, StreamglotError, UpstreamProtocolError, UpstreamRefused, excerpt
from ...events import Citation, Echo, Event, Extra, StopReason, StreamEnd, StreamError, StreamStart, Usage
from ...framing import AwsEventStream, Frame
from ...json_types import JsonObject, JsonValue
from ...messages import Response
from .. import dialect
from ..common import upstream_errors
from ..common.lenient import clean, fit, loads
from ..common.reader import Reader, ReaderOptions
from ..common.state import in_format
from ..common.tables import MAX_TOKENS, count
from .wire import (
    DIALECT,
    METRICS,
    PLAIN,
    REASONS,
    TURN_END,
    USAGE,
    Output,
    Plain,
    Service,
    choice_index,
    converse_decoder,
    family_of,
    part_decoder,
    plain_decoder,
    service_decoder,
)

_SERVICE_MARK: Final = b'"amazon-bedrock-'
_INTERVENED: Final = "INTERVENED"


class BedrockInvokeReader(Reader):
    dialect = DIALECT
    framing = AwsEventStream

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._family = ""
        self._inner: Reader | None = None
        self._renamed = False
        self._early: list[Extra] = []
        self._guarded = False
        self._metrics: Usage | None = None
        self._counts: dict[str, int] = {}
        self._finish: dict[int, str] = {}
        self._sequence: str | None = None

    def read(self, frame: Frame) -> None:
        part = self.decode(part_decoder, frame.data)
        if part.bytes:
            try:
                data = base64.b64decode(part.bytes, validate=True)
            except ValueError:
                raise UpstreamProtocolError(f"a chunk is not base64: {excerpt(part.bytes)}") from None
            self._read_words(data)

    def eof(self) -> None:
        if self._inner is not None:
            self._pass_on(self._inner.close())
        elif self._guarded or (self._finish and all(index in self._finish for index in self._blocks)):
            self._end_plain()

    def stop(self) -> list[Event]:
        if self._inner is None or self._done:
            return super().stop()
        self._pass_on(self._inner.stop())
        out, self._out = self._out, []
        return out

    def whole(self, body: JsonObject) -> None:
        self._read_service(fit(Service, body))
        self._choose(body)
        if self._inner is not None:
            self._pass_on(self._inner.read_whole(_renamed(body) if self._renamed else body))
        elif self._family == PLAIN:
            self._read_plain(fit(Plain, body))
            self._end_plain()
        elif isinstance(body.get("message"), str) or "__type" in body:
            raise upstream_errors.refusal(body)
        else:
            raise UpstreamProtocolError(f"a JSON body of an unknown model family: {excerpt(body)}")

    # --- the family

    def _read_words(self, data: bytes) -> None:
        if _SERVICE_MARK in data:
            self._read_service(self.decode(service_decoder, data))
        if not self._family:
            body, _ = loads(data)
            self._choose(body if isinstance(body, dict) else {})
            if not self._family:
                if _SERVICE_MARK in data:
                    return
                raise UpstreamProtocolError(f"a chunk of an unknown model family: {excerpt(data)}")
        if self._inner is None:
            self._read_plain(self.decode(plain_decoder, data))
        elif self._family == "bedrock_converse":
            event = self.decode(converse_decoder, data).event()
            if event is not None:
                self._pass_on(self._inner.feed_frames([Frame(*event)]))
        else:
            if self._renamed:
                data = json.dumps(_renamed(loads(data)[0])).encode()
            self._pass_on(self._inner.feed_frames([Frame(data)]))

    def _choose(self, body: JsonObject) -> None:
        self._family = family_of(body)
        if self._family and self._family != PLAIN:
            shared = {
                "provider": in_format(self.provider, self._family),
                "limits": self.limits,
                "call_prefix": self._given_prefix,
            }
            self._inner = dialect(self._family).reader(**shared)
            self._renamed = self._family == "openai_chat" and _renamed(body) is not body

    def _read_service(self, service: Service) -> None:
        """Reads the fields of the service: extras of this dialect, except for what they say about the end."""
        self._guarded = self._guarded or service.action == _INTERVENED
        if service.metrics:
            self._metrics = USAGE.read(service.metrics)
            self._remark({METRICS: service.metrics})
        if service.action:
            self._remark({"amazon-bedrock-guardrailAction": service.action})
        if service.trace:
            self._remark({"amazon-bedrock-trace": service.trace})

    def _remark(self, data: JsonObject) -> None:
        extra = Extra(self.dialect, data)
        if self.started:
            self.emit(extra)
        else:
            self.tally.count(extra)
            self._early.append(extra)

    def start(self, id: str = "", model: str = "", created: int = 0) -> None:
        if not self.started:
            super().start(id, model, created)
            self._emit_early()

    def _emit_early(self) -> None:
        for extra in self._early:
            self.emit_counted(extra)
        self._early.clear()

    # --- families with their own dialect

    def _pass_on(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, StreamEnd):
                self._done = True
                if self._guarded and event.reason in ("end", "other"):
                    event = StreamEnd("content_filter", event.raw_reason, event.sequence)
            elif isinstance(event, StreamError):
                self._done = True
            self._out.append(event)
            if isinstance(event, StreamStart):
                self.started = True
                self._emit_early()

    def _fail(self, error: StreamglotError) -> None:
        """The outer format broke: open blocks of the inner dialect are closed, and the error belongs to the outer format."""
        if self._inner is not None:
            self._out += [event for event in self._inner.close() if not isinstance(event, (StreamEnd, StreamError))]
        super()._fail(error)

    # --- plain families

    def _read_plain(self, plain: Plain) -> None:
        index = choice_index(plain.index) if plain.text is not None else 0
        for text in (plain.output_text, plain.generation, plain.completion, plain.text):
            if text:
                self.blocks(index).text(text)
        for answers in (plain.outputs, plain.choices, plain.results, plain.generations):
            for number, answer in enumerate(answers or ()):
                self._read_answer(number, answer)
        if plain.tool_calls and plain.event_type != "stream-end":
            self._read_calls(plain.tool_calls)
        for citation in plain.citations or ():
            if isinstance(citation, dict):
                self.blocks().put(_citation(citation))
        counts = {
            "input": plain.input_count if plain.prompt_token_count is None else plain.prompt_token_count,
            "output": plain.output_count if plain.generation_token_count is None else plain.generation_token_count,
        }
        for name in counts:
            tokens = count(counts, name)
            if tokens is not None:
                self._counts[name] = tokens
        response = plain.response if isinstance(plain.response, dict) else {}
        raw = plain.stop_reason or plain.completion_reason or plain.finish_reason or response.get("finish_reason")
        if isinstance(raw, str):
            self._sequence = plain.stop
            one = plain.finish_reason is not None and plain.index is not None
            for choice in (choice_index(plain.index),) if one else self._blocks or (0,):
                self._finish.setdefault(choice, raw)
        self.start()

    def _read_answer(self, number: int, answer: Output) -> None:
        index = choice_index(answer.index, number)
        blocks = self.blocks(index)
        text = answer.text or answer.output_text
        if text:
            blocks.text(text)
        raw = answer.stop_reason or answer.finish_reason or answer.completion_reason
        if raw:
            self._finish[index] = raw
        tokens = count({"output": answer.token_count}, "output")
        if tokens is not None:
            self._counts["output"] = min(self._counts.get("output", 0) + tokens, MAX_TOKENS)

    def _read_calls(self, calls: list[JsonValue]) -> None:
        """Calls that arrive complete, with a name and an object, and without an id."""
        blocks = self.blocks()
        for call in calls:
            if isinstance(call, dict) and isinstance(call.get("name"), str) and call["name"]:
                block = blocks.open_call("", call["name"])
                blocks.add(block, msgspec.json.encode(clean(call.get("parameters") or {})).decode())
                blocks.end(block)

    def _end_plain(self) -> None:
        for blocks in self._blocks.values():
            blocks.finish()
        self.start()
        if self._metrics is not None:
            self.emit(self._metrics)
        elif self._counts:
            self.emit(Usage(self._counts.get("input"), self._counts.get("output"), raw=dict(self._counts)))
        for index in sorted(self._blocks, reverse=True):
            if index:
                self.emit(StreamEnd(*self._reason(index)), index)
        self.end(*self._reason(0))

    def _reason(self, index: int) -> tuple[StopReason, str | None, str | None]:
        raw = self._finish.get(index)
        if raw is not None and raw.lower() == "error":
            raise UpstreamRefused(f"the model ended its answer with the reason {raw!r} and no explanation")
        reason = REASONS.get(raw.lower(), "other") if raw else "other"
        sequence = self._sequence
        if sequence == TURN_END:
            reason, sequence = "end", None
        if reason in ("end", "other"):
            if self._guarded:
                reason = "content_filter"
            elif index in self._blocks and self._blocks[index].calls:
                reason = "tool_calls"
        return reason, raw, sequence


def _renamed(body: JsonValue) -> JsonValue:
    """A chat chunk whose choices have ``stop_reason`` instead of the dialect's own name."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not any(isinstance(choice, dict) and "stop_reason" in choice for choice in choices):
        return body
    if any(isinstance(choice, dict) and "finish_reason" in choice for choice in choices):
        return body
    renamed = []
    for choice in choices:
        if isinstance(choice, dict):
            choice = {name: value for name, value in choice.items() if name != "stop_reason"} | {
                "finish_reason": choice.get("stop_reason")
            }
        renamed.append(choice)
    return {**body, "choices": renamed}


def _citation(citation: JsonObject) -> Citation:
    start, end = (value if isinstance(value := citation.get(name), int) else None for name in ("start", "end"))
    return Citation(start=start, end=end, native=Echo(DIALECT, citation))


# --- complete responses

_DIALECT_OF: Final = {"anthropic": "anthropic", "nova": "bedrock_converse", "openai": "openai_chat"}
"""The dialect of the responses of each family."""


def build(response: Response, *, strict: bool = False, family: str = "anthropic") -> JsonObject:
    if family not in _DIALECT_OF:
        raise ConfigError(f"a response cannot be written for the family {family!r}; supported families: {', '.join(_DIALECT_OF)}")
    return dialect(_DIALECT_OF[family]).build_response(response, strict=strict)
