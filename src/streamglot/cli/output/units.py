"""Times, sizes, prices and token counts as text. Times and sizes are also read: 90m, 2d, 1.5GB, 2025-11-30."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ...errors import ConfigError, excerpt

if TYPE_CHECKING:
    from ...messages import TokenCounts

_AMOUNT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "y": 31_557_600.0}
_SIZES: Final = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BYTES: Final = {
    **_SIZES,
    **{f"{unit}b": size for unit, size in _SIZES.items() if unit not in ("", "b")},
    **{f"{unit}ib": 2 ** (10 * power) for power, unit in enumerate("kmgt", 1)},
}


def seconds(text: str) -> float:
    return _amount(text, SECONDS, "time; write 90s, 30m, 12h, 30d, 2w or 1y")


def size(text: str) -> int:
    return int(_amount(text, BYTES, "size; write 500MB, 1GB or 2GiB"))


def parse_time(text: str, now: float) -> float:
    """The time of a duration before now, or of a date with or without a time of day, in local time."""
    if re.match(r"\d{4}-", text):
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise ConfigError(f"{text!r} is not a date; write 2025-11-30 or 2025-11-30T18:00") from None
    return now - seconds(text)


def shown_time(when: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return datetime.fromtimestamp(when).strftime(form)


def shown_size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count} {unit}"
        count = round(count / 1000)
    return f"{count} GB"


def _amount(text: str, units: Mapping[str, float], what: str) -> float:
    found = _AMOUNT.fullmatch(text)
    amount = float(found[1]) * units.get(found[2].lower(), math.nan) if found is not None else math.nan
    if not math.isfinite(amount):
        raise ConfigError(f"{excerpt(text)} is not a {what}")
    return amount


UNKNOWN = "unknown"


def tokens(usage: TokenCounts) -> str:
    words = [f"{_shown(usage.input_tokens)} tokens in", f"{_shown(usage.output_tokens)} out"]
    if usage.cached_tokens:
        words.append(f"{usage.cached_tokens} from cache")
    if usage.reasoning_tokens:
        words.append(f"{usage.reasoning_tokens} of reasoning")
    return ", ".join(words)


def money(dollars: float | None) -> str:
    return UNKNOWN if dollars is None else f"${dollars:.6f}".rstrip("0").rstrip(".")


def _shown(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)
