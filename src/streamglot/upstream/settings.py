"""One upstream, as the configuration says it."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal

from msgspec import Struct, field

from ..dialects.abilities import NONE_SAID, Abilities
from ..errors import BadCall
from .secrets import secrets_in_url, shown_url


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds. ``first_byte`` is long because models think; ``idle`` is the longest gap between two reads after that."""

    connect: float = 10.0
    first_byte: float = 600.0
    idle: float = 180.0
    total: float = 3600.0


class BreakerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """When an upstream is left alone: after so many failures in a row (fewer are bad luck), for so many seconds (long
    enough for a restart, short enough not to be noticed after one)."""

    failures: int = 5
    seconds: float = 20.0


class Upstream(Struct, kw_only=True, forbid_unknown_fields=True):
    """``key`` is never shown: ``key_env`` names the variable that it comes from.

    ``models`` are patterns, or a table from our names to theirs; a name in it may be a pattern too, and an exact name comes
    first. ``stream``: ask for a stream as the client did, always, or
    never. ``bad_call``: what becomes of a tool call that cannot be parsed.
    ``tools``: send them as tools, or as words for a model that has none. ``concurrent``: streams at once, 0 is no
    limit. ``attempts`` and ``pause``: how often it is asked, and the seconds before the second time. ``pass_key``: the
    client's own key is sent in place of ours. ``ca_file``: whom to trust beside the usual authorities. ``options`` go to
    the dialect's request builder and endpoint (the name of the token limit, an API version). ``abilities`` change what is
    known of this upstream's: what it takes beyond its dialect, or does not take.
    """

    name: str = ""
    dialect: str = "openai_chat"
    base_url: str = ""
    key: str = ""
    key_env: str = ""
    models: list[str] | dict[str, str] = field(default_factory=lambda: ["*"])
    inband: str = "auto"
    bad_call: BadCall = "incomplete"
    tools: Literal["native", "prompt"] = "native"
    headers: dict[str, str] = field(default_factory=dict)
    proxy: str | None = None
    ca_file: str = ""
    timeouts: Timeouts = Timeouts()
    rest: BreakerSettings = BreakerSettings()
    concurrent: int = 0
    attempts: int = 3
    pause: float = 0.25
    pass_key: bool = False
    stream: Literal["same", "always", "never"] = "same"
    options: dict[str, Any] = field(default_factory=dict)
    abilities: Abilities = NONE_SAID

    def model_for(self, model: str) -> str | None:
        """This upstream's name for a model; None if it does not serve it."""
        if isinstance(self.models, dict):
            if model in self.models:
                return self.models[model]
            return next((theirs for pattern, theirs in self.models.items() if fnmatchcase(model, pattern)), None)
        return model if any(fnmatchcase(model, pattern) for pattern in self.models) else None

    @property
    def listed(self) -> list[str]:
        """The models that can be named without asking: those that are no pattern."""
        return [model for model in self.models if not any(mark in model for mark in "*?[")]

    @property
    def place(self) -> str:
        """Where it is, without what may be secret in the address."""
        return shown_url(self.base_url) or "in this process"

    def secrets(self) -> Iterator[str]:
        """What must not be seen outside: the key, headers and options that hold one, and what is secret in an address."""
        yield self.key
        for name, value in (*self.headers.items(), *self.options.items()):
            if is_secret(name) and isinstance(value, str):
                yield value
                yield value.rpartition(" ")[2]
        yield from secrets_in_url(self.base_url)
        if self.proxy:
            yield from secrets_in_url(self.proxy)


SECRET_WORDS = frozenset(("key", "apikey", "token", "secret", "auth", "authorization", "password", "cookie", "hash"))


def is_secret(name: str) -> bool:
    """Does a setting or a header of this name hold something that must not be shown? ``key_env`` and ``env_key`` name a variable."""
    words = name.lower().replace("-", "_").split("_")
    return "env" not in (words[0], words[-1]) and not SECRET_WORDS.isdisjoint(words)
