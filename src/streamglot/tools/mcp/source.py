"""An MCP server as a source of tools, seen from our side of its worker process.

The worker is started when a tool of the server is first needed, and again after it died: at once the first time, then after
pauses that double. A call that the worker did not answer before it died has failed; it is never sent twice.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from typing import Any, Final

import msgspec

from ...errors import ConfigError
from ...installation import require
from ...json_types import JSON_ERRORS, JsonObject
from ...messages import MediaPart
from ...tasks import patient_timeout
from ..processes import kill_group, program_environment, reap
from ..settings import McpServer
from ..tool import TRACE_CONTEXT, Tool, ToolError, ToolOutput

LINE_BYTES: Final = 64 * 2**20
"""Bytes of the longest line that is read from a worker. A result is one line, so this limits results too."""
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 60.0
STEADY_SECONDS: Final = 30.0
"""A worker that ran for this many seconds counts as recovered: the pauses start again with the shortest one."""
CLOSE_SECONDS: Final = 8.0
"""Seconds that a worker has to end. The SDK in it gives its server up to 6.5 s before it kills it."""


class McpSource:
    """A source of tools. ``name`` is the server's name in the configuration; it prefixes the names of the tools."""

    def __init__(self, name: str, settings: McpServer) -> None:
        if bool(settings.command) == bool(settings.url):
            raise ConfigError(f"tools.mcp.{name} needs either a command or a url")
        if settings.oauth is not None and not settings.url:
            raise ConfigError(f"tools.mcp.{name} has oauth and no url: give secrets to a command in env")
        self.name = name
        self._settings = settings
        self._tools: list[Tool] | None = None
        self._worker: _WorkerProcess | None = None
        self._starting = asyncio.Lock()
        self._failures = 0
        self._not_before = 0.0

    async def tools(self) -> list[Tool]:
        """The server's tools. They are listed again after the server reported a change or was restarted."""
        if self._worker is not None and self._worker.changed:
            self._tools = None
        if self._tools is None:
            try:
                async with patient_timeout(self._settings.start_seconds):
                    worker = await self._running()
                    worker.changed = False
                    listed = await worker.ask({"op": "list"})
            except TimeoutError:
                await self._fail()
                raise ToolError(f"it did not list its tools within {self._settings.start_seconds:g} s") from None
            self._tools = [
                McpTool(self, tool["name"], tool["description"], tool["parameters"], tool["read_only"])
                for tool in listed["tools"]
            ]
        return self._tools

    async def call(self, name: str, arguments: JsonObject) -> ToolOutput:
        worker = await self._running()
        question = {"op": "call", "name": name, "arguments": arguments}
        trace = TRACE_CONTEXT.get()
        said = await worker.ask({**question, "meta": dict(trace)} if trace else question)
        media = [MediaPart(mime, data) for mime, data in said["media"]]
        return ToolOutput(said["text"], said["is_error"], media)

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    async def _running(self) -> _WorkerProcess:
        async with self._starting:
            if self._worker is not None and self._worker.alive:
                return self._worker
            if self._worker is not None:
                await self._fail()
            wait = self._not_before - time.monotonic()
            if wait > 0:
                raise ToolError(f"the MCP server {self.name!r} failed and is started again in {wait:.0f} s")
            try:
                require("mcp")
            except ConfigError as error:  # the server has no part in it, and no pause would help
                raise ToolError(error.message) from None
            worker = _WorkerProcess(self.name)
            try:
                await worker.start(self._settings)
            except BaseException:
                self._pause()
                await worker.close(at_once=True)
                raise
            self._worker = worker
            return worker

    async def _fail(self) -> None:
        """Stops a worker that died or does not answer. The next worker starts after a pause and lists the tools again."""
        worker, self._worker = self._worker, None
        self._tools = None
        if worker is not None:
            if time.monotonic() - worker.began > STEADY_SECONDS:
                self._failures = 0
            await worker.close(at_once=True)
        self._pause()

    def _pause(self) -> None:
        if self._failures:
            pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (self._failures - 1))
            self._not_before = time.monotonic() + pause
        self._failures += 1


