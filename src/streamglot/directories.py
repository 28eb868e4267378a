"""The directories of a user, by the rules of each platform."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def data_directory(environment: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """The directory for data of this user. A relative XDG_DATA_HOME is not valid and is not used."""
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
