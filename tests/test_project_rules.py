"""Rules of the project that a test can check: module sizes, vendor names, reasons, public names, documents that are current."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from docs.generate import DOCUMENTS

import streamglot
from project_files import python_files

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


def broken(rule: Callable[[Path], object]) -> dict[str, object]:
    """What ``rule`` finds wrong, by the file. A failed test shows all of them."""
    return {str(path.relative_to(ROOT)): found for path in SOURCES if (found := rule(path))}


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def test_modules_are_small() -> None:
    assert len(SOURCES) > 100
    assert broken(lambda path: max(0, len(text_of(path).splitlines()) - MAX_LINES)) == {}, "lines too many"


def code_without_docstrings(path: Path) -> str:
    tree = ast.parse(text_of(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = ""
    return ast.unparse(tree)


def vendors_named(path: Path) -> list[str]:
    inside = path.relative_to(ROOT / "src" / "streamglot").as_posix()
    own = re.match(r"dialects/\w+/", inside)
    if own or inside in TABLES or inside.startswith(("cli/", "inband/")) or not VENDORS.search(text_of(path)):
        return []
    found: list[str] = VENDORS.findall(code_without_docstrings(path))
    if inside == "__init__.py":
        found = [word for word in found if word != "openai"]  # accumulate_delta and the examples of the docstring
    return found


def test_vendors_are_named_in_their_own_folder_only() -> None:
    assert broken(vendors_named) == {}


def lines_with_any(path: Path) -> set[int]:
    """The numbers of the lines whose code names the type ``Any``, imports excepted."""
    return {node.lineno for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name) and node.id == "Any"}


def lines_with_reasons(path: Path) -> set[int]:
    return {number for number, line in enumerate(text_of(path).splitlines(), 1) if "# Any: " in line}


def types_without_reason(path: Path) -> list[int]:
    reasons = lines_with_reasons(path)
    return sorted(number for number in lines_with_any(path) if not {number, number - 1} & reasons)


def reasons_without_type(path: Path) -> list[int]:
    types = lines_with_any(path)
    return sorted(number for number in lines_with_reasons(path) if not {number, number + 1} & types)


def test_any_has_its_reason_beside_it() -> None:
    """The reason is a comment ``# Any: …`` on the same line or on the line before. A reason without an ``Any`` is out of date."""
    assert broken(types_without_reason) == {}, "give the reason, or use a real type"
    assert broken(reasons_without_type) == {}, "remove the reason"


def test_switched_off_checks_have_their_reason_beside_them() -> None:
    bare = re.compile(r"# (noqa|type: ignore)[^#]*$")

    def found(path: Path) -> list[str]:
        return [line for line in text_of(path).splitlines() if bare.search(line) and "pragma" not in line]

    assert broken(found) == {}


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
    paths = [*SOURCES, *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *python_files(ROOT / "tests")]
    for path in paths:
        if path != Path(__file__):
            assert not words.search(path.read_text()), path
