"""The process beside one MCP server. It alone imports the MCP SDK; ``source.py`` starts it and sends it requests.

Lines of JSON in both directions. The first line on standard input is the server's name and settings. Then:

    {"id": 1, "op": "list"}                                  -> {"id": 1, "tools": [{"name", "description", "parameters", …}]}
    {"id": 2, "op": "call", "name": …, "arguments": {…}}     -> {"id": 2, "text": …, "is_error": …, "media": [[mime, base64], …]}
    the same with "meta": {"traceparent": …}                 -> the same; the server gets it as the ``_meta`` of the call
    {"id": 2, "op": "cancel"}                                -> nothing
    a failure of any of them                                 -> {"id": 2, "error": …}
    without being asked                                      -> {"event": "ready" | "changed" | "failed", "error": …}

The SDK's traps stay in here: a dropped connection cancels the task that owns the client, closing from another task spins, and
large results are read slowly. The process ends whenever the connection does; its parent starts another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Any, Final

import msgspec

from ...json_types import JsonObject
from ..settings import McpServer

TEXT_CHARS: Final = 4 * 2**20
"""Characters of the text of one result; the rest is cut."""
MEDIA_CHARS: Final = 8 * 2**20
"""Base64 characters of one image or sound. Models take about 5 MB; a larger medium is left out."""
PAGES: Final = 64
"""Pages of a list of tools that are read. A server may send pages without end."""
TOOLS: Final = 512
"""Tools of one server that are listed. No model takes more."""
LINE_BYTES: Final = 16 * 2**20
"""Bytes of the longest line that is read from the parent."""
CLOSED: Final = -32000
"""The SDK's error code for a connection that is lost permanently."""


class McpWorker:
    def __init__(self, name: str, settings: McpServer) -> None:
        self._name = name
        self._settings = settings
        self._client: Any = None  # Any: a client of the SDK, which is loaded late
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self, lines: asyncio.StreamReader) -> None:
        from mcp import Client

        async with Client(self._transport(), message_handler=self._notified) as client:
            self._client = client
            say({"event": "ready"})
            listening = asyncio.ensure_future(self._listen())
            try:
                await self._serve(lines)
            finally:
                for task in (listening, *self._tasks.values()):
                    task.cancel()

    def _transport(self) -> Any:  # Any: the SDK accepts several types
        settings = self._settings
        if settings.url:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            auth = None
            if settings.oauth is not None:
                from .oauth import provider

                auth = provider(self._name, settings.url, settings.oauth)
            # The parent has the time limits.
            http = httpx2.AsyncClient(headers=settings.headers, auth=auth, timeout=None, follow_redirects=True)
            return streamable_http_client(settings.url, http_client=http)
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        command, *arguments = settings.command
        parameters = StdioServerParameters(command=command, args=arguments, env=settings.env or None, cwd=settings.cwd or None)
        return stdio_client(parameters, errlog=open(os.devnull, "w"))  # open as long as the process lives

    async def _notified(self, message: object) -> None:
        """Servers of the older protocol push notifications."""
        if "ToolListChanged" in type(getattr(message, "root", message)).__name__:
            say({"event": "changed"})

    async def _listen(self) -> None:
        """Servers of the current protocol notify those who subscribe."""
        with contextlib.suppress(Exception):  # an older server, or one that has no notifications
            async with self._client.listen(tools_list_changed=True) as changes:
                say({"event": "changed"})  # the list may have changed before the subscription began
                async for _ in changes:
                    say({"event": "changed"})

    async def _serve(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            message = msgspec.json.decode(line)
            number = message["id"]
            if message["op"] == "cancel":
                if number in self._tasks:
                    self._tasks[number].cancel()
                continue
            self._tasks[number] = asyncio.ensure_future(self._answer(message))

    async def _answer(self, message: JsonObject) -> None:
        number = message["id"]
        try:
            if message["op"] == "list":
                say({"id": number, "tools": await self._list()})
            else:
                called = await self._client.call_tool(message["name"], message["arguments"], meta=message.get("meta"))
                say({"id": number, **_result(called)})
        except Exception as error:
            say({"id": number, "error": _words(error)})
            if getattr(getattr(error, "error", error), "code", None) == CLOSED:
                say({"event": "failed", "error": "the connection to the server is closed"})
                os._exit(1)
        finally:
            del self._tasks[number]

    async def _list(self) -> list[JsonObject]:
        tools: list[JsonObject] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await self._client.list_tools(cursor=cursor, cache_mode="refresh")
            tools += [_declared(tool) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None or len(tools) >= TOOLS:
                break
        return tools[:TOOLS]


def _declared(tool: Any) -> JsonObject:  # Any: a tool of the SDK
    hints = tool.annotations
    return {
        "name": tool.name,
        "description": tool.description or tool.title or "",
        "parameters": tool.input_schema,
        "read_only": None if hints is None else hints.read_only_hint,
    }


def _result(result: Any) -> JsonObject:  # Any: a result of the SDK
    """Content and structured content. A server that gives both says the same twice, so the text counts."""
    texts: list[str] = []
    media: list[tuple[str, str]] = []
    for block in result.content:
        match block.type:
            case "text":
                texts.append(block.text)
            case "image" | "audio" if len(block.data) <= MEDIA_CHARS:
                media.append((block.mime_type, block.data))
            case "image" | "audio":
                texts.append(f"[a medium of the type {block.mime_type} was left out: it has more than {MEDIA_CHARS} characters]")
            case "resource_link":
                texts.append(f"[{block.name}]({block.uri})")
            case "resource":
                texts.append(getattr(block.resource, "text", None) or f"[the binary resource {block.resource.uri}]")
            case other:
                texts.append(f"[content of the type {other}]")
    if result.structured_content is not None and not any(texts):
        texts = [msgspec.json.encode(result.structured_content).decode()]
    text = "\n".join(texts)
    if len(text) > TEXT_CHARS:
        text = f"{text[:TEXT_CHARS]}\n[cut here: the result has {len(text)} characters]"
    return {"text": text, "is_error": bool(result.is_error), "media": media}


def _words(error: BaseException) -> str:
    """The reason of an error. The SDK wraps errors into groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:2000]


def say(line: JsonObject) -> None:
    """Writes a line to the parent. If the parent is gone, this process ends."""
    try:
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()
    except OSError:
        os._exit(1)


async def main() -> int:
    lines = asyncio.StreamReader(LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    name, settings = msgspec.json.decode(await lines.readline(), type=tuple[str, McpServer])
    try:
        await McpWorker(name, settings).run(lines)
    except BaseException as error:
        say({"event": "failed", "error": _words(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
