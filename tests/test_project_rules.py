"""Rules of the project that a test can check: module sizes, vendor names, public names, documents that are current."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from docs.generate import DOCUMENTS

import streamglot

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
VENDORS = re.compile(r"openai|anthropic|claude|gemini|google|ollama|qwen|mistral|deepseek|openrouter|cohere|groq|vercel", re.I)
TABLES = {
    "dialects/__init__.py",
    "upstream/providers.py",
    "upstream/settings.py",
    "gateway/endpoints.py",
    "gateway/api/openapi.py",
    "gateway/api/routes.py",
    "inspect/marks.py",
}
"""Modules that are data tables of vendors."""
MAX_LINES = 400


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_are_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def code_without_docstrings(path: Path) -> str:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = ""
    return ast.unparse(tree)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_vendors_are_named_in_their_own_folder_only(path: Path) -> None:
    inside = path.relative_to(ROOT / "src" / "streamglot").as_posix()
    own = re.match(r"dialects/\w+/", inside)
    if own or inside in TABLES or inside.startswith(("cli/", "inband/")):
        return
    found = [word for word in VENDORS.findall(code_without_docstrings(path)) if word]
    if inside == "__init__.py":
        found = [word for word in found if word != "openai"]  # accumulate_delta and the examples of the docstring
    assert not found


def test_public_names_exist_and_are_sorted() -> None:
    assert all(hasattr(streamglot, name) for name in streamglot.__all__)
    assert len(set(streamglot.__all__)) == len(streamglot.__all__)


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_generated_documents_are_not_stale(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == DOCUMENTS[name](), "run `make docs`"


def test_the_version_is_defined_in_one_place() -> None:
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def test_no_file_contains_paths_of_a_development_machine() -> None:
    words = re.compile(r"/(root|home|work)/(?!user)\w")
    paths = [*SOURCES, *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "tests").rglob("*.py")]
    for path in paths:
        if path != Path(__file__):
            assert not words.search(path.read_text()), path
