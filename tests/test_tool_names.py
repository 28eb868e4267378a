"""The two spellings of a tool's name match the same globs."""

from __future__ import annotations

import pytest

from streamglot.text import matches_tool


@pytest.mark.parametrize(
    ("name", "glob", "matches"),
    [
        ("files__delete", "files.delete", True),
        ("files.delete", "files__delete", True),
        ("docs__search", "docs.*", True),
        ("docs.search", "docs__*", True),
        ("docs__search", "docs.s[aeiou]arch", True),
        ("a b.c", "a_b__c", True),
        (f"docs.{'x' * 70}", f"docs.{'x' * 70}", True),
        (f"docs__{'x' * 58}", f"docs.{'x' * 70}", True),
        ("files__delete", "files.read", False),
        ("files_delete", "files.delete", False),
        ("Files__delete", "files.delete", False),
        ("docs", "docs.*", False),
    ],
)
def test_either_spelling_matches_either_spelling(name: str, glob: str, matches: bool) -> None:
    assert matches_tool(name, ["other", glob]) is matches
