"""The named detectors: rules that are data (``detectors.toml``), read once."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from typing import Final

import msgspec
from msgspec import Struct, field

from ..errors import ConfigError, excerpt
from .checks import CHECKS
from .scanner import Pattern

RULES_FILE: Final = "detectors.toml"


class Rule(Struct, forbid_unknown_fields=True):
    pattern: str
    check: str = ""
    min_chars: int = 0
    max_chars: int = 0
    example: str = ""


class Detector(Struct, forbid_unknown_fields=True):
    title: str
    patterns: dict[str, Rule] = field(default_factory=dict)


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
