"""docs/limits.md: every limit of the pure half, and the named limits of the rest, with value and reason."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import streamglot
from streamglot import limits

from .words import NOTE, cell

SOURCES = Path(streamglot.__file__).parent
FACTORS = {"BYTES", "CHARS", "SECONDS", "LINES", "TOKENS", "ITEMS", "EVENTS"}
"""The last word of a constant that is a limit, beside those that begin with MAX."""


def limits_page() -> str:
    lines = [
        "# Limits",
        "",
        NOTE,
        "Every buffer has a limit with a name. If a limit is exceeded, the error names it, and memory does not grow. A slow client is",
        "not buffered: it slows the upstream down, because each read waits for the write before it.",
        "",
        "## Of one stream",
        "",
        "`Limits` holds them for a reader: `streamglot.reader(name, limits=Limits(block_chars=1000))`. The error of each is `limit_` and its name.",
        "",
        "| limit | value | why |",
        "|---|---:|---|",
    ]
    reasons = dict(_documented(SOURCES / "limits.py"))
    for name in limits.Limits.__struct_fields__:
        value = getattr(limits.DEFAULT_LIMITS, name)
        lines.append(f"| `{name}` | {value:,} | {cell(reasons.get(f'MAX_{name.upper()}', ''))} |")
    lines += [
        "",
        "## In the rest of the code",
        "",
        "These constants limit a buffer, a queue or a wait. Settings with the same meaning are in the [configuration](configuration.md); those of",
        "the HTTP server are also [listed with their answers](http-server.md#limits).",
        "",
        "| module | limit | why |",
        "|---|---|---|",
    ]
    for path in sorted(SOURCES.rglob("*.py")):
        module = path.relative_to(SOURCES).with_suffix("").as_posix()
        if module == "limits":
            continue
        for name, why in _documented(path):
            if name.startswith("MAX_") or (name not in FACTORS and name.rpartition("_")[2] in FACTORS):
                lines.append(f"| `{module}` | `{name}` | {cell(why.replace('``', '`'))} |")
    return "\n".join([*lines, ""])


def _documented(path: Path) -> Iterator[tuple[str, str]]:
    """Constants of a module that have a docstring behind them."""
    body = ast.parse(path.read_text()).body
    for one, behind in itertools.pairwise(body):
        if not (isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant) and isinstance(behind.value.value, str)):
            continue
        target = one.targets[0] if isinstance(one, ast.Assign) else one.target if isinstance(one, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id.isupper() and not target.id.startswith("_"):
            yield target.id, behind.value.value
