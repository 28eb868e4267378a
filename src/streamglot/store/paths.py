"""Where the database is, and addresses as the engine wants them."""

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
    """The address with the driver that we use. What it holds of a password is never in the message."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise ConfigError("store.url is no address; write sqlite:///path or postgresql://user@host/name") from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise ConfigError(f"store.url begins with {url.drivername!r}; a store is on sqlite:///… or on postgresql://…")
    url = url.set(drivername=driver)
    if driver == "sqlite":
        if not url.database or url.database == ":memory:":
            raise ConfigError("store.url names no file; a database in memory would keep nothing, switch the store off instead")
        return url.set(database=str(Path(url.database).expanduser().absolute()))
    if "sslmode" in url.query:
        mode = str(url.query["sslmode"])
        url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return url
