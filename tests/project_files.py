"""The files of the project, without the packages that were installed in between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def python_files(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - {"node_modules", "__pycache__"})
        yield from (Path(here) / name for name in sorted(names) if name.endswith(".py"))