WORKER_VARIABLES: Final = (
    *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    *("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "SSL_CERT_DIR", "SSL_CERT_FILE"),
)
"""Variables that the worker needs beside those of every program: to find our package, the tokens of OAuth, and the network. A server
that it starts gets none of them."""


def _secret_of(settings: McpServer) -> tuple[str, ...]:
    """The variable with the secret of OAuth, which the worker sends to the server."""
    return (settings.oauth.client_secret_env,) if settings.oauth is not None and settings.oauth.client_secret_env else ()


class McpTool(Tool):
    """One tool of an MCP server."""

    def __init__(self, source: McpSource, name: str, description: str, parameters: JsonObject, read_only: bool | None) -> None:
        super().__init__(f"{source.name}.{name}", description, parameters, read_only=read_only)
        self._source = source
        self._own_name = name

    async def run(self, arguments: JsonObject) -> ToolOutput:
        return await self._source.call(self._own_name, arguments)


class _WorkerProcess:
    """The worker process of one server. ``changed`` is set when the server reports that its list of tools changed."""

    def __init__(self, name: str) -> None:
        self.changed = False
        self.began = time.monotonic()
        self._name = name
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked: dict[int, asyncio.Future[JsonObject]] = {}
        self._number = 0
        self._fault = ""

    @property
    def alive(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def start(self, settings: McpServer) -> None:
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"{__package__}.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=program_environment(None, *WORKER_VARIABLES, *_secret_of(settings)),
            limit=LINE_BYTES,
            start_new_session=True,
        )
        self._reading = asyncio.ensure_future(self._read(process))
        await self._send([self._name, msgspec.to_builtins(settings)])
        await asyncio.shield(self._ready)

    async def ask(self, question: JsonObject) -> JsonObject:
        """The worker's answer. A cancellation is passed on to the server."""
        self._number += 1
        number = self._number
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            if not self.alive:
                raise ToolError(self._gone())
            await self._send({"id": number, **question})
            said: JsonObject = await answer
        except asyncio.CancelledError:
            with suppress(ToolError):
                await self._send({"id": number, "op": "cancel"})
            raise
        finally:
            self._asked.pop(number, None)
        if "error" in said:
            raise ToolError(f"the MCP server {self._name!r} failed: {said['error']}")
        return said

    async def _send(self, line: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(line) + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise ToolError(self._gone()) from None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._receive(msgspec.json.decode(line))
        except JSON_ERRORS:  # the line is too long, or is not JSON
            self._fault = f"its worker wrote what cannot be read, or more than {LINE_BYTES // 2**20} MiB at once"
        finally:
            kill_group(process)
            error = ToolError(self._gone())
            # Any: each waits for its own type of result
            waiters: list[asyncio.Future[Any]] = [self._ready, *self._asked.values()]
            for waiting in waiters:
                if not waiting.done():
                    waiting.set_exception(error)
                    waiting.exception()  # marks it as read: the waiting task may be gone

    def _receive(self, line: JsonObject) -> None:
        match line.get("event"):
            case "ready":
                if not self._ready.done():
                    self._ready.set_result(None)
            case "changed":
                self.changed = True
            case "failed":
                self._fault = str(line.get("error", ""))
            case _:
                answer = self._asked.get(line.get("id", 0))
                if answer is not None and not answer.done():
                    answer.set_result(line)

    def _gone(self) -> str:
        return f"the MCP server {self._name!r} ended{f': {self._fault}' if self._fault else ''}"

    async def close(self, *, at_once: bool = False) -> None:
        """Lets the worker end the server properly, then kills what is left."""
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            async with asyncio.timeout(0.0 if at_once else CLOSE_SECONDS):
                await process.wait()
        except TimeoutError:
            kill_group(process)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await reap(process)
