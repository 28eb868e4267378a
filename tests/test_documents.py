"""Every path and name that ARCHITECTURE.md and README.md put in backticks exists."""

from __future__ import annotations

import re
from keyword import iskeyword
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = [path for folder in ("src", "tests", "bench", "conformance") for path in sorted((ROOT / folder).rglob("*.py"))]
DEFINED = set(
    re.findall(r"^\s*(?:class|def|async def)\s+(\w+)|^\s*(\w+)\s*[:=]", "\n".join(path.read_text() for path in PYTHON), re.M)
)
NAMES = {name for pair in DEFINED for name in pair if name}
FILES = {path.name for path in PYTHON} | {path.name for path in ROOT.iterdir()}
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
ERROR_CODES = re.compile(r'code(?:: str)? ?= ?"(\w+)"')
KNOWN_CODES = {code for path in PYTHON for code in ERROR_CODES.findall(path.read_text())}


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
        return (ROOT / piece).exists() or piece in FILES or piece == "streamglot.toml"
    if not IDENTIFIER.fullmatch(piece) or iskeyword(piece):
        return True  # an expression, a command or a value: no name
    return all(part in NAMES for part in piece.split(".")) or piece in KNOWN_CODES or (ROOT / "src/streamglot" / piece).exists()
