"""A prompt template with the columns of a row: ``Summarise: {text}``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import Formatter

import msgspec

from ...errors import ConfigError, RequestError
from ...json_types import JsonValue


class Template:
    """``{name}`` stands for the cell of that column, ``{{`` and ``}}`` for braces."""

    def __init__(self, text: str) -> None:
        self._pieces: list[tuple[str, str | None]] = []
        try:
            for literal, name, form, conversion in Formatter().parse(text):
                if form or conversion or name == "":
                    raise ConfigError(f"the prompt {text!r} has braces without a column name; write {{{{ and }}}} for braces")
                self._pieces.append((literal, name))
        except ValueError as error:
            raise ConfigError(f"the prompt {text!r} is not a valid template ({error}); write {{{{ and }}}} for braces") from None

    @property
    def names(self) -> list[str]:
        return [name for _, name in self._pieces if name is not None]

    def check(self, columns: Iterable[str]) -> None:
        """Refuses a template with columns that the file does not have."""
        known = list(columns)
        missing = [name for name in self.names if name not in known]
        if missing:
            raise ConfigError(f"the file has no column {missing[0]!r}; it has: {', '.join(known)}")

    def render(self, values: Mapping[str, JsonValue]) -> str:
        for name in self.names:
            if name not in values:
                raise RequestError(f"the row has no value for the column {name!r}")
        return "".join(literal + ("" if name is None else _text(values[name])) for literal, name in self._pieces)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()
