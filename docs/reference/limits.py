"""docs/limits.md: every limit of a stream, and the limits of the rest that a user can meet, with value and reason.

The reasons are the docstrings of the constants. A limit that no user meets is documented there alone.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import streamglot
from streamglot import limits

from .words import NOTE, cell

SOURCES = Path(streamglot.__file__).parent
MET = {
    "requests": (
        "MAX_CODINGS",
        "MAX_RATIO",
        "MODEL_CHARS",
        "TOOL_NAME_CHARS: Characters of the longest tool name",
        "STREAM_ID_CHARS",
    ),
    "batches": (
        "ID_CHARS: Characters of the longest id of a batch",
        "CUSTOM_ID_CHARS",
        "MAX_METADATA",
        "METADATA_CHARS",
        "NAME_CHARS: Characters of a file's name",
    ),
    "text with calls": ("MAX_TRAIL_CHARS", "MAX_HELD_CHARS: Characters of a call that is held", "WAIT_CHARS"),
    "policies": (
        "MAX_HELD_CHARS: Characters that wait behind an awaited verdict",
        "MAX_PENDING",
        "MAX_SENTENCE_CHARS: A sentence that is longer",
        "HOLD_CHARS: Characters of one candidate",
        "MAX_PATTERN_CHARS",
        "MAX_REPEAT",
        "MAX_PROGRAM",
        "MAX_REPLY_BYTES",
        "MAX_OPEN: Questions to people",
    ),
    "tools": (
        "MAX_TURNS: Model turns of one exchange",
        "KEPT_CHARS",
        "FILE_BYTES: The most of a file",
        "FETCH_BYTES",
        "EXPRESSION_CHARS",
        "TEXT_CHARS: Characters of the text of one result",
        "MEDIA_CHARS",
        "OUTPUT_BYTES",
        "MAX_DEPTH: Nesting of a schema",
    ),
    "upstreams": ("LIST_BYTES", "MIN_LIVE_CHARS", "LARGEST_BYTES", "ANSWER_BYTES: Bytes of an answer, which is held"),
    "store": ("STREAM_BYTES", "QUEUE_BYTES: Bytes that may be queued", "TITLE_CHARS", "TEXT_CHARS: Characters of a turn"),
    "page": ("MAX_FINISHED", "MAX_SHOWN_BYTES"),
    "command line": (
        "ATTACHMENT_BYTES",
        "INPUT_BYTES",
        "ROW_BYTES: Bytes of the largest line",
        "MESSAGE_CHARS: Characters of the longest",
    ),
    "files": ("FILE_BYTES: Maximum bytes of the configuration", "MAX_BYTES: Bytes of one recording"),
}
"""Constants by what they limit. Where several have one name, the beginning of the docstring tells which one."""


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
        "## Of everything else",
        "",
        "These limits are fixed. Those that can be set are in the [configuration](configuration.md), those of the HTTP server are [listed with",
        "their answers](http-server.md#limits). Further limits bound what no user meets, such as the rows of one transaction: each is a",
        "constant beside what it limits, with its unit and its reason.",
        "",
        "| of | value | what it limits, and why |",
        "|---|---:|---|",
    ]
    lines += [f"| {of} | {value} | {cell(why)} |" for of, wanted in MET.items() for value, why in map(_met, wanted)]
    return "\n".join([*lines, ""])


def _met(wanted: str) -> tuple[str, str]:
    """The value and the docstring of one constant of ``MET``."""
    name, _, words = wanted.partition(": ")
    found = {path: why for path, of_name, why in _all_documented() if of_name == name and why.startswith(words)}
    if len(found) != 1:
        raise LookupError(f"{len(found)} constants are {wanted!r}; correct MET in docs/reference/limits.py")
    [(path, why)] = found.items()
    parts = path.relative_to(SOURCES.parent).with_suffix("").parts
    value: float | tuple[int, ...] = getattr(import_module(".".join(parts).removesuffix(".__init__")), name)
    numbers = value if isinstance(value, tuple) else (value,)
    return " and ".join(f"{number:,.0f}" for number in numbers), why.replace("``", "`")


@cache
def _all_documented() -> list[tuple[Path, str, str]]:
    return [(path, name, why) for path in sorted(SOURCES.rglob("*.py")) for name, why in _documented(path)]


def _documented(path: Path) -> Iterator[tuple[str, str]]:
    """Constants of a module that have a docstring behind them."""
    body = ast.parse(path.read_text()).body
    for one, behind in itertools.pairwise(body):
        if not (isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant) and isinstance(behind.value.value, str)):
            continue
        target = one.targets[0] if isinstance(one, ast.Assign) else one.target if isinstance(one, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id.isupper() and not target.id.startswith("_"):
            yield target.id, behind.value.value
