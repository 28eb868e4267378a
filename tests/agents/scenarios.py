"""The scripts: what the scripted model does in each scenario, with any tools of the agent."""

from __future__ import annotations

import base64
import json
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from agents.turns import Asked, Call, Turn
from agents.wires import arguments, cut, streamed
from streamglot.messages import ToolSpec

MARK = "tides-at-seven"
"""The text that the agent writes to a file and reads back. It occurs nowhere else."""
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAVUlEQVR42m3MMRGAABADwZeABMorkYAEJCABCUhAAhKQQHklEpCA"
    "BCLgZ9Jl56pwxBlX3PHEG1+sASdccMMDL3zwy9HzrOXJVMuTqZYnUy1PplqezA/lxloB79T+VgAAAABJRU5ErkJggg=="
)
"""An image of 8 by 8 points."""
PROMPT = "Write the file, read it back and tell me what it says."


class Reply(Struct):
    """After ``cut_after`` pieces of the stream the upstream closes the connection. If it ``hangs``, it sends nothing more until
    the other side disconnects. With a ``status`` it refuses the request."""

    turn: Turn
    cut_after: int | None = None
    hangs: bool = False
    status: int = 200
    retry_after: int | None = None


def _shell(command: str) -> dict[str, dict[str, Any]]:
    return {
        "exec_command": {"cmd": command},
        "shell_command": {"command": command},
        "shell": {"command": ["bash", "-lc", command]},
    }


def write_call(tools: dict[str, ToolSpec], path: Path, text: str) -> tuple[str, dict[str, Any]] | None:
    """The call that writes a file with one of these tools; None where there is none."""
    known: dict[str, dict[str, Any]] = {
        "Write": {"file_path": str(path), "content": text},
        "write_file": {"file_path": str(path), "content": text},
        "write": {"filePath": str(path), "content": text},
        **_shell(f"printf %s {shlex.quote(text)} > {shlex.quote(str(path))}"),
    }
    return next(((name, given) for name, given in known.items() if name in tools), None)


def read_call(tools: dict[str, ToolSpec], path: Path) -> tuple[str, dict[str, Any]] | None:
    known: dict[str, dict[str, Any]] = {
        "Read": {"file_path": str(path)},
        "read_file": {_path_name(tools.get("read_file")): str(path)},
        "read": {"filePath": str(path)},
        **_shell(f"cat {shlex.quote(str(path))}"),
    }
    return next(((name, given) for name, given in known.items() if name in tools), None)


def image_call(tools: dict[str, ToolSpec], path: Path) -> tuple[str, dict[str, Any]] | None:
    """The call that shows an image to the model."""
    if "view_image" in tools:
        return "view_image", {"path": str(path)}
    known = read_call(tools, path)
    return known if known is not None and known[0] in ("Read", "read_file", "read") else None


def _path_name(tool: ToolSpec | None) -> str:
    properties = (tool.parameters or {}).get("properties", {}) if tool is not None else {}
    return "absolute_path" if "absolute_path" in properties else "file_path"


class Script:
    """One run. ``faults`` says what happened that must not; an agent's side requests get a short answer. ``interrupts``: the
    agent is interrupted when the upstream ``hangs``, and the upstream must notice it (``hung_up``)."""

    interrupts = False

    def __init__(self, folder: Path) -> None:
        self.hangs, self.hung_up = threading.Event(), threading.Event()
        self.folder = folder
        self.faults: list[str] = []
        self.main_requests = 0
        self.finished = False
        self._lock = threading.Lock()
        self._calls = 0

    def answer(self, asked: Asked) -> Reply:
        with self._lock:
            if write_call(asked.tools, self.folder / "x", "") is None:
                return Reply(Turn('{"title": "Tides", "isNewTopic": true}' if asked.wants_json else "Tides"))
            self.main_requests += 1
            reply = self.step(len(asked.results), asked)
            self.finished = self.finished or (reply.status == 200 and reply.cut_after is None and not reply.turn.calls)
            return reply

    def step(self, number: int, asked: Asked) -> Reply:
        """The reply after this many results of tools."""
        raise NotImplementedError

    def fail(self, fault: str) -> None:
        self.faults.append(fault)

    def call(self, made: tuple[str, dict[str, Any]] | None) -> Call:
        assert made is not None, "the agent has no such tool"
        self._calls += 1
        return Call(f"call_{self._calls}_{MARK.replace('-', '')}", made[0], made[1])

    def verify(self, output: str) -> list[str]:
        """The faults of the run; empty if there are none."""
        faults = list(self.faults)
        if not self.finished:
            faults.append("the agent never came to its answer")
        if MARK not in output:
            faults.append("the answer is not in what the agent printed")
        return faults


