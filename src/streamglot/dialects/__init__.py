"""Wire formats: frames to events and back, one package for each. A dialect knows its own wire format and the events, and no other
dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

from ..errors import ConfigError, did_you_mean
from ..names import DialectName
from .interface import Dialect

__all__ = ["DIALECTS", "Dialect", "dialect"]


_loaded: dict[str, Dialect] = {}
"""The dialects that have been looked up."""


class _Dialects(Mapping[str, Dialect]):
    """The dialects by name. A package is imported when its dialect is first looked up: twelve packages take 3 ms of CPU, and most
    processes use two. The package ``NAME`` has the object ``NAME`` in capital letters."""

    def __init__(self, *names: str) -> None:
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Dialect:
        if name not in self._names:
            raise KeyError(name)
        if name not in _loaded:
            _loaded[name] = getattr(import_module(f".{name}", __name__), name.upper())
        return _loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


DIALECTS: Final[Mapping[str, Dialect]] = _Dialects(
    "openai_chat",
    "openai_responses",
    "anthropic",
    "gemini",
    "agui",
    "vercel_ui",
    "ollama",
    "qwen_web",
    "openai_completions",
    "bedrock_converse",
    "bedrock_invoke",
    "cohere",
)


def dialect(name: DialectName | str) -> Dialect:
    """The dialect of this ``name``: one object with everything that one wire format can do.

        streamglot.dialect("anthropic").parse_request(body)

    Gives the same ``Dialect`` for the same name. Raises ``ConfigError`` for a name that is not in ``DIALECTS``.
    """
    found = _loaded.get(name)
    if found is not None:
        return found
    try:
        return DIALECTS[name]
    except KeyError:
        raise ConfigError(
            f"there is no dialect {name!r}{did_you_mean(name, DIALECTS)}; there are {', '.join(DIALECTS)}"
        ) from None
