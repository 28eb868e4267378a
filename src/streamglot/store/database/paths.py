"""Where the database is: database URLs, and the file that is the default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode

from msgspec import Struct

from ...errors import ConfigError
from ...installation import data_directory as data_directory

FILE_NAME: Final = "streamglot.db"
_SERVERS: Final = ("postgres", "postgresql", "postgresql+asyncpg")
_PLAIN: Final = " +/"
"""Characters of a path that a URL shows as they are."""
_LARGEST_PORT: Final = 65_535
_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^\[\]:]*))(?::(\d+))?")
_NUMBERS: Final = {"port": int, "command_timeout": float, "statement_cache_size": int}
_RENAMED: Final = {"sslmode": "ssl", "prepared_statement_cache_size": "statement_cache_size"}
"""Parameters by the name that the driver gives them."""
_PARAMETERS: Final = (
    *("sslmode", "ssl", "host", "port", "user", "password", "database", "passfile", "service", "servicefile"),
    *("target_session_attrs", "krbsrvname", "gsslib", "command_timeout", "prepared_statement_cache_size"),
)
"""Parameters of a PostgreSQL URL."""
_NO_URL: Final = "store.url is not a URL; write sqlite:///path or postgresql://user@host:port/name"
SqlOptions: TypeAlias = dict[str, Any]  # Any: text, a number or a list of hosts, as the option has it


class Place(Struct):
    """A database: a file, or a server with the ``options`` of ``asyncpg.connect``. ``shown`` is its URL without the password."""

    shown: str
    file: Path | None = None
    options: SqlOptions = {}


def default_url(environment: Mapping[str, str] | None = None) -> str:
    return f"sqlite:///{quote(str(data_directory(environment) / FILE_NAME), safe=_PLAIN)}"


def place_of(url: str) -> Place:
    """Where a database is. Error messages never contain the password."""
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme:
        raise ConfigError(_NO_URL)
    if scheme == "sqlite":
        name = unquote(rest.removeprefix("/").partition("?")[0])
        if not rest.startswith("/") or not name or name == ":memory:":
            raise ConfigError(
                "store.url names no file; an in-memory database would lose everything, so switch the store off instead"
            )
        file = Path(name).expanduser().absolute()
        return Place(f"sqlite:///{quote(str(file), safe=_PLAIN)}", file)
    if scheme not in _SERVERS:
        raise ConfigError(f"store.url begins with {scheme!r}; it must begin with sqlite:/// or postgresql://")
    return _server(rest)


def _server(rest: str) -> Place:
    """The options in ``user:password@host:port/database?name=value``. They stand before those in the query."""
    rest, _, query = rest.partition("?")
    address, _, database = rest.partition("/")
    login, at, address = address.rpartition("@")
    user, colon, password = login.partition(":")
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ConfigError(_NO_URL)
    host, port = found[1] or found[2], found[3]
    options: SqlOptions = {"host": host, "port": port, "database": unquote(database)}
    options |= {"user": unquote(user), "password": unquote(password)}
    more = parse_qsl(query, keep_blank_values=True)
    for name, value in more:
        if name not in _PARAMETERS:
            raise ConfigError(f"store.url has the parameter {name[:40]!r}; it may have {', '.join(_PARAMETERS)}")
        name = _RENAMED.get(name, name)
        options[name] = [*_hosts(options), value] if name == "host" and options.get("host") else value
    shown = f"{quote(unquote(user))}{':***' if colon else ''}{at}{address}/{database}"
    named = [(_RENAMED.get(name, name), "***" if name == "password" else value) for name, value in more]
    shown += f"?{urlencode(named, safe='/')}" if named else ""
    return Place(f"postgresql://{shown}", None, {name: _as(name, value) for name, value in options.items() if value})


def _hosts(options: SqlOptions) -> list[str]:
    host = options["host"]
    return host if isinstance(host, list) else [host]


def _as(name: str, value: Any) -> Any:  # Any: as in ``SqlOptions``
    """The value of an option in the type that the driver takes."""
    if name not in _NUMBERS:
        return value
    try:
        number = _NUMBERS[name](value)
    except ValueError:
        raise ConfigError(f"store.url has a {name} that is not a number: {value[:40]!r}") from None
    if name == "port" and not 0 < number <= _LARGEST_PORT:
        raise ConfigError(f"store.url has the port {number}; it must be a number from 1 to {_LARGEST_PORT}")
    return number
