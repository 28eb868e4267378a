"""The content of an InvokeModel chunk: its model family, and the fields of the plain families.

Families with their own dialect are read by that dialect. The plain ones write text, a reason and counts under various names; one
struct has them all, because no name has two meanings.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from ...json_types import JsonObject, JsonValue
from ..common.tables import UsageFields, two_way

DIALECT: Final = "bedrock_invoke"
PLAIN: Final = "plain"
METRICS: Final = "amazon-bedrock-invocationMetrics"
_MESSAGE_EVENTS: Final = ("message", "message_start", "message_delta", "message_stop", "ping", "error")


class Part(Struct, gc=False):
    """A chunk on the wire: the model's output in base64 (and padding, which is ignored)."""

    bytes: str | None = None


class Service(Struct, gc=False):
    """The fields that the service adds to the model's output."""

    metrics: JsonObject | None = msgspec.field(default=None, name=METRICS)
    action: str | None = msgspec.field(default=None, name="amazon-bedrock-guardrailAction")
    trace: JsonValue = msgspec.field(default=None, name="amazon-bedrock-trace")


class Output(Struct, gc=False):
    """One of several answers of a plain family."""

    text: str | None = None
    index: float | None = None
    stop_reason: str | None = None
    finish_reason: str | None = None
    output_text: str | None = msgspec.field(default=None, name="outputText")
    completion_reason: str | None = msgspec.field(default=None, name="completionReason")
    token_count: float | None = msgspec.field(default=None, name="tokenCount")


class Plain(Struct, gc=False):
    output_text: str | None = msgspec.field(default=None, name="outputText")
    generation: str | None = None
    completion: str | None = None
    text: str | None = None
    stop_reason: str | None = None
    finish_reason: str | None = None
    completion_reason: str | None = msgspec.field(default=None, name="completionReason")
    stop: str | None = None
    index: float | None = None
    event_type: str | None = None
    response: JsonValue = None
    tool_calls: list[JsonValue] | None = None
    citations: list[JsonValue] | None = None
    outputs: list[Output] | None = None
    choices: list[Output] | None = None
    results: list[Output] | None = None
    generations: list[Output] | None = None
    input_count: float | None = msgspec.field(default=None, name="inputTextTokenCount")
    output_count: float | None = msgspec.field(default=None, name="totalOutputTextTokenCount")
    prompt_token_count: float | None = None
    generation_token_count: float | None = None


class ConverseChunk(Struct, gc=False, rename="camel"):
    """One event, named by the field that contains it."""

    message_start: msgspec.Raw = msgspec.Raw()
    content_block_start: msgspec.Raw = msgspec.Raw()
    content_block_delta: msgspec.Raw = msgspec.Raw()
    content_block_stop: msgspec.Raw = msgspec.Raw()
    message_stop: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()

    def event(self) -> tuple[bytes, str] | None:
        for field, wire in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            raw = bytes(getattr(self, field))
            if raw:
                return raw, wire
        return None


converse_decoder: Final = msgspec.json.Decoder(ConverseChunk)
part_decoder: Final = msgspec.json.Decoder(Part)
service_decoder: Final = msgspec.json.Decoder(Service)
plain_decoder: Final = msgspec.json.Decoder(Plain)

REASONS, _ = two_way(
    {
        "end": ("stop", "finish", "finished", "complete", "end_turn", "endoftext"),
        "stop_sequence": ("stop_sequence",),
        "length": ("length", "max_tokens", "error_limit"),
        "tool_calls": ("tool_calls", "tool_call"),
        "content_filter": ("content_filter", "content_filtered", "error_toxic"),
        "cancelled": ("user_cancel",),
    }
)
"""The stop reasons of the plain families, in lower case."""
MAX_CHOICES: Final = 1000
"""More simultaneous answers than this mean a broken index."""
TURN_END: Final = "\n\nHuman:"
"""The sequence at which the oldest models end every turn. It is not a stop sequence of the client."""


def family_of(body: JsonObject) -> str:
    """The dialect that reads this body, or ``PLAIN``; empty if it is not a model's output."""
    kind = body.get("type")
    choices = body.get("choices")
    if isinstance(choices, list):
        first = choices[0] if choices and isinstance(choices[0], dict) else {}
        return PLAIN if "text" in first else "openai_chat"
    if isinstance(kind, str):
        if kind in _MESSAGE_EVENTS or kind.startswith("content_block_"):
            return "anthropic"
        if kind.startswith(("message-", "content-", "tool-call-", "tool-plan-", "citation-")):
            return "cohere"
    if any(name in body for name in ConverseChunk.__struct_encode_fields__) or isinstance(body.get("output"), dict):
        return "bedrock_converse"
    return PLAIN if any(name in body for name in _PLAIN_FIELDS) else ""


_PLAIN_FIELDS: Final = frozenset(
    (
        *("outputText", "results", "generation", "generations", "completion", "outputs"),
        *("text", "event_type", "is_finished", "finish_reason"),
    )
)


USAGE: Final = UsageFields(
    input=("inputTokenCount",),
    output=("outputTokenCount",),
    cached=("cacheReadInputTokenCount",),
    cache_write=("cacheWriteInputTokenCount",),
    apart=("cached", "cache_write"),
)
"""The service's own counts."""


def choice_index(index: float | None, number: int = 0) -> int:
    """The choice for an index; ``number`` if the index is invalid."""
    return int(index) if index is not None and 0 <= index < MAX_CHOICES else number
