"""Writes Responses events: the full lifecycle of every item, a call or result too, and a snapshot of the response at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Unpack

from ...events import (
    Citation,
    Echo,
    Event,
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
from ...json_types import JsonObject, JsonValue
from ...messages import ToolSpec
from ..common.server_tools import OWN_SERVER, approval_in
from ..common.state import is_native, pack
from ..common.writer import Rules, Writer, WriterOptions
from .output import OPEN, Output
from .tools import Origin, origin_of, origins
from .wire import (
    ANNOTATIONS,
    CALL_FIELDS,
    DETAIL_OF,
    DIALECT,
    LIFECYCLE,
    OUTPUT_ITEMS,
    RESULT_OF,
    SERVER_ITEMS,
    arguments_object,
    error_body,
    own,
    response_error,
    string_of,
    write_usage,
)

# --- calls and results

_CALL_ITEM: Final = {"function": "function_call", "custom": "custom_tool_call"}
_CLIENT_ITEMS: Final = frozenset((*_CALL_ITEM.values(), "tool_search_call"))
_WITH_STATUS: Final = frozenset(("mcp_call",))
"""Items of server-side tools whose provider omits a status that clients require."""


class CallWriter:
    """``origins``: the tools behind flat names that the client declared in a namespace, or as a search. Clients match calls by
    both names and by the type of the item, and drop all others."""

    def __init__(self, writer: ResponsesWriter, origins: dict[str, Origin]) -> None:
        self._writer = writer
        self._origins = origins
        self._kinds: dict[str, str] = {}
        self._call: ToolCallStart | None = None
        self._own: dict[str, tuple[str, list[str]]] = {}
        """Names and arguments of calls that a tool loop runs. Their items are written with their results."""
        self._own_open: list[str] | None = None
        self._search: JsonObject | None = None
        self._arguments: list[str] = []

    def start(self, event: ToolCallStart) -> None:
        self._writer.close_item()
        native = event.native.data if event.native is not None else {}
        if event.kind == "server":
            self._start_server(event, native)
            return
        self._call = event
        call_id = event.call_id
        while call_id in self._kinds:
            call_id = f"{event.call_id}_{len(self._kinds)}"
        self._kinds[call_id] = event.kind
        origin = origin_of(event.name, [native] if native.get("type") in _CLIENT_ITEMS else [], self._origins)
        if origin is not None and origin.is_search:
            known = {"id": native["id"]} if "id" in native else {}
            self._search = {"type": "tool_search_call", **known, "call_id": call_id, "execution": "client"}
            self._arguments.clear()
            return
        kind = _CALL_ITEM[event.kind]
        more = {name: value for name, value in native.items() if native.get("type") == kind and name not in CALL_FIELDS}
        named = {"name": event.name} if origin is None else {"name": origin.name, "namespace": origin.namespace}
        self._writer.output.open(kind, {**OPEN, **more, "call_id": call_id, **named})

    def _start_server(self, event: ToolCallStart, native: JsonObject) -> None:
        self._call = event if native.get("type") in SERVER_ITEMS else None
        if self._call is not None:
            status = OPEN if native["type"] in _WITH_STATUS else {}
            self._writer.output.open(native["type"], {**status, **native})
        elif event.native is None:
            self._own_open = []
            self._own[event.call_id] = event.name, self._own_open
        else:
            self._writer.lose(event)

    def delta(self, event: ToolCallDelta) -> None:
        if self._own_open is not None:
            self._own_open.append(event.args)
        elif self._search is not None:
            self._arguments.append(event.args)
        elif self._call is not None and (self._call.kind != "server" or self._writer.output.kind == "mcp_call"):
            self._writer.output.delta(event.args)

    def end(self, event: ToolCallEnd) -> None:
        self._own_open = None
        call, self._call = self._call, None
        if self._search is not None:
            self._end_search(event, self._search)
            return
        item = self._writer.output.item
        if call is None or item is None:
            return
        if not event.complete:
            self._writer.abandon_item()
            return
        original = own(event.echo, item["type"])
        status: str | None = "completed"
        if call.kind == "server":
            item.update({name: value for name, value in (original or {}).items() if name != "id"})
            if original is None:
                status = "incomplete"
            elif item["type"] not in _WITH_STATUS or "status" in original:
                status = None
        elif original is not None:
            item.update({name: value for name, value in original.items() if name not in CALL_FIELDS and name != "id"})
        self._writer.close_item(status)
        if original is None and event.echo is not None:
            self._writer.carry(event.echo, item.get("call_id", ""))

    def _end_search(self, event: ToolCallEnd, item: JsonObject) -> None:
        """A search has its arguments as an object and no delta events, so it is written whole or not at all."""
        text, self._search = "".join(self._arguments), None
        self._arguments.clear()
        if not event.complete:
            self._writer.lose(event)
            return
        self._writer.output.whole({**item, "arguments": arguments_object(text), "status": "completed"})
        if event.echo is not None and own(event.echo, "tool_search_call") is None:
            self._writer.carry(event.echo, item["call_id"])

    def result(self, event: ToolResult) -> None:
        self._writer.close_item()
        if event.call_id in self._own and event.native is None:
            self._own_call(event)
            return
        original = own(event.native, *OUTPUT_ITEMS)
        kind = self._kinds.get(event.call_id)
        if original is not None:
            self._writer.output.whole(original)
        elif kind is not None:
            item = {"type": RESULT_OF[kind], "call_id": event.call_id, "output": event.content, "status": "completed"}
            self._writer.output.whole(item)
        elif own(event.native, *SERVER_ITEMS) is None:
            self._writer.lose(event)

    def _own_call(self, event: ToolResult) -> None:
        """A call that a tool loop ran, with its result, in the form of a remote server's call, which no client runs."""
        name, pieces = self._own.pop(event.call_id)
        output = self._writer.output
        fields = {"server_label": OWN_SERVER, "name": name, "output": None, "error": None}
        item = output.open("mcp_call", {**OPEN, "id": event.call_id, **fields})
        output.event("response.mcp_call.in_progress", output.place())
        output.delta("".join(pieces) or "{}")
        if event.is_error:
            item["error"] = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": event.content}]}
        else:
            item["output"] = event.content
        status = "failed" if event.is_error else "completed"
        self._writer.close_item(status)


