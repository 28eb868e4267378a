"""The code blocks of all pages: what language, whether they are run, and why not. ``tests/documents`` runs them.

``python -m docs.code_blocks`` prints how many there are. A block that cannot be run has the reason in a comment before it:
``<!-- not run: reason -->``.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[1]
RUN_ELSEWHERE = {
    "README.md": "test_wheel.py",
    "docs/library.md": "library/test_programs.py",
    **dict.fromkeys((f"docs/library/{page}.md" for page in ("streams", "boxes", "requests", "answers", "text")), "test_wheel.py"),
    "docs/policies.md": "policies/test_guide.py",
    "docs/tools.md": "tools/test_tools_document.py",
    "docs/batches.md": "batch/test_batch_docs.py",
    "docs/durable-batches.md": "batch_durable/test_batch_clients.py",
}
"""Pages whose Python blocks need more than a gateway, and the tests below tests/ that run them."""
RUNNABLE = ("python", "sh", "js", "toml", "json")
COMMANDS = ("sh", "console", "")
"""Languages of blocks in which command lines of ours are looked for."""
LEFT_OUT = ("pip install", "uvx ", "make ", "streamglot serve", "streamglot local pull", "streamglot chat", "streamglot launch ")
"""Lines of shell blocks that a test leaves out: they install, build or fetch something, or do not end. A gateway runs already."""
_BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```(?P<language>[a-z]*)\n(?P<text>.*?)^```$", re.S | re.M)
_END_OF_COMMAND = frozenset(("|", "||", "&&", ";", ">", ">>", "<", "2>", "&"))


class CodeBlock(Struct, frozen=True):
    page: str
    line: int
    language: str
    text: str
    not_run: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """All documents, by their paths in the project. Generated lists of commands and signatures are no examples."""
    generated = {"docs/commands.md", "docs/python-api.md", "docs/formats.md"}
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted({path.relative_to(ROOT).as_posix() for path in found} - generated)


def blocks_of(page: str) -> list[CodeBlock]:
    text = (ROOT / page).read_text()
    return [
        CodeBlock(page, text.count("\n", 0, found.start("text")) + 1, found["language"], found["text"], found["reason"] or "")
        for found in _BLOCK.finditer(text)
    ]


def all_blocks() -> list[CodeBlock]:
    return [block for page in pages() for block in blocks_of(page)]


def shell_lines(block: CodeBlock) -> str:
    """A shell block without the lines that are left out."""
    return "".join(line for line in block.text.splitlines(keepends=True) if not line.startswith(LEFT_OUT))


def command_lines(block: CodeBlock) -> Iterator[list[str]]:
    """The words of each command line of ours in a block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if "streamglot " not in line:
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quotation that goes on in the next line
            continue
        for place, word in enumerate(words):
            if word == "streamglot" and (place == 0 or words[place - 1] in _END_OF_COMMAND or "=" in words[place - 1]):
                rest = words[place + 1 :]
                end = next((number for number, each in enumerate(rest) if each in _END_OF_COMMAND), len(rest))
                yield rest[:end]


def main() -> None:
    blocks = [block for block in all_blocks() if block.language in RUNNABLE]
    run = Counter(block.language for block in blocks if not block.not_run)
    lines = sum(len(list(command_lines(block))) for block in all_blocks() if block.language in COMMANDS)
    counted = ", ".join(f"{run[language]} {language}" for language in RUNNABLE)
    print(
        f"{sum(run.values())} code blocks are run ({counted}), {len(blocks) - sum(run.values())} are not, for a reason that they give"
    )
    print(f"{lines} command lines are parsed")


if __name__ == "__main__":
    main()
