"""One upstream, as the configuration says it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Literal

from msgspec import Struct, field


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds. ``first_byte`` is long because models think; ``idle`` is the longest gap between two reads after that."""

    connect: float = 10.0
    first_byte: float = 600.0
    idle: float = 180.0
    total: float = 3600.0


class Upstream(Struct, kw_only=True, forbid_unknown_fields=True):
    """``key`` is never shown: ``key_env`` names the variable that it comes from.

    ``models`` are patterns, or a table from our names to theirs. ``stream``: ask for a stream as the client did, always, or
    never. ``options`` go to the dialect's request builder and endpoint (the name of the token limit, an API version).
    """

    name: str = ""
    dialect: str = "openai_chat"
    base_url: str = ""
    key: str = ""
    key_env: str = ""
    models: list[str] | dict[str, str] = field(default_factory=lambda: ["*"])
    inband: str = "auto"
    headers: dict[str, str] = field(default_factory=dict)
    proxy: str | None = None
    timeouts: Timeouts = Timeouts()
    concurrent: int = 0
    attempts: int = 3
    pass_key: bool = False
    stream: Literal["same", "always", "never"] = "same"
    options: dict[str, Any] = field(default_factory=dict)

    def model_for(self, model: str) -> str | None:
        """This upstream's name for a model; None if it does not serve it."""
        if isinstance(self.models, dict):
            if model in self.models:
                return self.models[model]
            return None
        return model if any(fnmatchcase(model, pattern) for pattern in self.models) else None

    @property
    def listed(self) -> list[str]:
        """The models that can be named without asking: those that are no pattern."""
        return [model for model in self.models if not any(mark in model for mark in "*?[")]
