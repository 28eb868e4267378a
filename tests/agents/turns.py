"""One turn of a scripted model, and the request for it, for every dialect."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from streamglot.messages import MediaPart, Part, Request, ToolResultPart, ToolSpec

ABORTED = "Tool execution aborted"
"""Texts that agents send instead of the result of a call that broke off."""


class Call(Struct):
    """A call of a tool. ``arguments`` is an object, or the text of a custom tool."""

    id: str
    name: str
    arguments: dict[str, Any] | str
    namespace: str = ""


class Turn(Struct):
    """``signature`` is the opaque state of the reasoning, which the upstream wants back."""

    text: str = ""
    reasoning: str = ""
    signature: str = ""
    calls: list[Call] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The same for the same turn, and another for another one."""
        return self.calls[0].id if self.calls else "last"


class Asked(Struct):
    """A request as the script sees it. ``results`` are all results of tools in the conversation, oldest first."""

    dialect: str
    model: str
    stream: bool
    tools: dict[str, ToolSpec]
    results: list[str]
    signatures: list[str]
    last_text: str
    wants_json: bool
    body: dict[str, Any]
    images: int = 0


def asked(dialect: str, request: Request, body: dict[str, Any]) -> Asked:
    parts = [part for message in request.messages for part in message.parts]
    echoes = [getattr(part, "echo", None) for part in parts]
    return Asked(
        dialect,
        request.model,
        request.stream,
        {tool.name: tool for tool in request.tools if tool.kind != "server"},
        [part.text for part in parts if isinstance(part, ToolResultPart) and ABORTED not in part.text],
        [str(echo.data) for echo in echoes if echo is not None],
        next((message.text for message in reversed(request.messages) if message.role == "user" and message.text), ""),
        request.output is not None and request.output.kind != "text",
        body,
        sum(isinstance(part, MediaPart) and part.mime.startswith("image/") for part in _everywhere(parts)),
    )


def _everywhere(parts: list[Part]) -> list[Any]:
    """The parts, and those inside of results."""
    return [inner for part in parts for inner in (part, *(part.content if isinstance(part, ToolResultPart) else ()))]
