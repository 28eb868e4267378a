"""What all generators of pages share: docstrings, types and table cells as Markdown."""

from __future__ import annotations

import inspect
import re

NOTE = "<!-- made by `make docs`; change the code, not this page -->\n"
_CODE = re.compile(r"``([^`]+)``")


def prose(documented: object) -> str:
    """The docstring of an object as Markdown. Text in columns becomes a code block."""
    return markdown(inspect.cleandoc(getattr(documented, "__doc__", None) or ""))


def markdown(text: str) -> str:
    paragraphs = []
    for paragraph in text.split("\n\n"):
        marked = _CODE.sub(r"`\1`", paragraph)
        if any(line.startswith("    ") for line in marked.splitlines()) and not marked.startswith("-"):
            marked = f"```text\n{inspect.cleandoc(paragraph)}\n```"
        paragraphs.append(marked.replace("<", "&lt;") if "`" not in marked else marked)
    return "\n\n".join(paragraphs)


def cell(text: str) -> str:
    """Text in one cell of a table."""
    return " ".join(text.replace("|", "\\|").split())


def sentence(text: str) -> str:
    """A piece of a docstring as a sentence of its own."""
    piece = re.sub(r"[\s,;]+(and)?$", "", " ".join(text.split()).rstrip(". "))
    return f"{piece[:1].upper()}{piece[1:]}." if piece else ""


def code(value: str) -> str:
    """Text as code, also in a table."""
    return f"`{cell(value)}`" if value else ""
