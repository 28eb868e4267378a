"""Where the database is: the user's data directory on each platform, and database URLs in the form that SQLAlchemy needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from ..errors import ConfigError

FILE_NAME: Final = "streamglot.db"
_DRIVERS: Final = {
    "sqlite": "sqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}


def data_directory(environment: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """The user's data directory. A relative XDG_DATA_HOME is invalid and ignored."""
    environment = os.environ if environment is None else environment
    home = Path(environment.get("USERPROFILE" if platform == "win32" else "HOME") or Path.home())
    if platform == "win32":
        base = Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        named = environment.get("XDG_DATA_HOME", "")
        base = Path(named) if named.startswith("/") else home / ".local" / "share"
    return base / "streamglot"


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
