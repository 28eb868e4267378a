"""The named detectors: rules that are data (``detectors.toml``), read once; and the checks that a match must pass in addition to
its pattern: check digits, and forms that no expression can test."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import resources
from typing import Final

import msgspec
from msgspec import Struct, field

from ..errors import ConfigError, excerpt
from .scanner import Pattern

RULES_FILE: Final = "detectors.toml"


def luhn(text: str) -> bool:
    """13 to 19 digits whose check digit is right: a payment card."""
    digits = [int(char) for char in text if "0" <= char <= "9"]
    doubled = (digit * 2 - 9 if digit > 4 else digit * 2 for digit in digits[-2::-2])
    return 13 <= len(digits) <= 19 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def iban(text: str) -> bool:
    """Whether an international bank account number has the right check digits (remainder 1 by 97)."""
    packed = text.replace(" ", "")
    if not 15 <= len(packed) <= 34:
        return False
    number = "".join(str(int(char, 36)) for char in packed[4:] + packed[:4])
    return int(number) % 97 == 1


def ipv6(text: str) -> bool:
    """An address with at least three parts that are not empty, so that times of day and scope operators are not taken for
    addresses."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return text == "::1" or len([part for part in text.split(":") if part]) >= 3


def phone(text: str) -> bool:
    """7 to 15 digits, as telephone numbers have."""
    return 7 <= sum("0" <= char <= "9" for char in text) <= 15


CHECKS: Final[dict[str, Callable[[str], bool]]] = {"luhn": luhn, "iban": iban, "ipv6": ipv6, "phone": phone}


class PatternRule(Struct, forbid_unknown_fields=True):
    pattern: str
    check: str = ""
    min_chars: int = 0
    max_chars: int = 0
    example: str = ""


class Detector(Struct, forbid_unknown_fields=True):
    title: str
    patterns: dict[str, PatternRule] = field(default_factory=dict)


@lru_cache(1)
def detectors() -> dict[str, Detector]:
    """All named detectors."""
    text = resources.files(__package__).joinpath(RULES_FILE).read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Detector])


def patterns_of(names: Iterable[str]) -> list[Pattern]:
    """The patterns of these detectors; ConfigError for an unknown name."""
    known = detectors()
    found: list[Pattern] = []
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no detector {excerpt(name)}; choose from {', '.join(known)}, or write a pattern")
        for label, rule in known[name].patterns.items():
            check = CHECKS[rule.check] if rule.check else None
            found.append(Pattern(name, rule.pattern, label, check, rule.min_chars, rule.max_chars))
    return found
