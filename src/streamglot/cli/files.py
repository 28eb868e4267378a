"""Reads files that the user names, up to a limit, because the name may be that of an endless device."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from ..errors import ConfigError
from ..json_types import JsonValue
from .output.terminal import well_formed
from .output.units import shown_size

SETTINGS_BYTES: Final = 4 * 2**20
"""Bytes of a schema, a list of tools or the settings of a client. Such files are written for people and stay small."""


def read_file(path: Path, limit: int, what: str = "the file") -> bytes:
    """Returns the bytes of a file. Raises ConfigError if it cannot be read or has more than ``limit`` bytes; the message calls it
    ``what``."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # a ValueError is a NUL in the name
        raise ConfigError(f"{what} {shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > limit:
        raise ConfigError(f"{what} {shown(path)} is larger than the limit of {shown_size(limit)}")
    return data


def read_json(data: bytes, what: str) -> JsonValue:
    """Returns the value of a JSON text. Error messages call the text ``what``."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(f"{what} is not valid JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{what} is nested too deeply to be read") from None


def shown(path: Path) -> str:
    """Returns the name of a file for messages and requests."""
    return well_formed(str(path))
