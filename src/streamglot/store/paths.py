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


def default_url(environment: Mapping[str, str] | None = None) -> str:
    return URL.create("sqlite", database=str(data_directory(environment) / FILE_NAME)).render_as_string()


def engine_url(text: str) -> URL:
    """The URL with its driver. Error messages never contain the password."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise ConfigError("store.url is not a URL; write sqlite:///path or postgresql://user@host/name") from None
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
    if "sslmode" in url.query:
        mode = str(url.query["sslmode"])
        url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return url
