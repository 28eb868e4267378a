"""Writes message events that every client accepts (named, consecutive, one block at a time), and the message object.

Three things would make the API refuse all later requests of a client, so the stream never has them:

* An empty or blank text block. Text opens its block with its first visible character; blank text waits for it.
* Text after a ``tool_use`` block. Calls are written live and cannot be moved behind it, so such text becomes a ``thinking`` block
  with a signature of ours. ``request.py`` recognizes it as text when it comes back, and puts calls last in everything that it
  builds. If such text must stay text, the calls have to be held back before this writer.
* ``stop_reason: tool_use`` without a ``tool_use`` block.

An incomplete block is left open if an error follows: clients run a call, and no longer retry, once its block stops.
"""

from __future__ import annotations

from typing import Final, Unpack

from ...events import (
    Citation,
    Echo,
    Extra,
    KeepAlive,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StreamEnd,
    StreamError,
    StreamStart,
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
from ...messages import (
    Part,
    ReasoningPart,
    RefusalPart,
    Response,
    ResponseChoice,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..common.state import is_native
from ..common.writer import Rules, Writer, WriterOptions, encode
from .wire import (
    DIALECT,
    LATE_TEXT,
    arguments_object,
    call_block,
    error_body,
    is_redacted,
    own_call,
    own_result,
    packed,
    packed_beside,
    stop_word,
    write_citation,
    write_usage,
)

_PING: Final = sse.event(b'{"type":"ping"}', b"ping")
_END_OF_DELTA: Final = b"}}\n\n"
_MESSAGE_FIELDS: Final = ("stop_details", "container")
"""Fields of an Extra of this dialect that belong to the last delta of the message."""


class AnthropicWriter(Writer):
    dialect = "anthropic"
    folded = {
        "TextEnd": "an echo goes into a redacted_thinking block after the text",
        "ReasoningEnd": "state in another format is packed into the signature, or into redacted_thinking",
        "ToolCallEnd": "an echo goes into a redacted_thinking block after the call",
        "StepEnd": "not written: each text is its own block",
    }

    def __init__(self, **more: Unpack[WriterOptions]) -> None:
        self._begun = False
        self._index = -1
        self._open = b""
        """The type of delta of the open block; empty if none is open."""
        self._head = b""
        self._calls = 0
        self._blank: list[str] = []
        self._citations: list[Citation] = []
        self._call: ToolCallStart | None = None
        self._odd: list[str] | None = None
        self._own: dict[str, tuple[str, list[str]]] = {}
        """Names and arguments of calls that a tool loop runs. Their blocks are written with their results."""
        self._own_open: list[str] | None = None
        self._has_arguments = False
        self._waiting: list[JsonObject] = []
        self._message_delta: JsonObject = {}
        self._context: JsonObject = {}
        super().__init__(**more)

    def rules(self) -> Rules:
        return {
            **super().rules(),
            TextDelta: self._text,
            ReasoningDelta: self._reasoning,
            ToolCallDelta: self._arguments,
            TextStart: lambda event: None,
            TextEnd: self._text_end,
            ReasoningStart: lambda event: None,
            ReasoningEnd: self._reasoning_end,
            ToolCallStart: self._call_start,
            ToolCallEnd: self._call_end,
            ToolResult: self._result,
            Citation: self._citation,
            KeepAlive: self._ping,
            Extra: self._extra,
        }

    # --- the message

    def begin(self, event: StreamStart) -> None:
        """Only stores the event: usage in the same read becomes part of the first event."""
        self.id, self.model = event.id or self.id, event.model or self.model
        self._begun = True

    def _ping(self, _: KeepAlive) -> None:
        if self._begun:
            self.ensure_started()
        self.pieces.append(_PING)

    def _taken(self) -> bytes:
        if self._begun and not self.done:
            self.ensure_started()
        return super()._taken()

    def write_start(self) -> None:
        message: JsonObject = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": write_usage(self.usage, self.strict),
        }
        self._event(b"message_start", {"message": message})

    def write_end(self, event: StreamEnd) -> None:
        self._close()
        if self._blank:
            self.lose(TextDelta(""))
        for citation in self._citations:
            self.lose(citation)
        stop = stop_word(event.reason, event.raw_reason, self._calls > 0)
        delta = {"stop_reason": stop, "stop_sequence": event.sequence if stop == "stop_sequence" else None}
        body = {"delta": {**delta, **self._message_delta}, "usage": write_usage(self.usage, self.strict), **self._context}
        self._event(b"message_delta", body)
        self._event(b"message_stop", {})

    def write_error(self, event: StreamError) -> None:
        if self._begun:
            self.ensure_started()
        self.pieces.append(sse.event(encode(error_body(event)), b"error"))

    def _event(self, kind: bytes, body: JsonObject) -> None:
        self.pieces.append(sse.event(encode({"type": kind.decode(), **body}), kind))

    # --- blocks

    def _start(self, body: JsonObject, delta: bytes = b"", field: bytes = b"") -> None:
        """Opens a block whose pieces go into this field of this type of delta."""
        self.ensure_started()
        self._close()
        self._index += 1
        self._event(b"content_block_start", {"index": self._index, "content_block": body})
        self._open = delta or b"none"
        self._head = b"event: content_block_delta\ndata: " + (
            b'{"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":' % (self._index, delta, field)
        )

    def _delta(self, kind: str, field: str, value: object) -> None:
        self._event(b"content_block_delta", {"index": self._index, "delta": {"type": kind, field: value}})

    def _stop(self) -> None:
        if self._open:
            self._open = b""
            self._event(b"content_block_stop", {"index": self._index})

    def _close(self) -> None:
        """Ends the open block and writes the blocks that waited for its end."""
        self._stop()
        while self._waiting:
            self._whole(self._waiting.pop(0))

    def _whole(self, body: JsonObject) -> None:
        """Writes a block without deltas."""
        self._start(body)
        self._close()

    # --- text

    def _text(self, event: TextDelta) -> None:
        if self._open:
            self.pieces.append(self._head + encode(event.text) + _END_OF_DELTA)
            return
        text = event.text
        self._blank.append(text)
        if not text.strip():
            return
        if self._calls:
            self._start_thinking()
        else:
            self._start({"type": "text", "text": ""}, b"text_delta", b"text")
            for citation in self._citations:
                self._cite(citation)
            self._citations.clear()
        self.pieces.append(self._head + encode("".join(self._blank)) + _END_OF_DELTA)
        self._blank.clear()

    def _text_end(self, event: TextEnd) -> None:
        if self._open == b"thinking_delta":
            self._delta("signature_delta", "signature", packed(LATE_TEXT))
        self._stop()
        for citation in self._citations:
            self.lose(citation)
        self._citations.clear()
        if event.complete:
            self._close()
            self._beside(event.echo)

    def _citation(self, event: Citation) -> None:
        if self._open == b"text_delta":
            self._cite(event)
        else:
            self._citations.append(event)

    def _cite(self, citation: Citation) -> None:
        body = write_citation(citation)
        if body is None:
            self.lose(citation)
        else:
            self._delta("citations_delta", "citation", body)

    # --- reasoning

    def _start_thinking(self) -> None:
        self._start({"type": "thinking", "thinking": "", "signature": ""}, b"thinking_delta", b"thinking")

    def _reasoning(self, event: ReasoningDelta) -> None:
        if not self._open:
            self._start_thinking()
        self.pieces.append(self._head + encode(event.text) + _END_OF_DELTA)

    def _reasoning_end(self, event: ReasoningEnd) -> None:
        if not event.complete:
            self._stop()
            return
        echo = event.echo
        if echo is None:
            if event.redacted and not self._open:
                self.lose(event)
        elif not is_redacted(echo) and (self._open or self._is_signed(echo)):
            if not self._open:
                self._start_thinking()
            self._delta("signature_delta", "signature", packed(echo))
        else:
            self._whole({"type": "redacted_thinking", "data": packed(echo)})
        self._close()

    def _is_signed(self, echo: Echo) -> bool:
        return is_native(echo, self.dialect) and "signature" in echo.data

    def _beside(self, echo: Echo | None) -> None:
        if echo is not None:
            self._whole({"type": "redacted_thinking", "data": packed_beside(echo)})

    # --- calls

    def _call_start(self, event: ToolCallStart) -> None:
        own = event.native.data if event.native is not None and is_native(event.native, self.dialect) else None
        body = call_block(event, own, {})
        if body is None:
            if event.native is None:
                self._own_open = []
                self._own[event.call_id] = event.name, self._own_open
            else:
                self.lose(event)
            return
        self._calls += event.kind != "server"
        self._call, self._has_arguments, self._odd = event, False, None
        self._start(body, b"input_json_delta", b"partial_json")

    def _arguments(self, event: ToolCallDelta) -> None:
        if self._own_open is not None:
            self._own_open.append(event.args)
            return
        if self._has_arguments:
            args = event.args
        elif self._call is None or (self._call.kind == "server" and event.args == "{}"):
            return
        elif self._call.kind == "custom":
            self._has_arguments = True
            args = event.args
            self.pieces.append(self._head + b'"{\\"input\\":\\""' + _END_OF_DELTA)
        else:
            args = self._first_arguments(event.args)
            if not args:
                return
        if self._call is not None and self._call.kind == "custom":
            args = encode(args)[1:-1].decode()
        self.pieces.append(self._head + encode(args) + _END_OF_DELTA)

    def _first_arguments(self, args: str) -> str:
        """Clients parse while they read and expect an object: leading white space is dropped, anything else waits."""
        if self._odd is not None:
            self._odd.append(args)
            return ""
        args = args.lstrip()
        if args and args[0] != "{":
            self._odd = [args]
            return ""
        self._has_arguments = bool(args)
        return args

    def _call_end(self, event: ToolCallEnd) -> None:
        self._own_open = None
        call, self._call = self._call, None
        had_arguments, self._has_arguments = self._has_arguments, False
        if call is None:
            return
        if not event.complete:
            self._stop()  # the model was stopped inside the arguments; the API itself closes such a block
            return
        if call.kind == "custom":
            self.pieces.append(self._head + (b'"\\"}"' if had_arguments else b'"{\\"input\\":\\"\\"}"') + _END_OF_DELTA)
        elif not had_arguments and (
            call.kind != "server" or self._odd
        ):  # an empty input of a server tool is in its start already
            self.pieces.append(self._head + encode(encode(arguments_object("".join(self._odd or ()))).decode()) + _END_OF_DELTA)
        self._close()
        self._beside(event.echo)

    def _result(self, event: ToolResult) -> None:
        if event.native is not None and is_native(event.native, self.dialect):
            self._whole(event.native.data)
        elif event.native is None and event.call_id in self._own:
            name, pieces = self._own.pop(event.call_id)
            self._whole(own_call(event.call_id, name, "".join(pieces)))
            self._whole(own_result(event.call_id, event.content, event.is_error))
        else:
            self.lose(event)

    # --- extras of this dialect

    def _extra(self, event: Extra) -> None:
        data = event.data if event.dialect == self.dialect else {}
        block = data.get("content_block")
        if isinstance(block, dict):
            if self._open:
                self._waiting.append(block)
            else:
                self._whole(block)
        elif any(name in data for name in _MESSAGE_FIELDS):
            self._message_delta.update({name: value for name, value in data.items() if name in _MESSAGE_FIELDS})
        elif "context_management" in data:
            self._context = {} if self.strict else data
        else:
            self.lose(event)


# --- the whole response


def build(response: Response, *, strict: bool = False) -> JsonObject:
    """Calls come last, because the API requires that when the client sends them back. An incomplete call is left out, so that
    no client runs it."""
    if response.error is not None and not any(choice.parts for choice in response.choices):
        return error_body(response.error)
    choice = next((choice for choice in response.choices if choice.index == 0), None) or ResponseChoice(0, stop_reason="other")
    extras = [extra.data for extra in response.extras if extra.dialect == DIALECT]
    content = [data["content_block"] for data in extras if isinstance(data.get("content_block"), dict)]
    calls: list[JsonObject] = []
    answered = {part.call_id: part for part in choice.parts if isinstance(part, ToolResultPart) and part.native is None}
    for part in choice.parts:
        if isinstance(part, ToolCallPart) and part.kind == "server" and part.native is None and part.call_id in answered:
            content += _own_blocks(part, answered[part.call_id])
            continue
        client_runs_it = isinstance(part, ToolCallPart) and part.kind != "server"
        (calls if client_runs_it else content).extend(_blocks(part))
    stop = None if choice.stop_reason is None else stop_word(choice.stop_reason, choice.raw_stop_reason, bool(calls))
    body: JsonObject = {
        "id": response.id,
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": content + calls,
        "stop_reason": stop,
        "stop_sequence": choice.stop_sequence if stop == "stop_sequence" else None,
        "usage": write_usage(response.usage, strict),
    }
    for data in extras:
        names = ("stop_details", "container") if strict else ("stop_details", "container", "context_management")
        body.update({name: data[name] for name in names if name in data})
    if response.extensions is not None and not strict:
        body["extensions"] = response.extensions
    if response.error is not None:
        body.update(error_body(response.error))
    return body


def _blocks(part: Part) -> list[JsonObject]:
    match part:
        case TextPart() | RefusalPart():
            return _text_blocks(part)
        case ReasoningPart():
            return _reasoning_blocks(part)
        case ToolCallPart():
            return _call_blocks(part)
        case ToolResultPart() if part.native is not None and is_native(part.native, DIALECT):
            return [part.native.data]
    return []


def _text_blocks(part: TextPart | RefusalPart) -> list[JsonObject]:
    echo = part.echo if isinstance(part, TextPart) else None
    state: list[JsonObject] = [] if echo is None else [{"type": "redacted_thinking", "data": packed_beside(echo)}]
    if not part.text.strip():
        return state
    body: JsonObject = {"type": "text", "text": part.text}
    if isinstance(part, RefusalPart):
        return [body]
    citations = [citation for citation in map(write_citation, part.citations) if citation is not None]
    if citations:
        body["citations"] = citations
    return [body, *state]


def _reasoning_blocks(part: ReasoningPart) -> list[JsonObject]:
    echo = part.echo
    if echo is not None and (is_redacted(echo) or not (part.text or "signature" in echo.data)):
        return [{"type": "redacted_thinking", "data": packed(echo)}]
    if echo is None and not part.text:
        return []
    return [{"type": "thinking", "thinking": part.text, "signature": "" if echo is None else packed(echo)}]


def _own_blocks(call: ToolCallPart, result: ToolResultPart) -> list[JsonObject]:
    """A call that streamglot's tool loop ran, and its result."""
    arguments = call.arguments if call.complete else ""
    return [own_call(call.call_id, call.name, arguments), own_result(call.call_id, result.text, result.is_error)]


def _call_blocks(part: ToolCallPart) -> list[JsonObject]:
    own = part.native.data if part.native is not None and is_native(part.native, DIALECT) else None
    given = {"input": part.arguments} if part.kind == "custom" else arguments_object(part.arguments)
    body = call_block(part, own, given)
    if body is None or not (part.complete or part.kind == "server"):
        return []
    if part.echo is not None and part.kind != "server":
        return [body, {"type": "redacted_thinking", "data": packed_beside(part.echo)}]
    return [body]
