"""The cost of an answer: the token counts, and the price if a built-in table has it."""

from __future__ import annotations

from ...messages import TokenCounts
from ...upstream.local import NAME as LOCAL
from ...upstream.prices import price

UNKNOWN = "unknown"


def usage_line(usage: TokenCounts, model: str, upstream: str, *, estimated: bool = False) -> str:
    return f"{tokens(usage)}{' (estimated)' if estimated else ''}; cost: {cost(usage, model, upstream)}"


def tokens(usage: TokenCounts) -> str:
    words = [f"{_shown(usage.input_tokens)} tokens in", f"{_shown(usage.output_tokens)} out"]
    if usage.cached_tokens:
        words.append(f"{usage.cached_tokens} from cache")
    if usage.reasoning_tokens:
        words.append(f"{usage.reasoning_tokens} of reasoning")
    return ", ".join(words)


def cost(usage: TokenCounts, model: str, upstream: str) -> str:
    return "nothing, it ran on this machine" if upstream == LOCAL else money(price(usage, model, upstream))


def money(dollars: float | None) -> str:
    return UNKNOWN if dollars is None else f"${dollars:.6f}".rstrip("0").rstrip(".")


def _shown(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)
