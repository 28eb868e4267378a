"""The command line, run as a person runs it: with pipes, or at a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from msgspec.json import encode

import warm
from waiting import WAIT_SECONDS
from warm import PROGRAM as PROGRAM

CHUNK = 'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":%s%s}]%s}\n\n'
DONE = "data: [DONE]\n\n"


def chunk(reason: str = "", usage: object = None, **delta: object) -> str:
    finish = f',"finish_reason":"{reason}"' if reason else ""
    counted = f',"usage":{encode(usage).decode()}' if usage else ""
    return CHUNK % (encode(delta).decode(), finish, counted)


def text_answer(*pieces: str) -> list[str]:
    """A whole answer of these pieces of text."""
    return [*(chunk(content=piece) for piece in pieces), chunk("stop"), DONE]


class Shell:
    """A command line with a separate home directory, and an upstream that plays recordings. ``add_recording`` makes a recording; its
    name is the name of the model. As for a person, everything is stored, in the data directory of that home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.recordings = home / "recordings"
        self.recordings.mkdir()
        config = home / "streamglot.toml"
        config.write_text(
            f'[server]\ndiscover = false\n[upstreams.recorded]\nbase_url = "file:{self.recordings}"\n'
            '[upstreams.nowhere]\nbase_url = "http://127.0.0.1:9/v1"\nattempts = 1\nmodels = ["gone"]\n'
        )
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "STREAMGLOT_CONFIG": str(config),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "COLUMNS": "80",
        }

    def add_recording(self, name: str, chunks: list[str], gap: float = 0.0) -> str:
        (self.recordings / name).write_text("".join(chunks))
        times = (f"{number * gap} {len(piece.encode())}\n" for number, piece in enumerate(chunks))
        (self.recordings / f"{name}.times").write_text("".join(times))
        return name

    def run(
        self, *arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        variables = {**self.environment, **(environment or {})}
        return warm.run([PROGRAM, *arguments], sent=stdin, env=variables, cwd=self.home, timeout=2 * WAIT_SECONDS)

    def completions(self, *words: str) -> list[str]:
        """The completions of bash for the last of these words, by the program's completion script."""
        script = self.run("--show-completion", "bash").stdout.decode()
        line = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _streamglot_completion streamglot"
        done = subprocess.run(
            ["bash", "--norc", "-c", f'{script}\n{line}; printf "%s\\n" "${{COMPREPLY[@]}}"'],
            capture_output=True,
            check=True,
            env={**self.environment, "PATH": f"{Path(PROGRAM).parent}:{self.environment['PATH']}"},
            cwd=self.home,
            timeout=2 * WAIT_SECONDS,
        )
        return done.stdout.decode().split()

    def run_into_closed_pipe(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Its output goes to a pipe that nobody reads any more."""
        read, write = os.pipe()
        os.close(read)
        try:
            return warm.run(
                [PROGRAM, *arguments],
                env=self.environment,
                cwd=self.home,
                timeout=2 * WAIT_SECONDS,
                stdin=subprocess.DEVNULL,
                stdout=write,
            )
        finally:
            os.close(write)

    @contextmanager
    def started(self, *arguments: str, errors: IO[bytes] | None = None, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        """With pipes, or ``errors`` for what it says beside its output; standard input is empty."""
        with warm.Popen(
            [PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors or subprocess.PIPE,
            env={**self.environment, **more},
            cwd=self.home,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def terminal(self, *arguments: str, program: Sequence[str] = (PROGRAM,), **more: str) -> Iterator[Terminal]:
        """At a terminal of 80 columns, which is the controlling one: Ctrl-C works."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        process = warm.Popen(
            [*program, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**self.environment, **more},
            cwd=self.home,
            controlling=True,
        )
        os.close(slave)
        terminal = Terminal(master, process)
        try:
            yield terminal
        finally:
            process.kill()
            process.wait()
            terminal.close()


class Terminal:
    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.seen = b""
        self.everything = b""
        """All output so far; ``until`` removes nothing from it."""
        self.process = process
        self.master = master

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, *marks: bytes) -> bytes:
        """Waits until the terminal has shown these texts, in order, and returns its output. Output before the last of them is
        discarded."""
        end = time.monotonic() + WAIT_SECONDS
        for number, mark in enumerate(marks, 1):
            while mark not in self.seen:
                if not self._read(end - time.monotonic()):
                    raise AssertionError(f"{mark!r} did not come: {self.seen!r}")
            if number < len(marks):
                self.seen = self.seen.partition(mark)[2]
        return self.seen

    def close(self) -> None:
        """The window goes away, and with it the terminal."""
        if self.master >= 0:
            os.close(self.master)
        self.master = -1

    def end(self) -> int:
        """The status of the program, once it has ended."""
        end = time.monotonic() + WAIT_SECONDS
        while self._read(end - time.monotonic()):
            pass
        return self.process.wait(max(0.1, end - time.monotonic()))

    def _read(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], max(0.0, seconds))[0]:
            return False
        try:
            data = os.read(self.master, 65_536)
        except OSError:  # the other side is closed
            return False
        self.seen += data
        self.everything += data
        self._answer(data)
        return bool(data)

    def _answer(self, data: bytes) -> None:
        """A program that queries the cursor position gets the top left corner."""
        if b"\x1b[6n" in data:
            os.write(self.master, b"\x1b[1;1R")


def interrupt(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)


def prompt(model: str) -> bytes:
    """The prompt of a chat with this model."""
    return f"\x1b[0m{model}>".encode()
