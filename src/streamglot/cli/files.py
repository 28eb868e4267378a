"""Reading files that the user names: never more than a limit, because a name may be that of a device without an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from ..errors import ConfigError
from .output.terminal import well_formed
from .output.units import shown_size

SETTINGS_BYTES: Final = 4 * 2**20
"""A schema, a list of tools, the settings of a client: people write them, or programs for people."""


def read_file(path: Path, limit: int, what: str = "the file") -> bytes:
    """The bytes of a file. One that cannot be read, or is larger than ``limit`` bytes, is a ConfigError that names it as
    ``what``."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # a ValueError is a NUL in the name
        raise ConfigError(f"{what} {shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > limit:
        raise ConfigError(f"{what} {shown(path)} is larger than {shown_size(limit)}, which is the most that is read")
    return data


def read_json(data: bytes, what: str) -> Any:  # any JSON value
    """The value of a JSON text, which messages call ``what``."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(f"{what} is not valid JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{what} is nested too deeply to be read") from None


def shown(path: Path) -> str:
    """The name of a file, for messages and requests."""
    return well_formed(str(path))
