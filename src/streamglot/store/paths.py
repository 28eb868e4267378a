"""Where the database is, and database URLs in the form that SQLAlchemy needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from ..directories import data_directory as data_directory
from ..errors import ConfigError

FILE_NAME: Final = "streamglot.db"
_DRIVERS: Final = {
    "sqlite": "sqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}
_LARGEST_PORT: Final = 65_535
_PARAMETERS: Final = (
    *("sslmode", "ssl", "host", "port", "user", "password", "database", "passfile", "service", "servicefile"),
    *("target_session_attrs", "krbsrvname", "gsslib", "command_timeout", "prepared_statement_cache_size"),
)
"""Parameters of a PostgreSQL URL: those that the driver takes as text, and those that SQLAlchemy converts."""


def default_url(environment: Mapping[str, str] | None = None) -> str:
    return URL.create("sqlite", database=str(data_directory(environment) / FILE_NAME)).render_as_string()


def engine_url(text: str) -> URL:
    """The URL with its driver. Error messages never contain the password."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        raise ConfigError("store.url is not a URL; write sqlite:///path or postgresql://user@host:port/name") from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise ConfigError(f"store.url begins with {url.drivername!r}; it must begin with sqlite:/// or postgresql://")
    url = url.set(drivername=driver)
    if driver == "sqlite":
        if not url.database or url.database == ":memory:":
            raise ConfigError(
                "store.url names no file; an in-memory database would lose everything, so switch the store off instead"
            )
        return url.set(database=str(Path(url.database).expanduser().absolute()))
    if url.port is not None and not 0 < url.port <= _LARGEST_PORT:
        raise ConfigError(f"store.url has the port {url.port}; it must be a number from 1 to {_LARGEST_PORT}")
    unknown = next((name for name in url.query if name not in _PARAMETERS), None)
    if unknown is not None:
        raise ConfigError(f"store.url has the parameter {unknown[:40]!r}; it may have {', '.join(_PARAMETERS)}")
    if "sslmode" in url.query:
        mode = str(url.query["sslmode"])
        url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return url
