"""docs/conformance.md: the cells of the last ``make matrix``, and what clients cannot read. docs/pitfalls.md: the rules.

The cells come from a run over a corpus and are carried over from the page as it is. Everything else is made from ``limits.py``
and ``rules.toml``.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

from msgspec import Struct, convert, field

from .limits import LIMITS

PAGE: Final = Path(__file__).parents[1] / "docs" / "conformance.md"
RULES: Final = Path(__file__).with_name("rules.toml")
PACKAGES: Final = Path(__file__).parents[1] / "tests" / "clients" / "package.json"
PYTHON_CLIENTS: Final = ("openai", "anthropic", "google-genai", "ollama", "openrouter")
CELLS_START: Final = "<!-- the cells -->"
CELLS_END: Final = "<!-- end of the cells -->"

Cells = Mapping[tuple[str, str, str], Counter[str]]


class Rule(Struct, forbid_unknown_fields=True):
    """A fault of other projects (``seen``), the behaviour of streamglot (``ours``), the tests that prove it, and issues of other
    projects about it (``references``)."""

    about: str
    seen: str
    ours: str
    tests: list[str]
    references: list[str] = field(default_factory=list)


def rules() -> list[Rule]:
    return convert(tomllib.loads(RULES.read_text())["rule"], list[Rule])


def conformance_page(cells: str | None = None) -> str:
    """The page, with these cells or with those that it has."""
    if cells is None:
        cells = kept_cells()
    return "\n".join([*_head(), CELLS_START, cells, CELLS_END, "", *_limits(), ""])


def kept_cells() -> str:
    """The cells of the page as it is."""
    body = PAGE.read_text() if PAGE.exists() else ""
    return body.partition(CELLS_START + "\n")[2].partition("\n" + CELLS_END)[0]


def cells_of(cells: Cells) -> str:
    """A row for each writer and client, a column for each reader."""
    readers = sorted({reader for reader, _, _ in cells})
    lines = ["", f"| written | read by | {' | '.join(readers)} |", f"|---|---|{'---|' * len(readers)}"]
    for writer, client in sorted({(writer, client) for _, writer, client in cells}):
        counts = [cells.get((reader, writer, client), Counter()) for reader in readers]
        lines.append(f"| {writer} | {client} | {' | '.join(map(_cell, counts))} |")
    streams, right, skipped = (sum(map(of, cells.values())) for of in (_streams, _right, _skipped))
    lines += ["", f"In all {right} of {streams}, and {skipped} that a client cannot read. The clients: {', '.join(_versions())}."]
    return "\n".join([*lines, ""])


def _streams(count: Counter[str]) -> int:
    return count["streams"]


def _right(count: Counter[str]) -> int:
    return count["streams"] - count["wrong"]


def _skipped(count: Counter[str]) -> int:
    return count["skipped"]


def _cell(count: Counter[str]) -> str:
    said = f"{_right(count)}/{_streams(count)}"
    return f"{said} ({_skipped(count)} skipped)" if _skipped(count) else said


def _versions() -> Iterable[str]:
    yield from (f"{name} {version(name)}" for name in PYTHON_CLIENTS)
    for name, wanted in json.loads(PACKAGES.read_text())["dependencies"].items():
        yield f"`{name}` {wanted.rpartition('@')[2]} (node)"


def _head() -> list[str]:
    return [
        "# Conformance",
        "",
        "<!-- made by `make matrix` (the cells) and `make docs` (the rest); change the code, not this page -->",
        "",
        "Every recorded stream of a corpus goes through its reader, through every writer, and into the vendors' own clients",
        "over a real socket. A stream passes if the client raises no error and understands the same text, reasoning, refusal,",
        "calls, finish and usage. A stream that ends in an error passes if the client reports the error, with the text before it",
        "unless the client returns only whole answers.",
        "`make test` does the same with the recordings in tests/corpus.",
        "",
        "## Cells",
        "",
        "Streams that pass / all streams, for each reader (columns), writer and client (rows).",
        "",
    ]


def _limits() -> list[str]:
    lines = [
        "## What clients cannot read",
        "",
        "These limits do not depend on the writer. Such a stream is not given to that client.",
        "",
    ]
    lines += ["| client | what | why |", "|---|---|---|"]
    return lines + [f"| {', '.join(limit.clients)} | {limit.what} | {limit.why} |" for limit in LIMITS]


def pitfalls_page() -> str:
    """The page of the rules."""
    lines = [
        "# Pitfalls",
        "",
        "<!-- made by `make docs` from conformance/rules.toml; change that file, not this page -->",
        "",
        "Faults that users of gateways, clients and parsers met elsewhere, and what streamglot does. Where a fault is described in an",
        "issue of another project, the issue is named. conformance/rules.toml names the tests that prove each rule.",
    ]
    about = ""
    for rule in rules():
        if rule.about != about:
            about = rule.about
            lines += ["", f"## {about}", "", "| what happens elsewhere | what streamglot does |", "|---|---|"]
        seen = f"{rule.seen} ({', '.join(rule.references)})" if rule.references else rule.seen
        lines.append(f"| {seen} | {rule.ours} |")
    return "\n".join([*lines, ""])