class WriteAndRead(Script):
    """Writes a file, reads it back, and answers with what was read."""

    text, reasoning, signature = "I write the file first.", "", ""

    def step(self, number: int, asked: Asked) -> Reply:
        path = self.folder / "tides.txt"
        if number == 0:
            call = self.call(write_call(asked.tools, path, MARK))
            return Reply(Turn(self.text, self.reasoning, self.signature, [call]))
        if number == 1:
            return Reply(Turn("Now I read it.", calls=[self.call(read_call(asked.tools, path))]))
        if MARK not in asked.results[-1]:
            self.fail(f"the file was not read back: {asked.results[-1][:200]!r}")
        return Reply(Turn(f"The file says {MARK}."))

    def verify(self, output: str) -> list[str]:
        path = self.folder / "tides.txt"
        written = path.read_text() if path.exists() else None
        wrong = [] if written is not None and written.strip() == MARK else [f"the file holds {written!r}"]
        return super().verify(output) + wrong


class Parallel(Script):
    """Writes two files in one turn."""

    def step(self, number: int, asked: Asked) -> Reply:
        if number == 0:
            paths = (self.folder / "one.txt", self.folder / "two.txt")
            return Reply(Turn("Two files.", calls=[self.call(write_call(asked.tools, path, MARK)) for path in paths]))
        if number != 2:
            self.fail(f"{number} results came for two calls")
        return Reply(Turn(f"Both say {MARK}."))

    def verify(self, output: str) -> list[str]:
        missing = [name for name in ("one.txt", "two.txt") if not (self.folder / name).exists()]
        return super().verify(output) + [f"{name} was not written" for name in missing]


class ReasonsFirst(WriteAndRead):
    """Thinks before its first call; the upstream wants its opaque state back with the next request."""

    reasoning, signature = "The user wants a file.", "c2lnbmVkLXN0YXRl"

    def step(self, number: int, asked: Asked) -> Reply:
        signed = asked.dialect in ("anthropic", "openai_responses", "gemini", "bedrock_converse")
        if number == 1 and signed and not any(self._is_signature(text) for text in asked.signatures):
            self.fail("the opaque state of the reasoning did not come back")
        return super().step(number, asked)

    def _is_signature(self, text: str) -> bool:
        return self.signature in text or base64.b64encode(self.signature.encode()).decode() in text


class LongAnswer(WriteAndRead):
    """Answers with as much text as a long file."""

    def step(self, number: int, asked: Asked) -> Reply:
        reply = super().step(number, asked)
        if not reply.turn.calls:
            reply.turn.text = "\n".join(f"Line {line} of the tide table." for line in range(6000)) + f"\n{reply.turn.text}"
        return reply


class Broken(WriteAndRead):
    """Hangs up once in the middle of the first turn. An agent may have run a call that was whole by then, and run it again:
    what it does next goes by the last result, not by how many there are."""

    def step(self, number: int, asked: Asked) -> Reply:
        reply = super().step(2 if number and MARK in asked.results[-1] else min(number, 1), asked)
        if self.main_requests == 1:
            reply.cut_after = self.place(streamed(asked.dialect, reply.turn, asked.model), reply.turn)
        return reply

    def place(self, pieces: list[bytes], turn: Turn) -> int:
        """How many pieces are sent."""
        raise NotImplementedError


