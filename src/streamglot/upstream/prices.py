"""The cost of an answer, if the price of its model is known. No network is used."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Final

from ..messages import TokenCounts
from .local import NAME as LOCAL
from .providers import PROVIDERS

_PAID: Final = frozenset(provider.name for provider in PROVIDERS if provider.key_env)
"""Upstreams with a price list. For others the price data is not loaded."""


def price(usage: TokenCounts, model: str, upstream: str) -> float | None:
    """The price in US dollars; None if unknown."""
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
    except (LookupError, ValueError, TypeError, ArithmeticError):  # an unknown model, or impossible counts
        return None


def _total(prices: ModuleType, counted: object, model: str, upstream: str) -> float:
    """Some providers prefix a model's name with its maker; the price list has the name without it."""
    try:
        return float(prices.calc_price(counted, model_ref=model, provider_id=upstream).total_price)
    except LookupError:
        return float(prices.calc_price(counted, model_ref=model.rpartition("/")[2], provider_id=upstream).total_price)


@lru_cache(1)
def _prices() -> ModuleType | None:
    """The price data: an optional package that is slow to load."""
    try:
        import genai_prices
    except ModuleNotFoundError:
        return None
    return genai_prices


def load_prices() -> None:
    """Loads the price list before the first price is asked for."""
    _prices()
