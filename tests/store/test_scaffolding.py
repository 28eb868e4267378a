"""Titles of sessions: the words of a person, without what an agent wrote around them."""

from __future__ import annotations

import pytest

from store.turns import ask, user
from streamglot.store.turns import title_of, without_scaffolding


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Fix the bug", "Fix the bug"),
        ("<system-reminder>\nToday is Monday.\n</system-reminder>\nFix the bug", "Fix the bug"),
        ("<session_context>x</session_context><user-memory a='b'>y</user-memory> Fix the bug", "Fix the bug"),
        ("# AGENTS.md instructions for /srv/project\n\n<INSTRUCTIONS>\nx\n</INSTRUCTIONS>\nFix it", "Fix it"),
        ("<environment_context>\n<cwd>/x</cwd>\n</environment_context>", ""),
        ("<div>not centred</div> why?", "<div>not centred</div> why?"),
        ("<system-reminder> is a tag that I want to parse", "<system-reminder> is a tag that I want to parse"),
        ("", ""),
    ],
)
def test_blocks_of_agents_are_left_out(text: str, words: str) -> None:
    assert without_scaffolding(text) == words


def test_a_message_that_only_an_agent_wrote_gives_no_title() -> None:
    request = ask(
        user("<session_context>\nLinux\n</session_context>"),
        user("<system-reminder>a</system-reminder>\nWrite the file"),
        user("<system-reminder>Tools have changed.</system-reminder>"),
    )
    assert title_of(request) == "Write the file"


def test_many_tags_that_are_never_closed_take_no_longer_than_their_length() -> None:
    assert without_scaffolding("<a_b>" * 200_000).startswith("<a_b>")
