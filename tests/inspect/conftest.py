from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def pytester_folder(tmp_path: Path) -> Path:
    """An empty folder that is no part of this project's tests."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path
