"""Rules of the project that a test can check: module sizes, vendor names, reasons, public names, documents that are current."""

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
    "names.py",
    "upstream/providers.py",
    "upstream/settings.py",
    "gateway/endpoints.py",
    "gateway/forward.py",
    "gateway/api/models.py",
    "gateway/api/pages.py",
    "inspect/detection.py",
}
"""Modules that are data tables of vendors."""
MAX_LINES = 700
VERBS_OF_RESULTS = re.compile(r"(Return|Yield)s?\b")


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


def lines_with_any(path: Path) -> set[int]:
    """The numbers of the lines whose code names the type ``Any``, imports excepted."""
    return {node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name) and node.id == "Any"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_any_has_its_reason_beside_it(path: Path) -> None:
    """The reason is a comment ``# Any: …`` on the same line or on the line before. A reason without an ``Any`` is out of date."""
    lines = path.read_text().splitlines()
    reasons = {number for number, line in enumerate(lines, 1) if "# Any: " in line}
    types = lines_with_any(path)
    assert {number for number in types if not {number, number - 1} & reasons} == set(), "give the reason, or use a real type"
    assert {number for number in reasons if not {number, number + 1} & types} == set(), "remove the reason"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_switched_off_checks_have_their_reason_beside_them(path: Path) -> None:
    bare = re.compile(r"# (noqa|type: ignore)[^#]*$")
    assert [line for line in path.read_text().splitlines() if bare.search(line) and "pragma" not in line] == []


def test_docstrings_of_functions_are_noun_phrases() -> None:
    """What a function returns stands there as a noun phrase: "The …", "Whether …". A function that does something says so."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {text.splitlines()[0]}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (text := ast.get_docstring(node) or "")
        and VERBS_OF_RESULTS.match(text)
    ]
    assert wrong == [], "leave out the verb: 'The …' in place of 'Returns the …', 'Whether …' in place of 'Returns True if …'"


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