class BrokenText(Broken):
    """Hangs up in the middle of a text."""

    def place(self, pieces: list[bytes], turn: Turn) -> int:
        return _behind(pieces, cut(turn.text)[1])


class BrokenReasoning(Broken):
    """Hangs up in the middle of a thought."""

    reasoning, signature = "The user wants a file.", "c2lnbmVkLXN0YXRl"

    def place(self, pieces: list[bytes], turn: Turn) -> int:
        return _behind(pieces, cut(turn.reasoning)[1])


class BrokenCall(Broken):
    """Hangs up in the middle of the arguments of a call; behind the call where it comes in one piece."""

    text = ""

    def place(self, pieces: list[bytes], turn: Turn) -> int:
        return _behind(pieces, cut(arguments(turn.calls[0]))[1]) or _behind(pieces, turn.calls[0].name)


def _behind(pieces: list[bytes], text: str) -> int:
    """The number of pieces up to the one that says this; 0 where none does."""
    wanted = json.dumps(text)[1:-1]
    doubled = json.dumps(wanted)[1:-1]
    return next((number for number, piece in enumerate(pieces, 1) if wanted.encode() in piece or doubled.encode() in piece), 0)


class Busy(WriteAndRead):
    """Says once that there were too many requests, and when to come again."""

    def step(self, number: int, asked: Asked) -> Reply:
        if self.main_requests == 1:
            return Reply(Turn(), status=429, retry_after=1)
        return super().step(number, asked)


class Interrupted(WriteAndRead):
    """Stops in the middle of a text. A person presses Ctrl-C, and the upstream request must be cancelled."""

    interrupts = True

    def step(self, number: int, asked: Asked) -> Reply:
        reply = super().step(number, asked)
        reply.cut_after = _behind(streamed(asked.dialect, reply.turn, asked.model), cut(reply.turn.text)[1])
        reply.hangs = True
        return reply

    def verify(self, output: str) -> list[str]:
        if not self.hangs.is_set():
            return [*self.faults, "the upstream was never asked"]
        return self.faults + ([] if self.hung_up.is_set() else ["the upstream request was not cancelled"])


class ShowsImage(Script):
    """Has the agent look at an image; the upstream must get it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "chart.png").write_bytes(PNG)

    def step(self, number: int, asked: Asked) -> Reply:
        if number == 0:
            return Reply(Turn("I look at it.", calls=[self.call(image_call(asked.tools, self.folder / "chart.png"))]))
        if not asked.images:
            self.fail("the image did not come")
        return Reply(Turn(f"It says {MARK}."))


class Patches(Script):
    """Calls the custom tool that takes a patch as free text. Only some agents have one."""

    def step(self, number: int, asked: Asked) -> Reply:
        tool = asked.tools.get("apply_patch")
        if tool is None:
            self.fail("the agent declared no apply_patch")
            return Reply(Turn(f"{MARK}"))
        if number == 0:
            patch = f'*** Begin Patch\n*** Add File: patched.txt\n+{MARK} "quoted" \\ back\n*** End Patch\n'
            given: dict[str, Any] | str = patch if tool.kind == "custom" else {"input": patch}
            return Reply(Turn("", calls=[Call("call_patch", "apply_patch", given)]))
        return Reply(Turn(f"Patched: {MARK}."))

    def verify(self, output: str) -> list[str]:
        path = self.folder / "patched.txt"
        wanted = f'{MARK} "quoted" \\ back'
        written = path.read_text().strip() if path.exists() else None
        return super().verify(output) + ([] if written == wanted else [f"the patch made {written!r}"])


SCENARIOS: dict[str, Callable[[Path], Script]] = {
    "file": WriteAndRead,
    "parallel": Parallel,
    "reasoning": ReasonsFirst,
    "patch": Patches,
    "cut-text": BrokenText,
    "cut-reasoning": BrokenReasoning,
    "cut-call": BrokenCall,
    "429": Busy,
    "image": ShowsImage,
    "interrupt": Interrupted,
    "long": LongAnswer,
}
