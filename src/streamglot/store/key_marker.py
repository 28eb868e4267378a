"""A file beside the database that records that the database has had keys. If the database is deleted or emptied, its keys are
gone, and the next start would let everybody in. The marker survives that.

The marker of a SQLite file is in the same directory, under a name that ``rm streamglot.db*`` does not match. The marker of a
PostgreSQL database is in the user's data directory on the machine of the gateway.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from .paths import data_directory


class KeyMarker:
    """The marker of one database. ``file`` is the path of a SQLite database, ``shown`` the URL of any other without its
    password."""

    def __init__(self, file: Path | None, shown: str) -> None:
        if file is not None:
            self.path = file.with_name(f".{file.name}.had-keys")
        else:
            self.path = data_directory() / "had-keys" / hashlib.sha256(shown.encode()).hexdigest()[:32]
        self._shown = shown
        self._set = False

    def is_set(self) -> bool:
        try:
            return self.path.exists()
        except OSError:
            return False

    def set(self) -> None:
        """Writes the marker, once per process. A directory that cannot be written to is ignored: the running process remembers
        the keys itself."""
        if self._set:
            return
        self._set = True
        try:
            if not self.path.exists():
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.path.write_text(f"{self._shown} has had keys: a gateway on it requires a key, even if there are none now\n")
        except OSError:
            return
