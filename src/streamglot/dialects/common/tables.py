"""Finish reasons and token counts: the tables between the words of a wire and ours. An upstream's usage object may contain anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias, get_args

from ...events import StopReason, Usage
from ...json_types import JsonObject, JsonValue
from ...messages import TokenCounts

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


def total(*values: int | None) -> int | None:
    """The sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class UsageFields:
    """Where the counts are in the usage objects of a wire, in both directions.

    A row has the places of one count: a field, or ``details.field`` of an object inside. The first that has a count applies.
    ``a|b.field``: of the first of these objects that there is. The first place is the one that is written.

    - ``apart``: counts that the wire's input (``cached``, ``cache_write``) or output (``reasoning``) does not include; ours does.
    - ``written``: what is written, in this order, as far as it is known; input and output always, and what is in ``always``.
    - ``sum``: the field for the sum of input and output.
    """

    def __init__(
        self,
        *,
        input: tuple[str, ...],
        output: tuple[str, ...],
        cached: tuple[str, ...] = (),
        cache_write: tuple[str, ...] = (),
        reasoning: tuple[str, ...] = (),
        sum: str = "",
        apart: tuple[str, ...] = (),
        written: tuple[str, ...] = (),
        always: tuple[str, ...] = (),
    ) -> None:
        places = {"input": input, "output": output, "cached": cached, "cache_write": cache_write, "reasoning": reasoning}
        self._places = tuple(tuple(map(_place, row)) for row in places.values())
        self._cache_apart, self._reasoning_apart = "cached" in apart, "reasoning" in apart
        self._written = tuple((name, *_place(sum if name == "sum" else places[name][0])) for name in written)
        self._always = frozenset(("input", "output", *always))

    def read(self, raw: JsonObject, before: Usage | None = None) -> Usage:
        """The counts of a usage object. ``before``: running totals, which stay as they were where this object has no count."""
        row = self._places
        input, output, cached = _find(raw, row[0]), _find(raw, row[1]), _find(raw, row[2])
        cache_write, reasoning = _find(raw, row[3]), _find(raw, row[4])
        if self._cache_apart:
            input = total(input, cached, cache_write)
        if self._reasoning_apart:
            output = total(output, reasoning)
        if before is not None:
            input = before.input_tokens if input is None else input
            output = before.output_tokens if output is None else output
            cached = before.cached_tokens if cached is None else cached
            cache_write = before.cache_write_tokens if cache_write is None else cache_write
            reasoning = before.reasoning_tokens if reasoning is None else reasoning
        return Usage(input, output, cached, cache_write, reasoning, plausible(raw))

    def write(self, usage: Usage | TokenCounts) -> JsonObject:
        """The usage object for these counts."""
        input, output = usage.input_tokens or 0, usage.output_tokens or 0
        cached, cache_write, reasoning = usage.cached_tokens, usage.cache_write_tokens, usage.reasoning_tokens
        counts = {"sum": input + output, "cached": cached, "cache_write": cache_write, "reasoning": reasoning}
        if self._cache_apart:
            whole = (cached or 0) + (cache_write or 0) if usage.input_tokens is None else input
            read = min(cached or 0, whole)
            stored = min(cache_write or 0, whole - read)
            input = whole - read - stored
            counts |= {"cached": None if cached is None else read, "cache_write": None if cache_write is None else stored}
        if self._reasoning_apart and reasoning is not None:
            counts["reasoning"] = min(reasoning, output)
            output -= min(reasoning, output)
        counts |= {"input": input, "output": output}
        body: JsonObject = {}
        for name, outer, field in self._written:
            value = counts[name]
            if value is not None or name in self._always:
                (body.setdefault(outer[0], {}) if outer else body)[field] = value or 0
        return body


_Place: TypeAlias = tuple[tuple[str, ...], str]
"""The names of an object inside, and of a field in it; no names for a field of the usage object itself."""


def _place(name: str) -> _Place:
    outer, _, field = name.rpartition(".")
    return tuple(filter(None, outer.split("|"))), field


def _find(raw: JsonObject, places: tuple[_Place, ...]) -> int | None:
    for outer, field in places:
        holder: JsonValue = raw
        for name in outer:
            holder = raw.get(name)
            if type(holder) is dict:
                break
        else:
            if outer:
                continue
        value = holder.get(field)
        if (type(value) is int or type(value) is float) and value < MAX_TOKENS:
            return int(value) if value > 0 else 0
    return None


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
