"""Valid names of keys, and untrusted text made harmless."""

from __future__ import annotations

import pytest

from streamglot.text import CALLER_CHARS, fault_of_key_name, neutral, one_line


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("x" * (CALLER_CHARS + 1), "the maximum is"),
        ("a\x1bb", "invisible characters"),
        ("a\u202eb", "invisible characters"),
        (" a", "spaces around"),
        ("cli:root", "without a key"),
        ("anonymous:1", "without a key"),
    ],
)
def test_invalid_names_are_refused(name: str, rule: str) -> None:
    fault = fault_of_key_name(name)
    assert rule in fault
    assert fault.endswith("choose another one")


@pytest.mark.parametrize("name", ["me", "Zoë's laptop", "team/ci", "x" * CALLER_CHARS])
def test_valid_names_are_accepted(name: str) -> None:
    assert fault_of_key_name(name) == ""


def test_no_control_character_is_left() -> None:
    hostile = "a\x1b[2Jb\x00c\u202ed\x9be\nf\tg"
    assert neutral(hostile) == "a\u241b[2Jb\u2400c\ufffdd\ufffde\nf\tg"
    assert one_line(hostile) == "a\u241b[2Jb\u2400c\ufffdd\ufffde f g"
