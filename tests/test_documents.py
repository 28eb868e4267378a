"""Every path and name that ARCHITECTURE.md and README.md put in backticks exists."""

from __future__ import annotations

import re
from functools import cache
from keyword import iskeyword
from pathlib import Path

import pytest

from project_files import python_files

ROOT = Path(__file__).parents[1]
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
ERROR_CODES = re.compile(r'code(?:: str)? ?= ?"(\w+)"')
DEFINITION = re.compile(r"^\s*(?:class|def|async def)\s+(\w+)|^\s*(\w+)\s*[:=]", re.M)


@cache
def sources() -> dict[str, str]:
    """The text of every module of ours, by its path."""
    folders = [ROOT / folder for folder in ("src", "tests", "bench", "conformance")]
    paths = [path for folder in folders for path in python_files(folder)]
    return {str(path): path.read_text() for path in paths}


@cache
def names() -> set[str]:
    return {name for text in sources().values() for pair in DEFINITION.findall(text) for name in pair if name}


@cache
def files() -> set[str]:
    return {Path(path).name for path in sources()} | {path.name for path in ROOT.iterdir()}


@cache
def known_codes() -> set[str]:
    return {code for text in sources().values() for code in ERROR_CODES.findall(text)}


def names_in(document: str) -> list[str]:
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.S)
    return sorted(set(CODE.findall(text)))


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "README.md"])
def test_every_name_in_backticks_exists(document: str) -> None:
    missing = [piece for piece in names_in(document) if not exists(piece)]
    assert not missing


def exists(piece: str) -> bool:
    if piece.startswith(("make ", "pip ", "source ", "streamglot ", "uvx ")):
        return not piece.startswith("make ") or f"\n{piece.split()[1]}:" in (ROOT / "Makefile").read_text()
    if "/" in piece or piece.endswith((".py", ".md", ".toml")):
        return (ROOT / piece).exists() or piece in files() or piece == "streamglot.toml"
    if not IDENTIFIER.fullmatch(piece) or iskeyword(piece):
        return True  # an expression, a command or a value: no name
    return (
        all(part in names() for part in piece.split(".")) or piece in known_codes() or (ROOT / "src/streamglot" / piece).exists()
    )