# --- the response

_DEFAULTS: Final[JsonObject] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
    "metadata": {},
}
"""Request fields that a response repeats, with their default values."""


class ResponsesWriter(Writer):
    """``mirror``: fields of the client's request that a response repeats (tools, instructions, metadata …). ``tools``: those of
    the request, to name calls as the client declared them. ``sequence``: the number of the first event; above 0,
    another writer began the stream, and its first events are not written again."""

    dialect = DIALECT
    folded = {
        "TextStart": "not written: the first delta opens the message",
        "TextEnd": "its echo, packed, in its own reasoning item",
        "ReasoningEnd": "its echo, packed unless it is our own, in encrypted_content",
        "ToolCallEnd": "its echo, packed, in its own reasoning item",
        "ToolResult": "an item function_call_output",
        "Extra": "own items and events as they are; a question for approval becomes mcp_approval_request",
        "Media": "images in an image_generation_call item, audio in response.audio events",
        "StepEnd": "not written: each step has its own items",
    }

    def __init__(
        self,
        *,
        mirror: Mapping[str, JsonValue] | None = None,
        tools: Iterable[ToolSpec] = (),
        sequence: int = 0,
        **more: Unpack[WriterOptions],
    ) -> None:
        self._calls = CallWriter(self, origins(tools))
        super().__init__(**more)
        self._asked = {name: value for name, value in (mirror or {}).items() if name not in LIFECYCLE}
        if isinstance(self._asked.get("conversation"), str):
            self._asked["conversation"] = {"id": self._asked["conversation"]}  # a request may name it, a response has an object
        self._fields = {**_DEFAULTS, **self._asked}
        self.output = Output(self.pieces, sequence)
        self._announced = sequence > 0
        self._text = "output_text"
        self._hints: dict[str, deque[JsonObject]] = {}
        self._logprobs: list[JsonValue] = []
        self._images: list[Media] = []
        self._audio = False
        self._cut = False
        """The text or reasoning of the open item is incomplete."""
        self.response: JsonObject = {}
        """The response in the last lifecycle event."""

    def rules(self) -> Rules:
        calls = self._calls
        return {
            **super().rules(),
            TextDelta: self._text_delta,
            ReasoningDelta: self._reasoning_delta,
            ToolCallDelta: calls.delta,
            TextStart: self._text_start,
            TextEnd: self._text_end,
            ReasoningStart: self._reasoning_start,
            ReasoningEnd: self._reasoning_end,
            ToolCallStart: calls.start,
            ToolCallEnd: calls.end,
            ToolResult: calls.result,
            Citation: self._citation,
            Media: self._media,
            Extra: self._extra,
        }

    def feed(self, events: Iterable[Event] | Event) -> bytes:
        written = super().feed(events)
        if self.started and not self._announced:
            self._announce()
            written += self._taken()
        return written

    # --- the response as a whole

    def _announce(self) -> None:
        """Writes the first two events at the end of the first ``feed``, when the repeated fields are known."""
        self.ensure_started()
        if not self._announced:
            self._announced = True
            self.output.response_id = self.id
            for step in ("created", "in_progress"):
                self._lifecycle(step, "in_progress")

    def queued(self) -> JsonObject:
        """The response before its stream begins, for the background mode."""
        return self._shown("queued")

    def _lifecycle(self, step: str, status: str, **more: object) -> None:
        self.response = self._shown(status, **more)
        self.output.event(f"response.{step}", {"response": self.response})

    def _shown(self, status: str, **more: object) -> JsonObject:
        return {
            "id": self.id or "resp_0",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": self.output.done,
            **self._fields,
            "usage": write_usage(self.usage, self.strict),
            **more,
        }

    def write_end(self, event: StreamEnd) -> None:
        detail = DETAIL_OF.get(event.reason)
        self.close_item("incomplete" if detail or self._cut else "completed")
        if self._audio:
            self.output.event("response.audio.done", {})
            self.output.event("response.audio.transcript.done", {})
        if detail:
            self._lifecycle("incomplete", "incomplete", incomplete_details={"reason": detail})
        elif event.reason == "cancelled":
            self._lifecycle("incomplete", "cancelled")
        elif self.output.abandoned:
            self._lifecycle("incomplete", "incomplete")
        else:
            self._lifecycle("completed", "completed")

    def write_error(self, event: StreamError) -> None:
        """A failed response. Clients accept an ``error`` event only before the response has begun; in a response some ignore
        it."""
        if self.started or self._announced:
            self.abandon_item()
            self._lifecycle("failed", "failed", error=response_error(event, self.strict))
        else:
            error = error_body(event)["error"]
            flat = {name: error[name] for name in ("code", "message", "param")}
            self.output.event("error", {**flat, "error": error})

    def end_step(self, event: StepEnd) -> None:
        super().end_step(event)
        self.close_item()

    def close_item(self, status: str | None = "completed") -> None:
        """Ends the open item and writes what waited for its end. An incomplete item is not reported as completed."""
        self._announce()
        if self._cut and status == "completed":
            self.output.abandon()
        else:
            self.output.close(status)
        self._cut = False
        self._write_images()

    def abandon_item(self) -> None:
        """Leaves the open item incomplete and writes what waited for its end."""
        self._announce()
        self.output.abandon()
        self._write_images()

    def _write_images(self) -> None:
        for image in self._images:
            form = image.mime.removeprefix("image/")
            item = {"type": "image_generation_call", "status": "completed", "result": image.data}
            self.output.whole(item if form == "*" else {**item, "output_format": form})
        self._images.clear()

    def _hint(self, kind: str) -> JsonObject:
        """The fields that the reader of this dialect reported for the next item of this kind: its id, its phase."""
        waiting = self._hints.get(kind)
        return waiting.popleft() if waiting else {}

    # --- texts

    def _next_part(self) -> None:
        """Starts another text or reasoning part. It may belong to the open item, unless that is incomplete."""
        if self._cut:
            self.close_item()
        else:
            self.output.close_part()

    def _text_start(self, event: TextStart) -> None:
        self._next_part()
        self._text = "refusal" if event.refusal else "output_text"

    def _text_delta(self, event: TextDelta) -> None:
        if self.output.part is None:
            self._open_text()
        logprobs, self._logprobs = self._logprobs, []
        self.output.delta(event.text, logprobs)

    def _open_text(self) -> None:
        if self.output.kind != "message" or self._hints.get("message"):
            self.close_item()
            hint = self._hint("message")
            self.output.open("message", {**OPEN, **{name: hint[name] for name in ("id", "phase") if name in hint}})
        self.output.open_part(self._text)

    def _text_end(self, event: TextEnd) -> None:
        self._cut = not event.complete
        if self._cut:
            return
        original = own(event.echo, "message")
        if original is not None:
            if self.output.item is not None and original.get("phase"):
                self.output.item["phase"] = original["phase"]
        elif event.echo is not None:
            self.carry(event.echo, "")

    def _citation(self, event: Citation) -> None:
        annotation = own(event.native, *ANNOTATIONS)
        if annotation is not None and annotation["type"] == "url_citation" and not string_of(annotation, "url"):
            annotation = None  # another dialect uses the same name for another form
        if annotation is None and event.url:
            place = {"start_index": event.start or 0, "end_index": event.end or 0}
            annotation = {"type": "url_citation", **place, "title": event.title, "url": event.url}
        if annotation is not None and self.output.part is None and self.output.item is None:
            self._text = "output_text"
            self._open_text()
        if annotation is None or self.output.part is None or self.output.part["type"] != "output_text":
            self.lose(event)
        else:
            self.output.annotate(annotation)

    # --- reasoning

    def _reasoning_start(self, event: ReasoningStart) -> None:
        self._next_part()
        self._text = "summary_text" if event.summary else "reasoning_text"

    def _reasoning_delta(self, event: ReasoningDelta) -> None:
        if self.output.part is None:
            self._open_reasoning()
            self.output.open_part(self._text)
        self.output.delta(event.text)

    def _open_reasoning(self) -> None:
        if self.output.kind != "reasoning" or self._hints.get("reasoning"):
            self.close_item()
            self.output.open("reasoning", {**OPEN, "id": self._hint("reasoning").get("id", "")})

    def _reasoning_end(self, event: ReasoningEnd) -> None:
        """Without an echo the item stays open: the next summary may belong to it."""
        self._cut = not event.complete
        if self._cut:
            return
        echo = event.echo
        if echo is None:
            if event.redacted:
                self.lose(event)
            return
        if is_native(echo, self.dialect) and own(echo, "compaction"):
            self.close_item()
            self.output.whole(echo.data)
            return
        if self.output.part is None:
            self._open_reasoning()
        item = self.output.item
        assert item is not None
        self.output.close_part()
        original = own(echo, "reasoning")
        if original is None or not is_native(echo, self.dialect) or (original.get("id") or item["id"]) != item["id"]:
            item["encrypted_content"] = pack(echo)
            self.close_item()
            return
        item.update({name: value for name, value in original.items() if name not in ("id", "summary", "content", "status")})
        if "status" in original:
            self.close_item()
        else:
            del item["status"]  # the upstream gives none, and gets the item back as it sent it
            self.close_item(None)

    def carry(self, echo: Echo, call_id: str) -> None:
        """Writes state of another provider for a call, or for a text (no ``call_id``). The only opaque field of this dialect is
        that of a reasoning item."""
        self.close_item()
        item = self.output.open("reasoning", OPEN)
        item["encrypted_content"] = pack(Echo(echo.provider, {"call_id": call_id, "echo": echo.data}))
        self.close_item()

    # --- other events

    def _media(self, event: Media) -> None:
        if event.mime.startswith("audio/") and not event.url:
            self._announce()
            self._audio = True
            if event.data:
                self.output.event("response.audio.delta", {"delta": event.data})
            if event.transcript:
                self.output.event("response.audio.transcript.delta", {"delta": event.transcript})
        elif event.mime.startswith("image/") and event.data:
            if event.id not in self.output.ids:
                self._images.append(event)
                if self.output.item is None:
                    self.close_item()
        else:
            self.lose(event)

    def _extra(self, event: Extra) -> None:
        approval = approval_in(event)
        if approval is not None and approval.name:
            self._announce()
            self.close_item()
            call = {"name": approval.name, "arguments": approval.arguments}
            self.output.whole({"type": "mcp_approval_request", "id": approval.id, "server_label": OWN_SERVER, **call})
            return
        data = event.data if event.dialect == self.dialect else {}
        response, item, logprobs, extra_event = (data.get(name) for name in ("response", "item", "logprobs", "event"))
        summary = data.get("reasoning_summary")
        if isinstance(summary, str):
            self.write_summary(summary)
            return
        if isinstance(response, dict):
            repeats = {name: value for name, value in response.items() if name not in LIFECYCLE}
            self._fields.update({**repeats, **self._asked})  # the upstream request may have had other values
        elif isinstance(item, dict):
            self._hints.setdefault(str(item.get("type")), deque()).append(item)
        elif isinstance(logprobs, list):
            self._logprobs += logprobs
        elif isinstance(extra_event, dict) and not self.strict:
            self._announce()
            place = self.output.place() if self.output.item is not None else {}
            self.output.event(string_of(extra_event, "type") or "response.extra", {**place, **extra_event})
        else:
            self.lose(event)
