"""The question that a command line asks: words, standard input, attachments, tools, a schema."""

from __future__ import annotations

import base64
import mimetypes
import os
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from ..dialects import dialect
from ..errors import ConfigError, RequestError
from ..messages import MediaPart, Message, OutputFormat, Part, Reasoning, Request, TextPart
from .tool_options import ToolOptions
from .translate import declared_tools

ATTACHMENT_BYTES: Final = 20 * 2**20
"""One file: more than the providers take in one request."""
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class Question(Struct, kw_only=True):
    """What the options said, before anything was read."""

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
        """The request with these messages behind what the options say."""
        if self.effort and self.effort not in EFFORTS:
            raise ConfigError(f"there is no effort {self.effort!r}; there are: {', '.join(EFFORTS)}")
        system = [Message("system", [TextPart(self.system)])] if self.system else []
        request = Request(
            model=self.model,
            messages=[*system, *messages],
            stream=True,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            reasoning=Reasoning(effort=self.effort) if self.effort else None,  # type: ignore[arg-type]  # it was looked up
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
        """What the user says: the attachments, then the words."""
        return Message("user", [*(attached(name) for name in self.attachments), *([TextPart(text)] if text else [])])


def spoken(words: list[str]) -> str:
    """The words of the command line and what stands on standard input, joined."""
    parts = [" ".join(words)] if words else []
    if sys.stdin is not None and not sys.stdin.isatty():
        given = sys.stdin.buffer.read().decode("utf-8", "replace").strip("\n")
        if given:
            parts.append(given)
    return "\n\n".join(parts)


def attached(name: str) -> Part:
    """A file or an address as a part of the message: text as text, everything else as a medium."""
    if name.startswith(("https://", "http://", "data:")):
        return MediaPart(mimetypes.guess_type(name.split("?", 1)[0])[0] or "", url=name)
    path = Path(name).expanduser()
    try:
        if os.path.getsize(path) > ATTACHMENT_BYTES:
            raise ConfigError(f"{name} is larger than {ATTACHMENT_BYTES // 2**20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}") from None
    mime = mimetypes.guess_type(path.name)[0] or ""
    if not mime.startswith(("image/", "audio/", "video/")) and mime != "application/pdf":
        try:
            return TextPart(f"{path.name}:\n\n{data.decode()}\n\n")
        except UnicodeDecodeError:
            mime = mime or "application/octet-stream"
    return MediaPart(mime, data=base64.b64encode(data).decode(), filename=path.name)


def _output(schema: str) -> OutputFormat | None:
    """A JSON schema, as a file or as it is."""
    if not schema:
        return None
    text = schema
    if not schema.lstrip().startswith("{"):
        try:
            text = Path(schema).read_text()
        except OSError as error:
            raise ConfigError(f"the schema {schema} cannot be read: {error.strerror or error}") from None
    try:
        value: Any = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"the schema is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError("the schema must be a JSON object")
    return OutputFormat("json_schema", name="answer", schema=value)
