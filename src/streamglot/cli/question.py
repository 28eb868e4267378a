"""A question of the command line: its options, words, standard input, attachments, schema and tools, and who approves their calls."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import Struct, field

from ..client import Client
from ..config import LoadedConfig, load
from ..dialects import dialect
from ..errors import ConfigError, RequestError
from ..json_types import JsonValue
from ..messages import EFFORTS, MediaPart, Message, OutputFormat, Part, Reasoning, Request, TextPart
from ..text import matches_tool
from ..tools import Tool
from ..tools.settings import McpServer
from . import completion
from .options import (
    FILE,
    SETTINGS_BYTES,
    completed,
    declared_tools,
    read_file,
    read_json,
    shown,
    text,
    together,
)
from .output.terminal import neutral, print_error, well_formed
from .output.units import shown_size

MODEL = click.option(
    "-m",
    "--model",
    type=text,
    default="",
    help="The model, or upstream/model.",
    shell_complete=completed(completion.models),
)
SYSTEM = click.option("-s", "--system", type=text, default="", help="The system message.")
TOOLS_FILE = click.option(
    "--tools-file", type=FILE, help="A JSON list of tools that the model may call. Calls are shown, not run."
)
MAX_TOKENS = click.option("--max-tokens", type=click.IntRange(min=1), help="The maximum length of the answer, in tokens.")
SCHEMA = click.option("--schema", type=text, default="", help="A JSON schema for the answer: a file, or the schema itself.")
QUESTION = together(
    MODEL,
    SYSTEM,
    click.option("-a", "--attach", multiple=True, help="A file or an address to attach. May be repeated."),
    TOOLS_FILE,
    click.option(
        "-T", "--tools", multiple=True, type=text, help="Tools that are run for the model: a name or glob. May be repeated."
    ),
    click.option(
        "--mcp", multiple=True, type=text, help="Tools of an MCP server: its name, address or command. May be repeated."
    ),
    click.option(
        "--approve",
        multiple=True,
        type=text,
        help="Run tools `always`, `ask` first (unless they only read), or `never`. GLOB=MODE for some tools.",
    ),
    MAX_TOKENS,
    click.option("-t", "--temperature", type=float, help="The sampling temperature."),
    click.option("--effort", type=text, default="", help="How much the model thinks: none, low, medium, high …"),
)
WORDS = click.argument("words", nargs=-1, type=text)
MODES: Final = ("always", "ask", "never")
SHOWN_CHARS: Final = 2000
"""Characters of the arguments that are shown for approval, so that the question fits on the screen."""

SHOWN_SECONDS: Final = 0.01
"""Seconds between two checks whether the call is shown: shorter than a person notices."""


class ToolOptions(Struct, kw_only=True):
    """``patterns``: globs of tools; naming them here enables them. ``mcp``: names of configured servers, addresses, or commands.
    ``approve``: ``always``, ``ask`` or ``never``, or ``GLOB=MODE`` for some tools."""

    patterns: list[str] = field(default_factory=list)
    mcp: list[str] = field(default_factory=list)
    approve: list[str] = field(default_factory=list)

    def client(self) -> Client:
        """A client whose models may use these tools."""
        if not self.patterns and not self.mcp:
            return Client()
        loaded = load()
        patterns = [*self.patterns, *(f"{add_server(loaded, server)}.*" for server in self.mcp)]
        loaded.config.tools.enabled = [*loaded.config.tools.enabled, *patterns]
        client = Client(config=loaded, tools=patterns)
        client.pool.tools.approve = Approval(self.approve)
        return client


def add_server(loaded: LoadedConfig, server: str) -> str:
    """The name of a configured server, or adds a server by its address or its command and returns the new name."""
    servers = loaded.config.tools.mcp
    if server in servers:
        return server
    if server.startswith(("http://", "https://")):
        settings, name = McpServer(url=server), "mcp"
    else:
        command = shlex.split(server)
        if not command:
            raise ConfigError("--mcp needs the name of a server, its address, or the command that starts it")
        settings, name = McpServer(command=command), Path(command[-1]).stem or "mcp"
    name = "".join(letter if letter.isalnum() else "_" for letter in name)
    while name in servers:
        name += "_"
    servers[name] = settings
    return name


class Approval:
    """Asks at the terminal before a tool runs, unless the options allow it or the tool is ``read_only``."""

    def __init__(self, rules: list[str]) -> None:
        self._default = "ask"
        self._rules: list[tuple[str, str]] = []
        for rule in rules:
            pattern, _, mode = rule.rpartition("=")
            if mode not in MODES:
                raise ConfigError(
                    f"--approve must be {', '.join(MODES)}, or a glob with one of them (weather*=always), not {rule!r}"
                )
            if pattern:
                self._rules.append((pattern, mode))
            else:
                self._default = mode
        self._asking = asyncio.Lock()
        self.is_shown: Callable[[], bool] = lambda: True
        """Whether the terminal shows all that has arrived: the question must not appear inside the line with the call."""

    async def __call__(self, tool: Tool, arguments: Mapping[str, JsonValue]) -> bool:
        mode = next((mode for pattern, mode in self._rules if matches_tool(tool.name, [pattern])), self._default)
        if mode == "ask" and tool.read_only:
            return True
        if mode != "ask":
            return mode == "always"
        async with self._asking:
            while not self.is_shown():
                await asyncio.sleep(SHOWN_SECONDS)
            allowed = await asyncio.to_thread(_ask, question_about(tool, arguments))
        if allowed is None:
            print_error(f"{tool.name} was not run: there is no terminal to ask at; --approve '{tool.name}=always' allows it")
        return bool(allowed)


def question_about(tool: Tool, arguments: Mapping[str, JsonValue]) -> str:
    """The question without control characters."""
    given = msgspec.json.encode(arguments).decode()
    shown = given if len(given) <= SHOWN_CHARS else f"{given[:SHOWN_CHARS]} … ({len(given)} characters)"
    return f"Run {neutral(tool.name)}({neutral(shown)})? [y/N] "


def _ask(question: str) -> bool | None:
    """Asks the user at the terminal; None without a terminal."""
    try:
        with open("/dev/tty", "w") as shown, open("/dev/tty") as typed:  # standard input may hold the question to the model
            shown.write(question)
            shown.flush()
            return typed.readline().strip().lower() in ("y", "yes")
    except OSError:
        return None


ATTACHMENT_BYTES: Final = 20 * 2**20
"""Bytes of one attachment: more than providers accept in one request."""
INPUT_BYTES: Final = 2**24
"""Bytes of standard input: about ten times the context of any model. A pipe may have no end."""


class Question(Struct, kw_only=True):
    """The options of a question, before any file is read."""

    model: str = ""
    system: str = ""
    schema: str = ""
    attachments: list[str] = field(default_factory=list)
    tools_file: Path | None = None
    tools: ToolOptions = field(default_factory=ToolOptions)
    max_tokens: int | None = None
    temperature: float | None = None
    effort: str = ""

    def request(self, messages: list[Message]) -> Request:
        """The request for these messages with these options."""
        effort = next((word for word in EFFORTS if word == self.effort), None)
        if self.effort and effort is None:
            raise ConfigError(f"the effort {self.effort!r} is not known; choose one of: {', '.join(EFFORTS)}")
        system = [Message("system", [TextPart(self.system)])] if self.system else []
        request = Request(
            model=self.model,
            messages=[*system, *messages],
            stream=True,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            reasoning=Reasoning(effort=effort) if effort else None,
            output=_output(self.schema),
        )
        tools = declared_tools(self.tools_file)
        if tools:
            try:
                request.tools = dialect("openai_chat").parse_request({"messages": [], "tools": tools}).tools
            except RequestError as error:
                raise ConfigError(f"{self.tools_file}: {error.message}") from None
        return request

    def message(self, text: str) -> Message:
        """The message of the user: the attachments, then the text."""
        return Message("user", [*(attached(name) for name in self.attachments), *([TextPart(text)] if text else [])])


def question_text(words: list[str]) -> str:
    """Joins the words of the command line and the text of standard input."""
    parts = [" ".join(words)] if words else []
    if sys.stdin is not None and not sys.stdin.isatty():
        given = sys.stdin.buffer.read(INPUT_BYTES + 1)
        if len(given) > INPUT_BYTES:
            raise ConfigError(f"standard input is larger than the limit of {shown_size(INPUT_BYTES)}")
        text = given.decode("utf-8", "replace").strip("\n")
        if text:
            parts.append(text)
    return "\n\n".join(parts)


def attached(name: str) -> Part:
    """A file or an address as a part of the message: text as text, everything else as media."""
    if name.startswith(("https://", "http://", "data:")):
        name = well_formed(name)
        return MediaPart(mimetypes.guess_type(name.split("?", 1)[0])[0] or "", url=name)
    path = Path(name).expanduser()
    data = read_file(path, ATTACHMENT_BYTES, "the attachment")
    filename = shown(Path(path.name))
    mime = mimetypes.guess_type(path.name)[0] or ""
    if not mime.startswith(("image/", "audio/", "video/")) and mime != "application/pdf":
        try:
            return TextPart(f"{filename}:\n\n{data.decode()}\n\n")
        except UnicodeDecodeError:
            mime = mime or "application/octet-stream"
    return MediaPart(mime, data=base64.b64encode(data).decode(), filename=filename)


def _output(schema: str) -> OutputFormat | None:
    """Parses a JSON schema that is given as a file name or as JSON."""
    if not schema:
        return None
    inline = schema.lstrip().startswith("{")
    value = read_json(schema.encode() if inline else read_file(Path(schema), SETTINGS_BYTES, "the schema"), "the schema")
    if not isinstance(value, dict):
        raise ConfigError("the schema must be a JSON object")
    return OutputFormat("json_schema", name="answer", schema=value)


def question_of(given: dict[str, Any]) -> Question:  # Any: Click passes options by their names
    """The question of these options."""
    return Question(
        model=given["model"],
        system=given["system"],
        schema=given.get("schema", ""),
        attachments=list(given["attach"]),
        tools_file=given["tools_file"],
        tools=ToolOptions(patterns=list(given["tools"]), mcp=list(given["mcp"]), approve=list(given["approve"])),
        max_tokens=given["max_tokens"],
        temperature=given["temperature"],
        effort=given["effort"],
    )
