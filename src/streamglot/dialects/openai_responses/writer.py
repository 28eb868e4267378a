"""Events to Responses events: the full lifecycle of every item, always, and a snapshot of everything at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ...events import (
    Citation,
    Echo,
    Event,
    Extra,
    KeepAlive,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepEnd,
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
    Usage,
)
from ...framing import sse
from ..echo import pack
from ..writer import Writer
from .error import error_body, response_error
from .output import Output
from .wire import ANNOTATIONS, DETAIL_OF, DIALECT, LIFECYCLE, OUTPUT_ITEMS, RESULT_OF, SERVER_ITEMS, own, word, write_usage

_DEFAULTS: Final[dict[str, Any]] = {
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
"""What a response repeats of its request, where nobody says it."""
_CALL_ITEM: Final = {"function": "function_call", "custom": "custom_tool_call"}
_CALL_FIELDS: Final = frozenset(("type", "status", "arguments", "input", "call_id", "name"))
_OPEN: Final = {"status": "in_progress"}
_WITH_STATUS: Final = frozenset(("mcp_call",))
"""Calls of the provider's own tools of which it leaves out a status that clients want."""


class ResponsesWriter(Writer):
    """``mirror``: fields of the client's request that a response repeats (tools, instructions, metadata …). ``sequence``: the
    number of the first event."""

    dialect = DIALECT
    folded = {
        "TextStart": "no word for it: the first delta opens the message",
        "TextEnd": "its echo, packed, in a reasoning item of its own",
        "ReasoningEnd": "its echo, packed unless it is our own, in encrypted_content",
        "ToolCallEnd": "its echo, packed, in a reasoning item of its own",
        "ToolResult": "an item function_call_output",
        "Media": "images in an item image_generation_call, sound in response.audio events",
        "StepEnd": "no word for it: each step has items of its own",
    }

    def __init__(self, *, mirror: Mapping[str, Any] | None = None, sequence: int = 0, **more: Any) -> None:
        super().__init__(**more)
        self._asked = {name: value for name, value in (mirror or {}).items() if name not in LIFECYCLE}
        if isinstance(self._asked.get("conversation"), str):
            self._asked["conversation"] = {"id": self._asked["conversation"]}  # a request may name it, a response shows it
        self._fields = {**_DEFAULTS, **self._asked}
        self._output = Output(self.pieces, sequence)
        self._announced = False
        self._text = "output_text"
        self._call_kinds: dict[str, str] = {}
        self._call: ToolCallStart | None = None
        self._hints: dict[str, deque[dict[str, Any]]] = {}
        self._logprobs: list[Any] = []
        self._images: list[Media] = []
        self._audio = False
        self.response: dict[str, Any] = {}
        """The response as the last lifecycle event told it."""

    def rules(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            TextDelta: self._text_delta,
            ReasoningDelta: self._reasoning_delta,
            ToolCallDelta: self._call_delta,
            StreamStart: self.begin,
            TextStart: self._text_start,
            TextEnd: self._text_end,
            ReasoningStart: self._reasoning_start,
            ReasoningEnd: self._reasoning_end,
            ToolCallStart: self._call_start,
            ToolCallEnd: self._call_end,
            ToolResult: self._result,
            Citation: self._citation,
            Media: self._media,
            StepEnd: self.end_step,
            Usage: self.keep_usage,
            Extra: self._extra,
            KeepAlive: lambda event: self.pieces.append(sse.comment(event.comment or "ping")),
            StreamEnd: self.feed_end,
            StreamError: self.feed_end,
        }

    def feed(self, events: Iterable[Event]) -> bytes:
        written = super().feed(events)
        if self.started and not self._announced:
            self._announce()
            written += self._taken()
        return written

    # --- the response as a whole

    def _announce(self) -> None:
        """The first two events. They wait for the end of the first ``feed``, to know what the response repeats."""
        self.ensure_started()
        if not self._announced:
            self._announced = True
            self._output.response_id = self.id
            for step in ("created", "in_progress"):
                self._lifecycle(step, "in_progress")

    def queued(self) -> dict[str, Any]:
        """The response before its stream begins: of one that is made in the background."""
        return self._shown("queued")

    def _lifecycle(self, step: str, status: str, **more: Any) -> None:
        self.response = self._shown(status, **more)
        self._output.event(f"response.{step}", {"response": self.response})

    def _shown(self, status: str, **more: Any) -> dict[str, Any]:
        return {
            "id": self.id or "resp_0",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": self._output.done,
            **self._fields,
            "usage": write_usage(self.usage),
            **more,
        }

    def write_end(self, event: StreamEnd) -> None:
        detail = DETAIL_OF.get(event.reason)
        self._close("incomplete" if detail else "completed")
        if self._audio:
            self._output.event("response.audio.done", {})
            self._output.event("response.audio.transcript.done", {})
        if detail:
            self._lifecycle("incomplete", "incomplete", incomplete_details={"reason": detail})
        elif event.reason == "cancelled":
            self._lifecycle("incomplete", "cancelled")
        else:
            self._lifecycle("completed", "completed")

    def write_error(self, event: StreamError) -> None:
        if self.started:
            self._close("incomplete")
            self._lifecycle("failed", "failed", error=response_error(event, self.strict))
        else:
            error = error_body(event)["error"]
            flat = {name: error[name] for name in ("code", "message", "param")}
            self._output.event("error", {**flat, "error": error})

    def end_step(self, event: StepEnd) -> None:
        super().end_step(event)
        self._close()

    def _close(self, status: str | None = "completed") -> None:
        """Ends the open item, and writes what waited for its end."""
        self._announce()
        self._output.close(status)
        for image in self._images:
            form = image.mime.removeprefix("image/")
            item = {"type": "image_generation_call", "status": "completed", "result": image.data}
            self._output.whole(item if form == "*" else {**item, "output_format": form})
        self._images.clear()

    def _hint(self, kind: str) -> dict[str, Any]:
        """What our own reader said of the next item of this kind before it came: its id, its phase."""
        waiting = self._hints.get(kind)
        return waiting.popleft() if waiting else {}

    # --- texts

    def _text_start(self, event: TextStart) -> None:
        self._output.close_part()
        self._text = "refusal" if event.refusal else "output_text"

    def _text_delta(self, event: TextDelta) -> None:
        if self._output.part is None:
            self._open_text()
        logprobs, self._logprobs = self._logprobs, []
        self._output.delta(event.text, logprobs)

    def _open_text(self) -> None:
        if self._output.kind != "message" or self._hints.get("message"):
            self._close()
            hint = self._hint("message")
            self._output.open("message", {**_OPEN, **{name: hint[name] for name in ("id", "phase") if name in hint}})
        self._output.open_part(self._text)

    def _text_end(self, event: TextEnd) -> None:
        told = own(event.echo, "message")
        if told is not None:
            if self._output.item is not None and told.get("phase"):
                self._output.item["phase"] = told["phase"]
        elif event.echo is not None:
            self._carry(event.echo, "")

    def _citation(self, event: Citation) -> None:
        annotation = own(event.native, *ANNOTATIONS)
        if annotation is not None and annotation["type"] == "url_citation" and not word(annotation, "url"):
            annotation = None  # another dialect has the same name for another form
        if annotation is None and event.url:
            place = {"start_index": event.start or 0, "end_index": event.end or 0}
            annotation = {"type": "url_citation", **place, "title": event.title, "url": event.url}
        if annotation is not None and self._output.part is None and self._output.item is None:
            self._text = "output_text"
            self._open_text()
        if annotation is None or self._output.part is None or self._output.part["type"] != "output_text":
            self.lose(event)
        else:
            self._output.annotate(annotation)

    # --- reasoning

    def _reasoning_start(self, event: ReasoningStart) -> None:
        self._output.close_part()
        self._text = "summary_text" if event.summary else "reasoning_text"

    def _reasoning_delta(self, event: ReasoningDelta) -> None:
        if self._output.part is None:
            self._open_reasoning()
            self._output.open_part(self._text)
        self._output.delta(event.text)

    def _open_reasoning(self) -> None:
        if self._output.kind != "reasoning" or self._hints.get("reasoning"):
            self._close()
            self._output.open("reasoning", {**_OPEN, "id": self._hint("reasoning").get("id", "")})

    def _reasoning_end(self, event: ReasoningEnd) -> None:
        """Without an echo the item stays open: the next summary may belong to it."""
        echo = event.echo
        if echo is None:
            if event.redacted:
                self.lose(event)
            return
        if echo.provider == self.dialect and own(echo, "compaction"):
            self._close()
            self._output.whole(echo.data)
            return
        if self._output.part is None:
            self._open_reasoning()
        item = self._output.item
        assert item is not None
        self._output.close_part()
        told = own(echo, "reasoning")
        if told is not None and echo.provider == self.dialect and told.get("id") == item["id"]:
            item.update({name: value for name, value in told.items() if name not in ("summary", "content", "status")})
        else:
            item["encrypted_content"] = pack(echo)
        self._close()

    def _carry(self, echo: Echo, call_id: str) -> None:
        """State of another provider that belongs to a call, or to a text (no ``call_id``): the one opaque field of this
        dialect is that of a reasoning item."""
        self._close()
        item = self._output.open("reasoning", _OPEN)
        item["encrypted_content"] = pack(Echo(echo.provider, {"call_id": call_id, "echo": echo.data}))
        self._close()

    # --- calls

    def _call_start(self, event: ToolCallStart) -> None:
        self._close()
        native = event.native.data if event.native is not None else {}
        if event.kind == "server":
            self._call = event if native.get("type") in SERVER_ITEMS else None
            if self._call is not None:
                status = _OPEN if native["type"] in _WITH_STATUS else {}
                self._output.open(native["type"], {**status, **native})
            else:
                self.lose(event)
            return
        self._call = event
        kind = _CALL_ITEM[event.kind]
        call_id = event.call_id
        while call_id in self._call_kinds:
            call_id = f"{event.call_id}_{len(self._call_kinds)}"
        self._call_kinds[call_id] = event.kind
        more = {name: value for name, value in native.items() if native.get("type") == kind and name not in _CALL_FIELDS}
        self._output.open(kind, {**_OPEN, **more, "call_id": call_id, "name": event.name})

    def _call_delta(self, event: ToolCallDelta) -> None:
        if self._call is not None and (self._call.kind != "server" or self._output.kind == "mcp_call"):
            self._output.delta(event.args)

    def _call_end(self, event: ToolCallEnd) -> None:
        call, self._call = self._call, None
        item = self._output.item
        if call is None or item is None:
            return
        told = own(event.echo, item["type"])
        status: str | None = "completed" if event.complete else "incomplete"
        if call.kind == "server":
            item.update({name: value for name, value in (told or {}).items() if name != "id"})
            if told is None:
                status = "incomplete"
            elif item["type"] not in _WITH_STATUS or "status" in told:
                status = None
        elif told is not None:
            item.update({name: value for name, value in told.items() if name not in _CALL_FIELDS and name != "id"})
        self._close(status)
        if told is None and event.echo is not None:
            self._carry(event.echo, item.get("call_id", ""))

    def _result(self, event: ToolResult) -> None:
        self._close()
        told = own(event.native, *OUTPUT_ITEMS)
        kind = self._call_kinds.get(event.call_id)
        if told is not None:
            self._output.whole(told)
        elif kind is not None:
            item = {"type": RESULT_OF[kind], "call_id": event.call_id, "output": event.content, "status": "completed"}
            self._output.whole(item)
        elif own(event.native, *SERVER_ITEMS) is None:
            self.lose(event)

    # --- the rest

    def _media(self, event: Media) -> None:
        if event.mime.startswith("audio/") and not event.url:
            self._announce()
            self._audio = True
            if event.data:
                self._output.event("response.audio.delta", {"delta": event.data})
            if event.transcript:
                self._output.event("response.audio.transcript.delta", {"delta": event.transcript})
        elif event.mime.startswith("image/") and event.data:
            if event.id not in self._output.ids:
                self._images.append(event)
                if self._output.item is None:
                    self._close()
        else:
            self.lose(event)

    def _extra(self, event: Extra) -> None:
        data = event.data if event.dialect == self.dialect else {}
        response, item, logprobs, told = (data.get(name) for name in ("response", "item", "logprobs", "event"))
        if isinstance(response, dict):
            repeats = {name: value for name, value in response.items() if name not in LIFECYCLE}
            self._fields.update({**repeats, **self._asked})  # what we asked of the upstream may be something else
        elif isinstance(item, dict):
            self._hints.setdefault(str(item.get("type")), deque()).append(item)
        elif isinstance(logprobs, list):
            self._logprobs += logprobs
        elif isinstance(told, dict) and not self.strict:
            self._announce()
            place = self._output.place() if self._output.item is not None else {}
            self._output.event(word(told, "type") or "response.extra", {**place, **told})
        else:
            self.lose(event)
