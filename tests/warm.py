"""Programs of the package that start at once, as processes of their own.

Most of the time of a start goes into imports. A warm process has them done, and each start is a fork of it: with a process, an
environment, a directory and pipes of its own, and with nothing that an earlier start changed. Tests about the start itself start
``subprocess.Popen``. With ``STREAMGLOT_TESTS_COLD=1`` every program starts from nothing, as a user's does."""

from __future__ import annotations

import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import termios
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

PROGRAM = str(Path(sys.executable).with_name("streamglot"))
MAIN = "import sys; from streamglot.cli import main; sys.exit(main())"
ENVIRONMENT = ("PYTHON", "LC_", "LANG", "TZ", "TYPER_", "_TYPER", "FORCE_COLOR", "PY_COLORS", "TERMINAL_WIDTH", "GITHUB_ACTIONS")
"""How the variables start that Python and packages read while they start and import. Each set of values has its own warm process."""
MAX_MESSAGE = 100_000
"""Bytes of a start's arguments and environment that one message to the warm process can carry. Longer ones start cold."""


class Popen(subprocess.Popen[bytes]):
    """As that of ``subprocess``, for the command line (``PROGRAM``) and for Python code after ``-c``, which may import the tests'
    modules. ``controlling`` makes standard input the controlling terminal."""

    def __init__(self, command: Sequence[str], *, controlling: bool = False, **options: Any) -> None:  # Any: as of subprocess
        self._code = code_of(command)
        self._arguments = [*command[1:]] if command[0] == PROGRAM else [*command[3:]]
        self._controlling = controlling
        self._status: socket.socket | None = None
        if controlling:
            options["start_new_session"] = True
        cold = os.environ.get("STREAMGLOT_TESTS_COLD") == "1" or self._code is None
        if cold or len(json.dumps([command, options.get("env")], default=str)) > MAX_MESSAGE:
            self._code = None
            options["preexec_fn"] = self._prepare
        super().__init__(command, **options)

    def _prepare(self) -> None:
        if self._controlling:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        default_signals()

    def _execute_child(self, *values: Any) -> None:  # Any: as of subprocess
        if self._code is None:
            super()._execute_child(*values)  # type: ignore[misc]  # not in the stubs
            return
        given = inspect.signature(super()._execute_child).bind(*values).arguments  # type: ignore[misc]  # not in the stubs
        environment: Mapping[str, str] = os.environ if given["env"] is None else given["env"]
        started = {
            "code": self._code,
            "arguments": ["-c" if self.args[0] != PROGRAM else PROGRAM, *map(os.fspath, self._arguments)],  # type: ignore[index]
            "environment": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
            "directory": os.fspath(given["cwd"] or Path.cwd()),
            "session": bool(given["start_new_session"]),
            "controlling": self._controlling,
        }
        pipes = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        self._status, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            fds = [number if fd == -1 else fd for number, fd in enumerate(pipes)]
            socket.send_fds(warm(python_variables(environment)), [json.dumps(started).encode()], [*fds, far.fileno()])
        kind, number = self._told()
        if kind != b"p":
            raise OSError(f"the warm process could not start {self.args!r}")
        self.pid = number
        self._child_created = True
        names = ["p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"]
        self._close_pipe_fds(*(given[name] for name in names))  # type: ignore[attr-defined]  # not in the stubs

    def _told(self) -> tuple[bytes, int]:
        assert self._status is not None
        message = self._status.recv(64)
        if not message:
            raise OSError("the warm process has ended")
        return message[:1], int(message[1:])

    def _wait(self, timeout: float | None) -> int:
        if self._code is None:
            return int(super()._wait(timeout))  # type: ignore[misc]  # not in the stubs
        if self.returncode is None:
            assert self._status is not None
            if not select.select([self._status], [], [], timeout)[0]:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = self._told()[1]
            self._status.close()
        return int(self.returncode)

    def _internal_poll(self, *values: Any, **named: Any) -> int | None:  # Any: as of subprocess
        if self._code is None:
            found: int | None = super()._internal_poll(*values, **named)  # type: ignore[misc]  # not in the stubs
            return found
        if self.returncode is None and self._status is not None and select.select([self._status], [], [], 0)[0]:
            self._wait(0)
        return self.returncode


