"""Writes an AG-UI run that the client's verifier accepts: everything that is opened is closed, every id is unique.

Tools that run on the server are activity: a snapshot when a tool starts, and patches for its arguments and for its end.
``MessageList`` has the messages of the run as the client stores them, for a MESSAGES_SNAPSHOT.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Unpack

from ...errors import ToolCallParseError
from ...events import (
    Citation,
    Echo,
    Extra,
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
from ...json_types import JsonObject
from ..common.server_tools import approval_in
from ..common.state import is_native, pack
from ..common.writer import Rules, Writer, WriterOptions, encode
from .wire import (
    DIALECT,
    MAX_DELTA_CHARS,
    MAX_EVENT_BYTES,
    PROTOCOL_VERSION,
    error_code,
    own_event,
    own_interrupt,
    write_approval,
    write_citation,
    write_media,
    write_usage,
)

ACTIVITY_TYPE: Final = "TOOL_RUN"


def activity_events(extensions: JsonObject) -> list[JsonObject]:
    """The events for these entries of ``tool_call_chunks``."""
    events: list[JsonObject] = []
    for chunk in extensions.get("tool_call_chunks", ()):
        call_id = chunk["tool_call_id"]
        address = {"messageId": f"activity-{call_id}", "activityType": ACTIVITY_TYPE}
        if chunk["type"] == "start":
            content = {"toolCallId": call_id, "toolName": chunk["tool_name"], "status": "running"}
            events.append({"type": "ACTIVITY_SNAPSHOT", **address, "content": content})
        elif chunk["type"] == "args":
            patch = [{"op": "add", "path": "/arguments", "value": chunk["delta"]}]
            events.append({"type": "ACTIVITY_DELTA", **address, "patch": patch})
        elif chunk["type"] == "result":
            status = "failed" if chunk.get("is_error") else "done"
            patch = [{"op": "replace", "path": "/status", "value": status}]
            events.append({"type": "ACTIVITY_DELTA", **address, "patch": patch})
    return events


class MessageList:
    """Applies the events as the client does. ``history`` are the messages that the client sent, in its own form: a snapshot
    replaces everything that it stores."""

    def __init__(self, history: Iterable[JsonObject]) -> None:
        self.messages: list[JsonObject] = [_without_null(message) for message in history]
        self._by_id: dict[str, JsonObject] = {}
        self._calls: dict[str, tuple[JsonObject, JsonObject]] = {}
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Adds a delta to the open message."""
        self._pieces.append(piece)

    def apply(self, kind: str, fields: JsonObject) -> None:
        metadata: JsonObject = fields.get("metadata", {})
        match kind:
            case "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START":
                self._note(self._message(fields["messageId"], fields["role"], content=""), metadata)
            case "TEXT_MESSAGE_END" | "REASONING_MESSAGE_END":
                message = self._by_id[fields["messageId"]]
                message["content"] = self._joined()
                self._note(message, metadata)
            case "TOOL_CALL_START":
                parent = self._by_id.get(fields["parentMessageId"]) or self._message(fields["parentMessageId"], "assistant")
                function = {"name": fields["toolCallName"], "arguments": ""}
                call: JsonObject = {"id": fields["toolCallId"], "type": "function", "function": function}
                self._note(call, metadata)
                parent.setdefault("toolCalls", []).append(call)
                self._calls[call["id"]] = (call, parent)
            case "TOOL_CALL_END":
                call, _ = self._calls[fields["toolCallId"]]
                call["function"]["arguments"] = self._joined()
                self._note(call, metadata)
            case "TOOL_CALL_RESULT":
                result = {"id": fields["messageId"], "role": "tool", "toolCallId": fields["toolCallId"]}
                self._note(result, metadata)
                self.messages.insert(self._place_of_result(fields["toolCallId"]), {**result, "content": fields["content"]})
            case "REASONING_ENCRYPTED_VALUE":
                entity = fields["entityId"]
                sealed = self._calls[entity][0] if fields["subtype"] == "tool-call" else self._by_id[entity]
                sealed["encryptedValue"] = fields["encryptedValue"]

    def _message(self, message_id: str, role: str, **more: str) -> JsonObject:
        message: JsonObject = {"id": message_id, "role": role, **more}
        self.messages.append(message)
        self._by_id[message_id] = message
        return message

    def _note(self, entity: JsonObject, metadata: JsonObject) -> None:
        if metadata:
            entity["metadata"] = {**entity.get("metadata", {}), **metadata}

    def _place_of_result(self, call_id: str) -> int:
        """The place after the message with the call and its existing results, where the client puts it too."""
        if call_id not in self._calls:
            return len(self.messages)
        parent = self._calls[call_id][1]
        place = next(number for number, message in enumerate(self.messages) if message is parent) + 1
        while place < len(self.messages) and self.messages[place].get("role") == "tool":
            place += 1
        return place

    def _joined(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        return text


def _without_null(message: JsonObject) -> JsonObject:
    """Optional fields are absent or have a value: the client rejects null."""
    return {name: value for name, value in message.items() if value is not None}


# --- the writer


class AguiWriter(Writer):
    """``thread_id`` and ``run_id`` are the client's. Message ids are derived from the run id, so that they are unique in the
    thread and stable. ``messages``: end with a MESSAGES_SNAPSHOT of these messages, which the client sent, and the new ones.
    ``steps``: write each model turn as a step."""

    dialect = DIALECT
    folded = {
        "TextStart": "the first delta starts the message, so that none is empty; a refusal is marked in its metadata",
        "Citation": "CUSTOM event named citation",
        "Media": "CUSTOM event named media",
        "Extra": "own events unchanged; a request for approval becomes an interrupt of the run",
        "KeepAlive": "a comment",
    }

    def __init__(
        self,
        *,
        thread_id: str = "",
        run_id: str = "",
        messages: Iterable[JsonObject] | None = None,
        steps: bool = True,
        **more: Unpack[WriterOptions],
    ) -> None:
        self.thread_id = thread_id
        self.run_id = run_id
        self._steps = steps
        self._snapshot = None if messages is None else MessageList(messages)
        self._new_ids: dict[str, int] = {}
        self._step = 0
        self._step_open = False
        self._parent = ""
        self._message = ""
        self._message_open = False
        self._end_pending = False
        self._metadata: JsonObject = {}
        self._span = ""
        self._content = b""
        self._call: ToolCallStart | None = None
        self._call_id = ""
        self._call_ids: dict[str, str] = {}
        self._used_ids: set[str] = set()
        self._has_arguments = False
        self._pending: dict[str, None] = {}
        self._interrupts: list[JsonObject] = []
        super().__init__(**more)

    def rules(self) -> Rules:
        return {
            **super().rules(),
            TextStart: self._text_start,
            TextDelta: self._text,
            TextEnd: self._text_end,
            ReasoningStart: self._reasoning_start,
            ReasoningDelta: self._reasoning,
            ReasoningEnd: self._reasoning_end,
            ToolCallStart: self._call_start,
            ToolCallDelta: self._arguments,
            ToolCallEnd: self._call_end,
            ToolResult: self._result,
            Citation: lambda event: self._custom(event, "citation", write_citation(event, self._parent)),
            Media: lambda event: self._custom(event, "media", write_media(event, self._parent)),
            Extra: self._extra,
        }

    # --- the run

    def write_start(self) -> None:
        self.run_id = self.run_id or self.id or "run"
        self.thread_id = self.thread_id or self.run_id
        self._write("RUN_STARTED", threadId=self.thread_id, runId=self.run_id, protocolVersion=PROTOCOL_VERSION)

    def write_end(self, event: StreamEnd) -> None:
        metadata: JsonObject = {"finishReason": event.reason}
        if event.raw_reason:
            metadata["rawFinishReason"] = event.raw_reason
        if event.sequence:
            metadata["stopSequence"] = event.sequence
        self._write_text_end(metadata)
        if self._step_open:
            self._finish_step(event.reason)
        if self._snapshot is not None:
            self._write("MESSAGES_SNAPSHOT", messages=self._snapshot.messages)
        fields: JsonObject = {"threadId": self.thread_id, "runId": self.run_id, "outcome": self._outcome(event)}
        if self.usage is not None:
            fields["usage"] = [write_usage(self.usage, self.model)]
        self._write("RUN_FINISHED", **fields, metadata=metadata)

    def write_error(self, event: StreamError) -> None:
        """Open messages stay open before RUN_ERROR, which the protocol allows: an end would tell the client that the text, the
        reasoning or the arguments are complete, and it would run the call. A call that cannot be parsed ends with the mark that it
        is not complete."""
        self._write_text_end({})
        if event.code == ToolCallParseError.code:  # its end says that the call is not complete
            self.write_broken_ends()
        fields: JsonObject = {"message": event.message or event.code, "code": error_code(event)}
        if self.usage is not None:
            fields["usage"] = [write_usage(self.usage, self.model)]
        reason = {"reason": event.code, "origin": event.origin, "retryable": event.retryable, "status": event.status}
        self._write("RUN_ERROR", **fields, metadata=reason)

    def _outcome(self, event: StreamEnd) -> JsonObject:
        if event.reason == "cancelled":
            return {"type": "cancelled"}
        if self._interrupts:
            return {"type": "interrupt", "interrupts": self._interrupts}
        if self._pending:
            return {"type": "success", "pendingToolCallIds": list(self._pending)}
        return {"type": "success"}

    # --- steps: one for each model turn

    def _open_step(self) -> None:
        """Opens a step before the first event of a turn."""
        self._write_text_end({})
        if not self._step_open:
            self.ensure_started()
            self._step_open = True
            self._step += 1
            self._parent = ""
            if self._steps:
                self._write("STEP_STARTED", stepName=f"step-{self._step}")

    def end_step(self, event: StepEnd) -> None:
        super().end_step(event)
        self._write_text_end({"finishReason": event.reason})
        self._open_step()
        self._finish_step(event.reason)

    def _finish_step(self, reason: str) -> None:
        self._step_open = False
        if self._steps:
            self._write("STEP_FINISHED", stepName=f"step-{self._step}", metadata={"finishReason": reason})

    # --- text: a message for each block

    def _text_start(self, event: TextStart) -> None:
        self._open_step()
        self._metadata = {"refusal": True} if event.refusal else {}

    def _open_message(self) -> None:
        self._message_open = True
        self._message = self._parent = self._new_id("message")
        self._content = self._prefix("TEXT_MESSAGE_CONTENT", "messageId", self._message)
        self._write("TEXT_MESSAGE_START", messageId=self._message, role="assistant", metadata=self._metadata)

    def _text(self, event: TextDelta) -> None:
        if not self._message_open:
            self._open_message()
        self._delta(event.text)

    def _text_end(self, event: TextEnd) -> None:
        """The end of a text waits for the next event: if that ends the turn, the message gets the reason."""
        if not self._message_open:
            if event.echo is None:
                return
            self._open_message()
        self._message_open = False
        self._end_pending = True
        if event.echo is not None or not event.complete:
            self._write_text_end({})
        if event.echo is not None and event.complete:
            self._seal("message", self._message, event.echo)

    def _write_text_end(self, metadata: JsonObject) -> None:
        """Writes the end of a text that was held back."""
        if self._end_pending:
            self._end_pending = False
            self._write("TEXT_MESSAGE_END", messageId=self._message, metadata=metadata)

    # --- reasoning: a span for each block, with one message in it

    def _reasoning_start(self, event: ReasoningStart) -> None:
        self._open_step()
        self._metadata = {"summary": True} if event.summary else {}
        self._span = self._new_id("reasoning-span")
        self._write("REASONING_START", messageId=self._span)

    def _open_reasoning(self) -> None:
        self._message_open = True
        self._message = self._new_id("reasoning")
        self._content = self._prefix("REASONING_MESSAGE_CONTENT", "messageId", self._message)
        self._write("REASONING_MESSAGE_START", messageId=self._message, role="reasoning", metadata=self._metadata)

    def _reasoning(self, event: ReasoningDelta) -> None:
        if not self._message_open:
            self._open_reasoning()
        self._delta(event.text)

    def _reasoning_end(self, event: ReasoningEnd) -> None:
        if event.echo is not None and not self._message_open:
            self._open_reasoning()
        if self._message_open:
            self._message_open = False
            metadata = {"redacted": True} if event.redacted else {}
            self._write("REASONING_MESSAGE_END", messageId=self._message, metadata=metadata)
            if event.echo is not None:
                self._seal("message", self._message, event.echo)
        self._write("REASONING_END", messageId=self._span)
        self._span = ""

    # --- calls

    def _call_start(self, event: ToolCallStart) -> None:
        self._open_step()
        self._call = event
        self._call_id = self._unique(event.call_id)
        metadata: JsonObject = {} if event.kind == "function" else {"kind": event.kind}
        if event.native is not None:
            metadata["streamglot"] = pack(event.native)
        self._parent = self._parent or self._new_id("message")
        self._content = self._prefix("TOOL_CALL_ARGS", "toolCallId", self._call_id)
        self._has_arguments = False
        fields = {"toolCallId": self._call_id, "toolCallName": event.name, "parentMessageId": self._parent}
        self._write("TOOL_CALL_START", **fields, metadata=metadata)

    def _arguments(self, event: ToolCallDelta) -> None:
        self._has_arguments = True
        self._delta(event.args)

    def _call_end(self, event: ToolCallEnd) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        if event.complete and not self._has_arguments and call.kind != "custom":
            self._delta("{}")
        if not event.complete:
            self._write("TOOL_CALL_END", toolCallId=self._call_id, metadata={"complete": False})
            return
        self._write("TOOL_CALL_END", toolCallId=self._call_id)
        if event.echo is not None:
            self._seal("tool-call", self._call_id, event.echo)
        if call.kind != "server":
            self._pending[self._call_id] = None

    def _unique(self, call_id: str) -> str:
        """The client keeps one call per id, so a repeated id of a later turn is replaced."""
        unique = call_id or self._new_id("call")
        number = 1
        while unique in self._used_ids:
            number += 1
            unique = f"{call_id}-{number}"
        self._used_ids.add(unique)
        self._call_ids[call_id] = unique
        return unique

    def _result(self, event: ToolResult) -> None:
        self._write_text_end({})
        self.ensure_started()
        call_id = self._call_ids.get(event.call_id, event.call_id)
        self._pending.pop(call_id, None)
        metadata: JsonObject = {"isError": True} if event.is_error else {}
        if event.native is not None:
            metadata["streamglot"] = pack(event.native)
        content = event.content
        if len(content) > MAX_DELTA_CHARS:
            self.lose(event)
            content = f"{content[:MAX_DELTA_CHARS]} … (cut here: {len(content)} characters in all)"
        fields = {"messageId": self._new_id("result"), "toolCallId": call_id, "content": content, "role": "tool"}
        self._write("TOOL_CALL_RESULT", **fields, metadata=metadata)

    # --- citations, media and extras

    def _custom(self, event: Citation | Media, name: str, value: JsonObject) -> None:
        self.ensure_started()
        if isinstance(event, Citation) and event.native is not None:
            value["streamglot"] = pack(event.native)
        self._write_bounded(event, {"type": "CUSTOM", "name": name, "value": value})

    def _extra(self, event: Extra) -> None:
        approval = approval_in(event)
        if approval is not None:
            call_id = self._call_ids.get(approval.call_id, approval.call_id)
            withheld = approval.name and approval.call_id not in self._call_ids
            self._interrupts.append(write_approval(approval, None if withheld else call_id))
            return
        data = event.data if event.dialect == self.dialect else {}
        interrupts = data.get("interrupts")
        if isinstance(interrupts, list):
            self._interrupts += [body for body in map(own_interrupt, interrupts) if body is not None]
            return
        extensions, summary = data.get("extensions"), data.get("reasoning_summary")
        own = own_event(data)
        if isinstance(summary, str):
            self.write_summary(summary)
        if isinstance(extensions, dict):
            self.ensure_started()
            for body in activity_events(extensions):
                self._write_bounded(event, body)
        elif own is None:
            self.lose(event)
        else:
            self.ensure_started()
            self._write_bounded(event, own)

    # --- bytes

    def _seal(self, subtype: str, entity: str, echo: Echo) -> None:
        own = echo.data.get("encryptedValue") if is_native(echo, self.dialect) else None
        value = own if isinstance(own, str) else pack(echo)
        self._write("REASONING_ENCRYPTED_VALUE", subtype=subtype, entityId=entity, encryptedValue=value)

    def _new_id(self, kind: str) -> str:
        number = self._new_ids[kind] = self._new_ids.get(kind, 0) + 1
        return f"{self.run_id}-{kind}-{number}"

    def _prefix(self, kind: str, field: str, value: str) -> bytes:
        return b'data: {"type":"%b","%b":%b,"delta":' % (kind.encode(), field.encode(), encode(value))

    def _delta(self, text: str) -> None:
        if self._snapshot is not None:
            self._snapshot.add(text)
        if len(text) <= MAX_DELTA_CHARS:
            self.pieces.append(b"%b%b}\n\n" % (self._content, encode(text)))
            return
        for start in range(0, len(text), MAX_DELTA_CHARS):
            self.pieces.append(b"%b%b}\n\n" % (self._content, encode(text[start : start + MAX_DELTA_CHARS])))

    def _write(self, kind: str, **fields: object) -> None:
        """Empty metadata is omitted: an optional field is absent or has a value."""
        if not fields.get("metadata", True):
            del fields["metadata"]
        if self._snapshot is not None:
            self._snapshot.apply(kind, fields)
        self.pieces.append(b"data: %b\n\n" % encode({"type": kind, **fields}))

    def _write_bounded(self, event: Citation | Media | Extra, body: JsonObject) -> None:
        encoded = encode(body)
        if len(encoded) > MAX_EVENT_BYTES:
            self.lose(event)
        else:
            self.pieces.append(b"data: %b\n\n" % encoded)
