"""What an answer cost: tokens as the upstream counted them, and money where the price is known, without a network."""

from __future__ import annotations

from ..messages import TokenCounts
from ..upstream.local import NAME as LOCAL

UNKNOWN = "unknown"


def usage_line(usage: TokenCounts, model: str, upstream: str) -> str:
    words = [f"{_shown(usage.input_tokens)} tokens in", f"{_shown(usage.output_tokens)} out"]
    if usage.cached_tokens:
        words.append(f"{usage.cached_tokens} from cache")
    if usage.reasoning_tokens:
        words.append(f"{usage.reasoning_tokens} of reasoning")
    return f"{', '.join(words)}; cost: {cost(usage, model, upstream)}"


def cost(usage: TokenCounts, model: str, upstream: str) -> str:
    if upstream == LOCAL:
        return "nothing, it ran on this machine"
    if usage.input_tokens is None or usage.output_tokens is None:
        return UNKNOWN
    try:
        import genai_prices
    except ModuleNotFoundError:
        return f"{UNKNOWN} (pip install 'streamglot[cli]' has the prices)"
    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        price = genai_prices.calc_price(counted, model_ref=model.rsplit("/", 1)[-1], provider_id=upstream)
    except (LookupError, ValueError):
        return UNKNOWN
    return f"${price.total_price:.6f}".rstrip("0").rstrip(".")


def _shown(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)
