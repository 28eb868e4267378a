"""Writes lines that every client accepts (no empty one, complete calls, counters on the last), and the response object."""

from __future__ import annotations

from typing import Final, Unpack

from ...events import (
    Extra,
    KeepAlive,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StreamEnd,
    StreamError,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from ...framing.lines import ndjson_line
from ...json_types import JsonObject
from ...messages import MediaPart, ReasoningPart, RefusalPart, Response, ResponseChoice, TextPart, ToolCallPart
from ...stages.steps import STEP_BREAK, with_step_breaks
from ..common.function_tools import call_arguments
from ..common.writer import Rules, Writer, WriterOptions, encode
from .read import OllamaReader
from .wire import COUNTERS, arguments_line, done_reason, error_body, write_time, write_usage

_ON_THE_LAST: Final = frozenset((*COUNTERS, "context", "remote_model", "remote_host", "_debug_info"))
_ON_A_LINE: Final = frozenset(("logprobs", "completed", "total"))


class OllamaWriter(Writer):
    """``generate``: lines of /api/generate (``response``, ``thinking``) instead of /api/chat (``message``)."""

    dialect = "ollama"
    folded = {
        "TextStart": "not written: the first delta starts it; a refusal is text",
        "TextEnd": "not written; an echo is lost",
        "ReasoningStart": "not written: the first delta starts it",
        "ReasoningEnd": "not written; an echo of another provider is lost",
        "ToolCallStart": "waits for the arguments: a call is one line",
        "ToolCallDelta": "waits for the rest: arguments are one object",
        "StepEnd": "an empty line between the texts of two steps",
        "Media": "an image, on /api/generate only",
        "KeepAlive": "a line with empty content",
    }

    def __init__(self, *, generate: bool = False, **more: Unpack[WriterOptions]) -> None:
        self._generate = generate
        self._head = b""
        self._open, self._close = (b'"response":', b"") if generate else (b'"message":{"role":"assistant","content":', b"}")
        self._call: ToolCallStart | None = None
        self._arguments: list[str] = []
        self._calls = 0
        self._last: JsonObject = {}
        super().__init__(**more)

    def rules(self) -> Rules:
        return {
            **super().rules(),
            TextDelta: lambda event: self._write(encode(event.text)),
            ReasoningDelta: lambda event: self._write(b'"","thinking":' + encode(event.text)),
            ToolCallDelta: lambda event: self._arguments.append(event.args),
            TextStart: self._text_start,
            TextEnd: self._block_end,
            ReasoningStart: lambda event: None,
            ReasoningEnd: self._block_end,
            ToolCallStart: self._call_start,
            ToolCallEnd: self._call_end,
            Media: self._media,
            Extra: self._extra,
            KeepAlive: lambda event: self._write(b'""'),
        }

    def write_start(self) -> None:
        self._head = self._make_head()

    def write_end(self, event: StreamEnd) -> None:
        reason = {"done_reason": done_reason(event.reason, event.raw_reason)}
        last = encode({**reason, **self._last, **write_usage(self.usage)})
        self.pieces.append(
            ndjson_line(b'%b%b""%b,"done":true,%b' % (self._head or self._make_head(), self._open, self._close, last[1:]))
        )

    def write_error(self, event: StreamError) -> None:
        self.pieces.append(ndjson_line(encode(error_body(event))))

    def _make_head(self) -> bytes:
        return encode({"model": self.model, "created_at": write_time(self.created)})[:-1] + b","

    def _write(self, content: bytes, beside: bytes = b"") -> None:
        """Writes one line. ``content`` may contain further fields of the message; ``beside`` are fields of the line."""
        head = self._head or self._make_head()
        self.pieces.append(b'%b%b%b%b%b,"done":false}\n' % (head, self._open, content, self._close, beside))

    def _text_start(self, _event: TextStart) -> None:
        if self.step_break.due():
            self._write(encode(STEP_BREAK))

    def _block_end(self, event: TextEnd | ReasoningEnd) -> None:
        own = event.echo is not None and event.echo.data == {"field": "thinking"}
        if (event.echo is not None and not own) or (isinstance(event, ReasoningEnd) and event.redacted):
            self.lose(event)

    def _call_start(self, event: ToolCallStart) -> None:
        self._arguments.clear()
        self._call = event
        if event.kind == "server" or self._generate:
            self._call = None
            self.lose(event)

    def _call_end(self, event: ToolCallEnd) -> None:
        call, self._call = self._call, None
        text = "".join(self._arguments)
        self._arguments.clear()
        if call is None:
            return
        if not event.complete:
            self.lose(event)
            return
        arguments = encode({"input": text}) if call.kind == "custom" else arguments_line(text)
        self._write(
            b'"","tool_calls":[{"id":%b,"function":{"index":%d,"name":%b,"arguments":%b}}]'
            % (encode(call.call_id), self._calls, encode(call.name), arguments)
        )
        self._calls += 1

    def _media(self, event: Media) -> None:
        if self._generate and event.data and event.mime.startswith("image/"):
            self._write(b'""', b',"image":' + encode(event.data))
        else:
            self.lose(event)

    def _extra(self, event: Extra) -> None:
        data = event.data if event.dialect == self.dialect else {}
        self._last.update({name: value for name, value in data.items() if name in _ON_THE_LAST})
        beside = {name: value for name, value in data.items() if name in _ON_A_LINE}
        if beside:
            self._write(b'""', b"," + encode(beside)[1:-1])
        if not data:
            self.lose(event)


# --- the whole response


def build(response: Response, *, strict: bool = False, generate: bool = False) -> JsonObject:
    """``generate``: the object of /api/generate. An incomplete answer is an error, because the format has no other way to say
    so."""
    if response.error is not None:
        return error_body(response.error)
    choice = next((choice for choice in response.choices if choice.index == 0), ResponseChoice(0))
    body: JsonObject = {"model": response.model, "created_at": write_time(response.created)}
    message, images = _message(choice, calls=not generate)
    if generate:
        body["response"] = message.pop("content")
        if "thinking" in message:
            body["thinking"] = message["thinking"]
        if images:
            body["image"] = images[-1]
    else:
        body["message"] = {"role": "assistant", **message}
    body["done"] = True
    body["done_reason"] = done_reason(choice.stop_reason or "other", choice.raw_stop_reason)
    for extra in response.extras:
        if extra.dialect == OllamaReader.dialect:
            body.update({name: value for name, value in extra.data.items() if name not in ("logprobs", "completed", "total")})
    logprobs = [token for extra in response.extras if extra.dialect == "ollama" for token in extra.data.get("logprobs", ())]
    if logprobs:
        body["logprobs"] = logprobs
    if response.extensions is not None and not strict:
        body["extensions"] = response.extensions
    return {**body, **write_usage(response.usage)}


def _message(choice: ResponseChoice, calls: bool) -> tuple[JsonObject, list[str]]:
    texts: list[str] = []
    thoughts: list[str] = []
    made: list[JsonObject] = []
    images: list[str] = []
    for part in with_step_breaks(choice):
        match part:
            case TextPart() | RefusalPart():
                texts.append(part.text)
            case ReasoningPart():
                thoughts.append(part.text)
            case ToolCallPart(kind="function" | "custom", complete=True) if calls:
                function = {"index": len(made), "name": part.name, "arguments": call_arguments(part)}
                made.append({"id": part.call_id, "function": function})
            case MediaPart() if part.mime.startswith("image/") and part.data:
                images.append(part.data)
    message: JsonObject = {"content": "".join(texts)}
    if any(thoughts):
        message["thinking"] = "".join(thoughts)
    if made:
        message["tool_calls"] = made
    return message, images
