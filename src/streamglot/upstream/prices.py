"""What an answer cost, where the price of its model is known; nothing is asked of a network."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from ..messages import TokenCounts
from .local import NAME as LOCAL
from .providers import PROVIDERS

_PAID: Final = frozenset(provider.name for provider in PROVIDERS if provider.key_env)
"""Upstreams with a price list. For all others it need not be loaded."""


def price(usage: TokenCounts, model: str, upstream: str) -> float | None:
    """In US dollars; None where it is not known."""
    if upstream == LOCAL:
        return 0.0
    if upstream not in _PAID or usage.input_tokens is None or usage.output_tokens is None:
        return None
    prices = _prices()
    if prices is None:
        return None
    try:
        counted = prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        return _total(prices, counted, model, upstream)
    except (LookupError, ValueError, TypeError, ArithmeticError):  # no such model, or counts that nobody can have used
        return None


def _total(prices: Any, counted: Any, model: str, upstream: str) -> float:
    """The names of some providers' models have their maker in front; others know them without."""
    try:
        return float(prices.calc_price(counted, model_ref=model, provider_id=upstream).total_price)
    except LookupError:
        return float(prices.calc_price(counted, model_ref=model.rpartition("/")[2], provider_id=upstream).total_price)


@lru_cache(1)
def _prices() -> Any:
    """The table of prices: a package that may be missing, and that takes a while to load."""
    try:
        import genai_prices
    except ModuleNotFoundError:
        return None
    return genai_prices


def load_prices() -> None:
    """Loads the price list before the first price is asked for."""
    _prices()
