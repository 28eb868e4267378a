"""Every published cell of docs/conformance.md is whole, and the tests that conformance/rules.toml names exist. Another test checks that
the generated documents are not stale."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from conformance.page import PAGE, Rule, rules

TESTS = Path(__file__).parent


@cache
def names_in(path: Path) -> set[str]:
    """The tests of a file, as pytest names them."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inner = (child for child in node.body if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))
            found |= {f"{node.name}::{child.name}" for child in inner}
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.seen[:40])
def test_a_rule_names_tests_that_exist(rule: Rule) -> None:
    assert rule.tests
    for test in rule.tests:
        file, _, name = test.partition("::")
        assert (TESTS / file).exists(), test
        assert name in names_in(TESTS / file), test


def test_every_cell_is_whole() -> None:
    cells = re.findall(r"\| (\d+)/(\d+)", PAGE.read_text())
    assert cells
    assert not [cell for cell in cells if cell[0] != cell[1]]
