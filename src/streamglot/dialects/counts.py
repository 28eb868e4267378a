"""Finish reasons and token counts: the tables between the words of a wire and ours. An upstream's usage object may contain anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from ..events import StopReason, Usage
from ..json_types import JsonObject, JsonValue
from ..messages import TokenCounts

MAX_TOKENS: Final = 2**40
"""The maximum token count: a million times the largest context. A larger number is not a count, and the sum over millions of
answers must fit into 64 bits."""
MAX_DEPTH: Final = 8
"""Maximum nesting of a usage object; no provider has more than three levels."""
_NO_FIELDS: Final[frozenset[str]] = frozenset()
COMPLETION_USAGE_FIELDS: Final = {
    **dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _NO_FIELDS),
    "prompt_tokens_details": frozenset(("audio_tokens", "cache_write_tokens", "cached_tokens", "image_tokens", "text_tokens")),
    "completion_tokens_details": frozenset(
        ("accepted_prediction_tokens", "audio_tokens", "reasoning_tokens", "rejected_prediction_tokens", "text_tokens")
    ),
}
"""The fields of a usage object in the specifications of chat completions and of legacy completions."""


def two_way(rows: Mapping[StopReason, tuple[str, ...]], other: str = "") -> tuple[dict[str, StopReason], dict[StopReason, str]]:
    """What each finish reason of a wire means, and the word that is written for each of our reasons.

    A row has the words for one of our reasons. The first is written; all are read. A word in several rows means the first of them.
    ``other`` is written for a reason without a row.
    """
    read: dict[str, StopReason] = {}
    for reason, words in rows.items():
        for word in words:
            read.setdefault(word, reason)
    written: dict[StopReason, str] = dict.fromkeys(get_args(StopReason), other)
    return read, written | {reason: words[0] for reason, words in rows.items()}


def count(raw: JsonObject, *names: str) -> int | None:
    """The first of these fields that contains a count. A negative number counts as 0."""
    for name in names:
        value = raw.get(name)
        if (type(value) is int or type(value) is float) and value < MAX_TOKENS:
            return int(value) if value > 0 else 0
    return None


def details(raw: JsonObject, *names: str) -> JsonObject:
    """The first of these fields that contains an object; an empty one if none does."""
    for name in names:
        value = raw.get(name)
        if isinstance(value, dict):
            return value
    return {}


def first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def total(*values: int | None) -> int | None:
    """The sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def totals(counts: dict[str, int | None], before: Usage | None, raw: JsonObject) -> Usage:
    """Running totals: values that this usage object lacks stay as they were."""
    if before is not None:
        counts = {name: getattr(before, name) if value is None else value for name, value in counts.items()}
    return Usage(**counts, raw=plausible(raw))


def plausible(raw: JsonObject, depth: int = 0) -> JsonObject:
    """The usage object for clients of its own dialect: the same object, or a copy in which invalid counts are 0."""
    if _all_counts_valid(raw, depth):
        return raw
    return {name: _plausible(name, value, depth) for name, value in raw.items()}


def specified(raw: JsonObject, fields: Mapping[str, frozenset[str]]) -> JsonObject:
    """The fields of a usage object that the specification has. A field with a set of names is an object with these fields."""
    kept = {name: value for name, value in raw.items() if name in fields}
    for name, inner in fields.items():
        if inner and isinstance(kept.get(name), dict):
            kept[name] = {key: value for key, value in kept[name].items() if key in inner}
    return kept


def _all_counts_valid(raw: JsonObject, depth: int) -> bool:
    """Whether every number in this object would be a valid count. This is the usual case, and it needs no copy."""
    for value in raw.values():
        kind = type(value)
        if kind is int or kind is float:
            if not 0 <= value < MAX_TOKENS:
                return False
        elif isinstance(value, list) or (
            isinstance(value, dict) and (depth >= MAX_DEPTH or not _all_counts_valid(value, depth + 1))
        ):
            return False
    return True


def completion_usage(usage: Usage | TokenCounts | None, strict: bool = False) -> JsonObject | None:
    """The usage object of chat and text completions. It is the provider's own if that has this form, so that costs and details survive."""
    if usage is None or (usage.input_tokens is None and usage.output_tokens is None):
        return None
    if usage.raw and "prompt_tokens" in usage.raw and "completion_tokens" in usage.raw:
        return specified(usage.raw, COMPLETION_USAGE_FIELDS) if strict else usage.raw
    prompt, completion = usage.input_tokens or 0, usage.output_tokens or 0
    body: JsonObject = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if usage.cached_tokens is not None or usage.cache_write_tokens:
        body["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens or 0}
        if usage.cache_write_tokens:
            body["prompt_tokens_details"]["cache_write_tokens"] = usage.cache_write_tokens
    if usage.reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return body


def camel_case_usage(usage: Usage) -> JsonObject:
    """The usage object of user interface protocols."""
    both = usage.input_tokens is not None and usage.output_tokens is not None
    counts = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": total(usage.input_tokens, usage.output_tokens) if both else None,
        "reasoningTokens": usage.reasoning_tokens,
        "cachedInputTokens": usage.cached_tokens,
        "cacheWriteInputTokens": usage.cache_write_tokens,
    }
    return {name: value for name, value in counts.items() if value is not None}


def _plausible(name: str, value: JsonValue, depth: int) -> JsonValue:
    if isinstance(value, dict):
        return plausible(value, depth + 1) if depth < MAX_DEPTH else {}
    if isinstance(value, list):
        return [_plausible(name, element, depth + 1) for element in value] if depth < MAX_DEPTH else []
    if type(value) in (int, float) and not 0 <= value < MAX_TOKENS and _is_count(name):
        return 0
    return value


def _is_count(name: str) -> bool:
    """Whether a field is a token count by its name. Prices and times may be negative."""
    name = name.lower()
    return "token" in name or "count" in name
