"""The clients that run in Node, from Python: one process reads as many streams as it is given."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FOLDER = Path(__file__).parent
PATHS = {"ag-ui": "/agui", "ai-6": "/ui", "ai-7": "/ui"}
"""The endpoints of the clients that do not add one to the address themselves."""
CLIENTS = (
    *PATHS,
    "openai-chat",
    "ai-sdk-openai-compatible-6",
    "ai-sdk-openai-compatible-7",
    "openai-responses",
    "ai-sdk-openai-responses",
    "anthropic",
    "ai-sdk-anthropic",
    "google-genai",
    "ollama",
)
SUMMARIES_ONLY = ("ai-sdk-openai-responses",)
"""These show a summary of the reasoning, and have no place for the reasoning itself."""


def missing() -> str | None:
    """The reason why the clients cannot run here, with the remedy; None if they can."""
    if shutil.which("node") is None:
        return "node is not installed: the clients in tests/clients need node 20 or later"
    if not (FOLDER / "node_modules" / "ai-7" / "package.json").exists():
        return "the clients are not installed: run `npm ci` in tests/clients"
    return None


class NodeClients:
    """``read(client, url)`` is what that client understood; clients.mjs has their names and read.mjs the fields."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            ["node", str(FOLDER / "read.mjs")], cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._process.communicate(timeout=60)

    def read(self, client: str, url: str) -> dict[str, Any]:
        self.ask(client, url)
        return self.answer()

    def ask(self, client: str, url: str) -> None:
        """Has the client begin to read; its ``answer`` comes in the order of the questions."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"client": client, "url": url}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the node process ended before it had answered")
        answer: dict[str, Any] = json.loads(line)
        return answer
