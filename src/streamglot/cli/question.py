"""Builds a question from the command line: words, standard input, attachments, tools, a schema."""

from __future__ import annotations

import base64
import mimetypes
import sys
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from ..dialects import dialect
from ..errors import ConfigError, RequestError
from ..messages import EFFORTS, MediaPart, Message, OutputFormat, Part, Reasoning, Request, TextPart
from .commands.translate import declared_tools
from .files import SETTINGS_BYTES, read_file, read_json, shown
from .output.terminal import well_formed
from .output.units import shown_size
from .tool_options import ToolOptions

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
        """Returns the request for these messages with these options."""
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
        """Returns the message of the user: the attachments, then the text."""
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
    """Returns a file or an address as a part of the message: text as text, everything else as media."""
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