def run(
    command: Sequence[str], *, sent: bytes = b"", timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """As ``subprocess.run``, with the output captured unless it is sent elsewhere."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with Popen(command, **pipes) as process:
        try:
            out, errors = process.communicate(sent if pipes["stdin"] == subprocess.PIPE else None, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def code_of(command: Sequence[str]) -> str | None:
    if command[0] == PROGRAM:
        return MAIN
    return command[2] if command[0] == sys.executable and command[1] == "-c" else None


def default_signals() -> None:
    """A test run that was put into the background of a shell has Ctrl-C switched off, for all that it starts, and one under
    ``nohup`` has hang-ups."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def python_variables(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in environment.items() if name.startswith(ENVIRONMENT)))


@cache
def warm(variables: tuple[tuple[str, str], ...]) -> socket.socket:
    """The connection to a warm process. The process ends with this one."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import warm; exec(warm.serve({far.fileno()}), vars(warm.main_module()))"
    environment = {**dict(variables), "PATH": os.environ["PATH"]}
    with far:
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            pass_fds=[far.fileno()],
            start_new_session=True,
        )
    return near


def serve(fd: int) -> str:
    """The loop of the warm process. It returns in each fork, with the code to run."""
    sys.path.pop()
    import_everything()
    server = socket.socket(fileno=fd)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    gc.collect()
    gc.freeze()
    while True:
        ready = select.select([server.fileno(), wake], [], [])[0]
        if wake in ready:
            os.read(wake, 4096)
            tell_the_ended(running)
        if server.fileno() not in ready:
            continue
        message, fds, _, _ = socket.recv_fds(server, 2 * MAX_MESSAGE, 8)
        if not message:
            os._exit(0)
        status = socket.socket(fileno=fds[3])
        pid = os.fork()
        if pid == 0:
            own = [server, status, *running.values()]
            return become(json.loads(message), fds[:3], [one.detach() for one in own][1])
        running[pid] = status
        for number in fds[:3]:
            os.close(number)


def tell_the_ended(running: dict[int, socket.socket]) -> None:
    while running:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        with running.pop(pid) as told, suppress(OSError):  # nobody waits for it
            told.send(b"s%d" % os.waitstatus_to_exitcode(status))


def become(started: dict[str, Any], fds: list[int], status: int) -> str:  # Any: decoded JSON
    """Makes the fork the process that was asked for."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if started["session"]:
        os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    if started["controlling"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(started["directory"])
    os.environ.clear()
    os.environ.update(started["environment"])
    os.write(status, b"p%d" % os.getpid())
    os.closerange(3, 1 << 16)
    for name, number, mode in (("stdin", 0, "rb"), ("stdout", 1, "wb"), ("stderr", 2, "wb")):
        old = getattr(sys, name)
        raw = open(number, mode, closefd=False)  # noqa: SIM115  # it lives as long as the process
        buffered = name == "stderr" or (mode == "wb" and os.isatty(number))
        stream = io.TextIOWrapper(raw, old.encoding, old.errors, line_buffering=buffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = started["arguments"]
    if started["arguments"][0] == "-c":
        sys.path.insert(0, "")
    else:
        sys.path.insert(0, str(Path(PROGRAM).parent))
    code: str = started["code"]
    return code


def main_module() -> types.ModuleType:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return module


def import_everything() -> None:
    package = importlib.import_module("streamglot")
    for found in pkgutil.walk_packages(package.__path__, "streamglot."):
        if not found.name.endswith("__main__"):
            try:
                importlib.import_module(found.name)
            except ImportError:
                continue  # an extra that is not installed
