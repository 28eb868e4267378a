"""A file beside the database that says that it has had keys. A database that is deleted or emptied takes its keys with it, and
the next start would find none and let everybody in. The marker survives that.

The marker of a SQLite file is in the same directory, under a name that ``rm streamglot.db*`` does not match. That of PostgreSQL is
in the user's data directory of the machine that the gateway runs on.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from .paths import data_directory


class KeyMarker:
    """``file`` is that of a SQLite database, ``shown`` the address of any other without its password."""

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
        """Once for each process. A place that cannot be written to is none: the running process remembers by itself."""
        if self._set:
            return
        self._set = True
        try:
            if not self.path.exists():
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.path.write_text(f"{self._shown} has had keys: a gateway on it asks for them, even if there are none now\n")
        except OSError:
            return
