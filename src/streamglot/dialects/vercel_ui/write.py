"""Writes the UI message stream: ids that are opened and closed, calls with their complete input, one finish."""

from __future__ import annotations

from typing import Unpack

from ...events import (
    Citation,
    Extra,
    KeepAlive,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepEnd,
    StreamEnd,
    StreamError,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
)
from ...framing import sse
from ...json_types import JsonObject
from ..common.server_tools import approval_in
from ..common.tables import camel_case_usage
from ..common.writer import Rules, Writer, WriterOptions, encode
from .wire import (
    DIALECT,
    FINISH_OF,
    compact_json,
    own_part,
    write_citation,
    write_metadata,
    write_source,
)

_CUT_OFF = "The stream broke off inside the input of this call; it was not run."
_NO_JSON = "The input of this call is not valid JSON; it was not run."


class VercelUiWriter(Writer):
    """``message_id`` is the id of the answer if the client's own must not be used. ``dynamic``: the frontend does not know the
    tools by type, so each call becomes a ``dynamic-tool`` part."""

    dialect = DIALECT
    folded = {
        "Citation": "a source part, and citations on the end of its text for version 7",
        "Media": "a file part; pieces of one medium are joined first",
        "Usage": "metadata of the message, at its finish",
        "StreamError": "an error part and a finish with the reason error",
        "Extra": "own parts unchanged; a request for approval becomes tool-approval-request",
        "KeepAlive": "a comment",
    }
    headers = {"x-vercel-ai-ui-message-stream": "v1", "x-accel-buffering": "no", "cache-control": "no-cache"}

    def __init__(self, *, message_id: str = "", dynamic: bool = True, **more: Unpack[WriterOptions]) -> None:
        self._message_id = message_id
        self._dynamic = {"dynamic": True} if dynamic else {}
        self._step_open = False
        self._texts = 0
        self._thoughts = 0
        self._sources = 0
        self._block = ""
        self._closing = b""
        self._content = b""
        self._marks: JsonObject = {}
        self._citations: list[JsonObject] = []
        self._call: ToolCallStart | None = None
        self._call_id = ""
        self._call_ids: dict[str, str] = {}
        self._written_calls: dict[str, JsonObject] = {}
        self._arguments_text: list[str] = []
        self._media: dict[str, tuple[Media, list[str], list[str]]] = {}
        super().__init__(**more)

    def rules(self) -> Rules:
        return {
            **super().rules(),
            TextStart: self._text_start,
            TextDelta: self._text,
            TextEnd: self._text_end,
            ReasoningStart: self._reasoning_start,
            ReasoningDelta: lambda event: self.pieces.append(b"%b%b}\n\n" % (self._content, encode(event.text))),
            ReasoningEnd: self._reasoning_end,
            ToolCallStart: self._call_start,
            ToolCallDelta: self._arguments,
            ToolCallEnd: self._call_end,
            ToolResult: self._result,
            Citation: self._citation,
            Media: self._medium,
            KeepAlive: lambda event: self.pieces.append(sse.comment(event.comment or "keep-alive")),
            Extra: self._extra,
        }

    # --- the message and its steps

    def write_start(self) -> None:
        start: JsonObject = {}
        if self._message_id or self.id:
            start["messageId"] = self._message_id or self.id
        if self.model:
            start["messageMetadata"] = {"model": self.model}
        self._write("start", **start)

    def write_end(self, event: StreamEnd) -> None:
        self._step_end()
        if event.reason == "cancelled":
            if self.usage is not None:
                self._write("message-metadata", messageMetadata={"usage": camel_case_usage(self.usage)})
            self._write("abort", reason=event.raw_reason or "cancelled")
        else:
            metadata: JsonObject = {"finishReason": event.reason}
            if event.raw_reason:
                metadata["rawFinishReason"] = event.raw_reason
            if event.sequence:
                metadata["stopSequence"] = event.sequence
            self._finish(FINISH_OF[event.reason], metadata)
        self.pieces.append(b"data: [DONE]\n\n")

    def write_error(self, event: StreamError) -> None:
        """Open parts stay open: the client keeps an unfinished part and never runs a call without its input."""
        for medium, _, _ in self._media.values():
            self.lose(medium)
        self._write("error", errorText=event.message or event.code)
        if self.abort:
            return
        if self.started:
            error = {"code": event.code, "origin": event.origin, "retryable": event.retryable, "status": event.status}
            self._finish("error", {"finishReason": "error", "error": error})
        self.pieces.append(b"data: [DONE]\n\n")

    def _finish(self, reason: str, metadata: JsonObject) -> None:
        if self.usage is not None:
            metadata["usage"] = camel_case_usage(self.usage)
        self._write("finish", finishReason=reason, messageMetadata=metadata)

    def _open_step(self) -> None:
        if not self._step_open:
            self.ensure_started()
            self._step_open = True
            self._write("start-step")

    def end_step(self, event: StepEnd) -> None:
        super().end_step(event)
        self._step_end()

    def _step_end(self) -> None:
        self._open_step()
        self._finish_step()

    def _finish_step(self) -> None:
        self._write_media()
        self._step_open = False
        self._write("finish-step")

    # --- text and reasoning

    def _text_start(self, event: TextStart) -> None:
        """Nothing is written before the first text: an empty part would come back with the next request."""
        self._texts += 1
        self._marks = {"refusal": True} if event.refusal else {}

    def _text(self, event: TextDelta) -> None:
        if not self._block:
            self._open_block("text", f"text-{self._texts}")
        self.pieces.append(b"%b%b}\n\n" % (self._content, encode(event.text)))

    def _reasoning_start(self, event: ReasoningStart) -> None:
        self._thoughts += 1
        self._marks = {"summary": True} if event.summary else {}
        self._open_block("reasoning", f"reasoning-{self._thoughts}")

    def _open_block(self, kind: str, block: str) -> None:
        self._open_step()
        self._block = block
        self._closing = f"{kind}-end".encode()
        self._content = b'data: {"type":"%b-delta","id":"%b","delta":' % (kind.encode(), block.encode())
        self._write(f"{kind}-start", id=block, **write_metadata(None, **self._marks))

    def _close_block(self, fields: JsonObject) -> None:
        self._write(self._closing.decode(), id=self._block, **fields)
        self._block = ""
        self._citations = []

    def _text_end(self, event: TextEnd) -> None:
        if not self._block:
            if event.echo is None:
                return
            self._open_block("text", f"text-{self._texts}")
        metadata = write_metadata(event.echo, **self._marks) if event.echo is not None else {}
        self._close_block({**metadata, **({"citations": self._citations} if self._citations else {})})

    def _reasoning_end(self, event: ReasoningEnd) -> None:
        self._close_block(write_metadata(event.echo, **self._marks, redacted=event.redacted))

    # --- calls

    def _call_start(self, event: ToolCallStart) -> None:
        self._open_step()
        self._call = event
        self._call_id = self._unique(event.call_id)
        executed = {"providerExecuted": True} if event.kind == "server" else {}
        call = {"toolCallId": self._call_id, "toolName": event.name, **executed, **self._dynamic}
        self._written_calls[self._call_id] = {**executed, **self._dynamic}
        self._content = b'data: {"type":"tool-input-delta","toolCallId":%b,"inputTextDelta":' % encode(self._call_id)
        encoding = {"inputEncoding": "text"} if event.kind == "custom" else {}
        self._write("tool-input-start", **call, **encoding)

    def _arguments(self, event: ToolCallDelta) -> None:
        self._arguments_text.append(event.args)
        self.pieces.append(b"%b%b}\n\n" % (self._content, encode(event.args)))

    def _call_end(self, event: ToolCallEnd) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        text = "".join(self._arguments_text)
        self._arguments_text.clear()
        marks = {"kind": "custom"} if call.kind == "custom" else {}
        head = {
            "toolCallId": self._call_id,
            "toolName": call.name,
            **self._written_calls[self._call_id],
            **write_metadata(event.echo, call.native, **marks),
        }
        arguments = encode(text) if call.kind == "custom" else compact_json(text)
        if not event.complete or arguments is None:
            error = _NO_JSON if event.complete else _CUT_OFF
            self._write("tool-input-error", **head, input=text, errorText=error)
            return
        available = encode({"type": "tool-input-available", **head})
        self.pieces.append(b'data: %b,"input":%b}\n\n' % (available[:-1], arguments))

    def _unique(self, call_id: str) -> str:
        """The client keeps one call per id, so a repeated id of a later turn is replaced."""
        unique, number = call_id or "call", 1
        while unique in self._written_calls:
            number += 1
            unique = f"{call_id or 'call'}-{number}"
        self._call_ids[call_id] = unique
        return unique

    def _result(self, event: ToolResult) -> None:
        call_id = self._call_ids.get(event.call_id)
        if call_id is None:
            self.lose(event)
            return
        metadata = {**self._written_calls[call_id], **write_metadata(None, event.native)}
        if event.is_error:
            self._write("tool-output-error", toolCallId=call_id, errorText=event.content, **metadata)
        else:
            self._write("tool-output-available", toolCallId=call_id, output=event.content, **metadata)

    # --- citations, media and extras

    def _citation(self, event: Citation) -> None:
        source = write_source(event, f"source-{self._sources + 1}")
        if source is None:
            self.lose(event)
            return
        self._sources += 1
        self._open_step()
        self.pieces.append(sse.event(encode(source)))
        if self._block:
            self._citations.append(write_citation(event, source))

    def _medium(self, event: Media) -> None:
        self._open_step()
        if not event.id:
            self._file(event, event.data, event.transcript)
            return
        _, data, transcript = self._media.setdefault(event.id, (event, [], []))
        data.append(event.data)
        transcript.append(event.transcript)

    def _write_media(self) -> None:
        for event, data, transcript in self._media.values():
            self._file(event, "".join(data), "".join(transcript))
        self._media.clear()

    def _file(self, event: Media, data: str, transcript: str) -> None:
        url = event.url or f"data:{event.mime};base64,{data}"
        self._write("file", url=url, mediaType=event.mime, **write_metadata(None, transcript=transcript))

    def _extra(self, event: Extra) -> None:
        approval = approval_in(event)
        if approval is not None and approval.name and approval.call_id not in self._call_ids:
            # The client does not know the call. As a call of a server it is shown, and not run.
            self._call_start(ToolCallStart(approval.call_id, approval.name, "server"))
            self._arguments(ToolCallDelta(approval.arguments))
            self._call_end(ToolCallEnd())
        if approval is not None and approval.call_id in self._call_ids:
            reason = {"reason": approval.message} if approval.message else {}
            call_id = self._call_ids[approval.call_id]
            self._write("tool-approval-request", approvalId=approval.id, toolCallId=call_id, **reason)
            return
        own = own_part(event.data) if event.dialect == self.dialect else None
        if own is None:
            self.lose(event)
        else:
            self.ensure_started()
            self.pieces.append(sse.event(encode(own)))

    def _write(self, kind: str, **fields: object) -> None:
        self.pieces.append(b"data: %b\n\n" % encode({"type": kind, **fields}))
