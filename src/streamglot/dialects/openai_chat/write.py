"""Writes chat chunks that every client accepts, and the chat completion object.

A chunk has the role once, consecutive indexes, ids and names once, and there is one end.
"""

from __future__ import annotations

from typing import Final, Unpack

from ...events import (
    Choice,
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
)
from ...framing import sse
from ...json_types import JsonObject, JsonValue
from ...messages import MediaPart, ReasoningField, ReasoningPart, RefusalPart, Response, ResponseChoice, TextPart, ToolCallPart
from ...stages.steps import STEP_BREAK, with_step_breaks
from ..common.completions import build_completion
from ..common.function_tools import build_call
from ..common.state import pack
from ..common.tables import completion_usage
from ..common.writer import Rules, StepBreak, Writer, WriterOptions, encode
from .wire import (
    DIALECT,
    FINISH_OF,
    SHOWN_ENTRIES,
    error_body,
    extra_content,
    marker_of,
    our_summary,
    own_details,
    signed_entry,
    text_state,
    without_texts,
    write_citation,
)

_SPEC_EXTRAS: Final = frozenset(("service_tier", "system_fingerprint", "moderation"))
_HEAD_EXTRAS: Final = frozenset(("service_tier", "system_fingerprint", "provider"))
"""Fields that belong to every chunk. They are part of the head of all following chunks."""
_RIDING_EXTRAS: Final = frozenset(("timings", "search_results", "moderation", "prompt_filter_results"))
"""Fields that servers write beside a choice. They wait for the next chunk, so that a client that takes the first choice of every
chunk finds one."""
_NO_ID: Final = "chatcmpl-0"
"""The id if the answer has none. Clients ignore chunks without an id, and the usage with them."""


class ChatWriter(Writer):
    """``include_usage`` writes the usage chunk, the only one without a choice. ``functions``: the client used the old
    ``functions`` field and expects its calls as ``function_call``. ``reasoning_field``: the field with the text of the reasoning;
    its state is always in ``reasoning_details``."""

    dialect = "openai_chat"
    folded = {
        "TextEnd": "an echo goes into reasoning_details",
        "ReasoningStart": "not written: the first delta starts it",
        "ReasoningEnd": "its echo goes into reasoning_details",
        "ToolCallEnd": "not written: the next call or the finish ends it",
        "Citation": "annotations, all in one chunk before the finish",
        "StepEnd": "an empty line between the texts of two steps",
    }

    def __init__(
        self, *, functions: bool = False, reasoning_field: ReasoningField = "reasoning_content", **more: Unpack[WriterOptions]
    ) -> None:
        self._functions = functions
        self._reasoning_field = reasoning_field
        self._choices: list[_ChoiceWriter] = []
        self._head_extras: JsonObject = {}
        self._riding: JsonObject = {}
        self._head = b""
        super().__init__(**more)

    def rules(self) -> Rules:
        self._choices.append(_ChoiceWriter(self, 0))
        return {
            **self._choices[0].rules,
            **super().rules(),
            Choice: self._choice,
        }

    def write_start(self) -> None:
        self.id = self.id or _NO_ID
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        self._head = b"data: " + encode({**head, **self._head_extras})[:-1]

    def write_delta(self, index: int, delta: bytes, finish: bytes = b"null", more: bytes = b"") -> None:
        """Writes one chunk with one choice. ``delta`` is the inside of the delta object, ``more`` are fields of the choice."""
        if self._riding:
            self._write_riding(index, delta, finish, more)
            return
        self.pieces.append(
            b'%b,"choices":[{"index":%d,"delta":{%b}%b,"finish_reason":%b}]}\n\n' % (self._head, index, delta, more, finish)
        )

    def _write_riding(self, index: int, delta: bytes, finish: bytes = b"null", more: bytes = b"") -> None:
        """Writes one chunk with the fields that wait for one."""
        riding = encode(self._riding)[1:]
        self._riding = {}
        self.pieces.append(
            b'%b,"choices":[{"index":%d,"delta":{%b}%b,"finish_reason":%b}],%b\n\n'
            % (self._head, index, delta, more, finish, riding)
        )

    def write_end(self, event: StreamEnd) -> None:
        for choice in self._choices:
            choice.end(event if choice.index == 0 else None)
        if self.include_usage and self.usage is not None:
            self.pieces.append(
                b'%b,"choices":[],"usage":%b}\n\n' % (self._head, encode(completion_usage(self.usage, self.strict)))
            )
        self.pieces.append(b"data: [DONE]\n\n")

    def write_error(self, event: StreamError) -> None:
        for choice in self._choices:
            choice.flush()
        error = encode(error_body(event))
        if self.started and not self.strict:
            fields = encode(self._riding)[1:-1] + b"," if self._riding else b""
            chunk = b'%b,"choices":[{"index":0,"delta":{},"finish_reason":"error"}],%b%b\n\n' % (self._head, fields, error[1:])
        else:
            chunk = sse.event(error)
        self.pieces.append(chunk)
        if not self.abort:
            self.pieces.append(b"data: [DONE]\n\n")

    def _choice(self, event: Choice) -> None:
        self.ensure_started()
        while len(self._choices) <= event.index:
            self._choices.append(_ChoiceWriter(self, len(self._choices)))
        for earlier in self._choices[: event.index]:
            earlier.ensure_role()
        self._choices[event.index].rules.get(type(event.event), self.lose)(event.event)

    def extra(self, event: Extra, index: int) -> None:
        data = event.data if event.dialect == self.dialect else {}
        choice, summary = data.get("choice"), data.get("reasoning_summary")
        if isinstance(summary, str):
            if not self.strict:
                self._choices[index].write_summary(summary, data["extensions"])
        elif isinstance(choice, dict):
            fields = {name: value for name, value in choice.items() if name == "logprobs" or not self.strict}
            if fields:
                self._choices[index].ensure_role()
                self.write_delta(index, b"", more=b"," + encode(fields)[1:-1])
        elif isinstance(data.get("audio"), dict):
            self.write_delta(index, encode({"audio": data["audio"]})[1:-1])
        else:
            fields = {name: value for name, value in data.items() if name in _SPEC_EXTRAS or not self.strict}
            for name in [name for name in fields if name in _HEAD_EXTRAS]:
                self._head_extras[name] = fields.pop(name)
                self.write_start()
            if fields:
                self._riding.update(fields)
                if not fields.keys() <= _RIDING_EXTRAS:  # it must not wait
                    self._choices[index].ensure_role()
                    if self._riding:
                        self._write_riding(index, b"")
        if not data:
            self.lose(event)


class _ChoiceWriter:
    """Writes the chunks of one choice."""

    def __init__(self, writer: ChatWriter, index: int) -> None:
        self.index = index
        self._writer = writer
        self._role_written = False
        self._ended = False
        self._field = b"content"
        self._chars = 0
        self._start = 0
        self._calls = 0
        self._call: ToolCallStart | None = None
        self._details = 0
        self._detail_open = False
        self._summary = False
        self._plain = writer._reasoning_field.encode() if writer._reasoning_field in ("reasoning", "reasoning_content") else b""
        self._said: list[str] = []
        """The reasoning of the open block, if the client gets it in a plain field."""
        self._annotations: list[JsonObject] = []
        self._images = 0
        self._audio_id = ""
        self._held = b""
        """The delta with the latest piece of the arguments of a call. Opaque state of the call may still join it."""
        self.step_break = StepBreak() if index else writer.step_break
        self.rules: Rules = {
            TextDelta: self._text,
            ReasoningDelta: self._reasoning,
            ToolCallDelta: self._arguments,
            TextStart: self._text_start,
            TextEnd: self._text_end,
            ReasoningStart: self._reasoning_start,
            ReasoningEnd: self._reasoning_end,
            ToolCallStart: self._call_start,
            ToolCallEnd: self._call_end,
            StepEnd: self.step_break.end_step,
            Extra: lambda event: writer.extra(event, index),
            StreamEnd: self.end,
            Citation: self._citation,
            Media: self._media,
        }

    def ensure_role(self) -> None:
        if not self._role_written:
            self._write(b'"content":""')

    def end(self, event: StreamEnd | None) -> None:
        if self._ended:
            return
        self._ended = True
        self.flush()
        if self._annotations:
            self._write(b'"annotations":' + encode(self._annotations))
        finish = FINISH_OF[event.reason] if event else "stop"
        if finish == "tool_calls" and self._writer._functions:
            finish = "function_call"
        role = b"" if self._role_written else b'"role":"assistant","content":""'
        self._writer.write_delta(self.index, role, encode(finish))

    def flush(self) -> None:
        """Writes the piece that is held."""
        held, self._held = self._held, b""
        if held:
            self._writer.write_delta(self.index, held)

    def _write(self, delta: bytes) -> None:
        if self._held:
            self.flush()
        if not self._role_written:
            self._role_written = True
            delta = b'"role":"assistant",' + delta
        self._writer.write_delta(self.index, delta)

    # --- text

    def _text_start(self, event: TextStart) -> None:
        self._field = b"refusal" if event.refusal else b"content"
        if not event.refusal and self.step_break.due():
            self._text(TextDelta(STEP_BREAK))
        self._start = self._chars

    def _text_end(self, event: TextEnd) -> None:
        if event.echo is not None:
            self._echo(text_state(event.echo, self._start, self._chars))

    def _text(self, event: TextDelta) -> None:
        self._chars += len(event.text)
        self._write(b'"%b":%b' % (self._field, encode(event.text)))

    # --- reasoning: the specification has no field for it, so strict mode omits it; servers and clients use three

    def _reasoning_start(self, event: ReasoningStart) -> None:
        self._summary = event.summary
        self._detail_open = False
        self._said.clear()

    def _reasoning(self, event: ReasoningDelta) -> None:
        if self._writer.strict:
            self._writer.lose(event)
            return
        piece = encode(event.text)
        if self._plain:
            self._said.append(event.text)
            self._write(b'"%b":%b' % (self._plain, piece))
            return
        self._detail_open = True
        detail = b'"type":"reasoning.summary","summary":' if self._summary else b'"type":"reasoning.text","text":'
        fields = b'"reasoning":%b,"reasoning_content":%b,' % (piece, piece) if self._writer._reasoning_field == "all" else b""
        self._write(b'%b"reasoning_details":[{%b%b,"index":%d}]' % (fields, detail, piece, self._details))

    def _reasoning_end(self, event: ReasoningEnd) -> None:
        if event.echo is not None and not self._writer.strict:
            own = own_details(event.echo)
            if own is not None:
                self._own_details(own, marker_of(event.echo, own))
            else:
                self._echo(event.echo)
        elif event.redacted:
            self._writer.lose(event)
        self._said.clear()
        if self._detail_open:
            self._details += 1
            self._detail_open = False

    def write_summary(self, text: str, extensions: JsonValue) -> None:
        """Writes a summary of thoughts that have left, in a chunk with a choice: clients skip other chunks."""
        self.ensure_role()
        detail = our_summary(text, self._details)
        self._details += 1
        chunk = b'%b,"choices":[{"index":%d,"delta":{"reasoning_details":%b},"finish_reason":null}],"extensions":%b}\n\n'
        self._writer.pieces.append(chunk % (self._writer._head, self.index, encode([detail]), encode(extensions)))

    def _own_details(self, entries: list[JsonObject], marker: JsonObject) -> None:
        """Writes the provider's own entries. Text that was streamed already is not repeated, only its state is written."""
        if self._plain:
            for entry in (*without_texts(entries, self._writer.dialect), marker):
                self._detail(entry)
            return
        for entry in (*entries, marker):
            detail = dict(entry)
            if entry.get("type") in SHOWN_ENTRIES:
                detail = {name: value for name, value in detail.items() if name not in ("text", "summary")}
                if set(detail) <= {"type", "index"}:
                    continue
            elif self._detail_open:
                self._details += 1
                self._detail_open = False
            detail["index"] = self._details
            self._write(b'"reasoning_details":' + encode([detail]))
            if entry.get("type") not in SHOWN_ENTRIES:
                self._details += 1

    def _detail(self, entry: JsonObject) -> None:
        """Writes a whole entry."""
        self._write(b'"reasoning_details":' + encode([{**entry, "index": self._details}]))
        self._details += 1

    def _echo(self, echo: Echo | None) -> None:
        """Writes packed state. Clients that return ``reasoning_details`` return it too."""
        if echo is None or self._writer.strict:
            return
        kind = "reasoning.summary" if self._summary else "reasoning.text"
        if self._detail_open:  # continues the entry of the text
            entry = {"type": kind, "signature": pack(echo), "index": self._details}
            self._write(b'"reasoning_details":' + encode([entry]))
        elif self._said:
            self._detail(signed_entry(echo, "".join(self._said), self._summary))
        else:
            self._detail({"type": "reasoning.encrypted", "data": pack(echo)})

    # --- calls

    def _call_start(self, event: ToolCallStart) -> None:
        if event.kind == "server":
            self._call = None
            self._writer.lose(event)
            return
        self._call = event
        content = b"" if self._role_written else b'"content":null,'
        if self._writer._functions:
            self._write(content + b'"function_call":' + encode({"name": event.name, "arguments": ""}))
            return
        body = {"name": event.name, "input": ""} if event.kind == "custom" else {"name": event.name, "arguments": ""}
        call = {"index": self._calls, "id": event.call_id, "type": event.kind, event.kind: body}
        self._write(content + b'"tool_calls":' + encode([call]))

    def _arguments(self, event: ToolCallDelta) -> None:
        if self._call is None:
            return
        piece = encode(event.args)
        if self._writer._functions:
            self._write(b'"function_call":{"arguments":%b}' % piece)
            return
        held = self._held
        name = b'"custom":{"input"' if self._call.kind == "custom" else b'"function":{"arguments"'
        self._held = b'"tool_calls":[{"index":%d,%b:%b}}]' % (self._calls, name, piece)
        if held:
            self._writer.write_delta(self.index, held)

    def _call_end(self, event: ToolCallEnd) -> None:
        if self._call is None:
            return
        if event.echo is not None and not self._writer.strict and not self._writer._functions:
            last = b'"tool_calls":[{"index":%d,"function":{"arguments":""}}]' % self._calls
            if event.complete:  # else the base may take back what is written here
                last, self._held = self._held or last, b""
            self._writer.write_delta(self.index, b'%b,"extra_content":%b}]' % (last[:-2], encode(extra_content(event.echo))))
        elif event.complete:
            self.flush()
        self._call = None
        self._calls += 1

    # --- annotations and media

    def _citation(self, event: Citation) -> None:
        annotation = write_citation(event)
        if annotation is None:
            self._writer.lose(event)
        else:
            self._annotations.append(annotation)

    def _media(self, event: Media) -> None:
        if event.mime.startswith("audio/"):
            audio = {"id": "" if event.id == self._audio_id else event.id, "data": event.data, "transcript": event.transcript}
            self._audio_id = event.id
            self._write(b'"audio":' + encode({name: value for name, value in audio.items() if value}))
        elif event.mime.startswith("image/") and not self._writer.strict:
            url = event.url or f"data:{event.mime};base64,{event.data}"
            image = {"type": "image_url", "image_url": {"url": url}, "index": self._images}
            self._images += 1
            self._write(b'"images":' + encode([image]))
        else:
            self._writer.lose(event)


# --- the whole response


def build(
    response: Response,
    *,
    strict: bool = False,
    functions: bool = False,
    reasoning_field: ReasoningField = "reasoning_content",
) -> JsonObject:
    """An incomplete call is left out, so that no client runs it. The options are those of ``ChatWriter``."""
    choices = [_build_choice(choice, response.extras, strict, functions, reasoning_field) for choice in response.choices]
    if not strict:
        _add_summaries(choices, response.extras)
    own = (extra.data for extra in response.extras if extra.dialect == DIALECT)
    extras = ({name: value for name, value in data.items() if name not in ("choice", "reasoning_summary")} for data in own)
    return build_completion(response, "chat.completion", choices, extras, error_body, strict=strict)


def _build_choice(
    choice: ResponseChoice, extras: list[Extra], strict: bool, functions: bool, reasoning_field: ReasoningField
) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": None, "refusal": None}
    calls: list[JsonObject] = []
    thoughts: list[ReasoningPart] = []
    annotations: list[JsonObject] = []
    for part in with_step_breaks(choice):
        match part:
            case TextPart():
                start = len(message["content"] or "")
                message["content"] = (message["content"] or "") + part.text
                if part.echo is not None:
                    echo = text_state(part.echo, start, len(message["content"]))
                    thoughts.append(ReasoningPart("", redacted=True, echo=echo))
                for citation in part.citations:
                    annotation = write_citation(citation)
                    if annotation is not None:
                        annotations.append(annotation)
            case RefusalPart():
                message["refusal"] = (message["refusal"] or "") + part.text
            case ReasoningPart():
                thoughts.append(part)
            case ToolCallPart(kind="function" | "custom", complete=True):
                calls.append(_build_call(part, strict))
            case MediaPart() if part.mime.startswith("audio/"):
                message["audio"] = {"id": part.id, "data": part.data, "transcript": part.transcript, "expires_at": 0}
            case MediaPart() if part.mime.startswith("image/") and not strict:
                url = part.url or f"data:{part.mime};base64,{part.data}"
                message.setdefault("images", []).append({"type": "image_url", "image_url": {"url": url}})
    if annotations:
        message["annotations"] = annotations
    if thoughts and not strict:
        _add_reasoning(message, thoughts, reasoning_field)
    if calls and functions:
        message["function_call"] = calls[0]["function"]
    elif calls:
        message["tool_calls"] = calls
    finish = FINISH_OF[choice.stop_reason] if choice.stop_reason else None
    if functions and finish == "tool_calls":
        finish = "function_call"
    logprobs = _joined_logprobs(choice.extras if choice.index else extras)
    return {"index": choice.index, "message": message, "finish_reason": finish, "logprobs": logprobs}


def _joined_logprobs(extras: list[Extra]) -> JsonObject | None:
    """Joins log probabilities, which arrive in pieces as lists of tokens."""
    joined: dict[str, list[JsonValue]] = {}
    for extra in extras:
        choice = extra.data.get("choice") if extra.dialect == DIALECT else None
        logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
        for name, tokens in logprobs.items() if isinstance(logprobs, dict) else ():
            if isinstance(tokens, list):
                joined.setdefault(name, []).extend(tokens)
    return {"content": None, "refusal": None, **joined} if joined else None


def _build_call(part: ToolCallPart, strict: bool) -> JsonObject:
    call = build_call(part)
    if part.kind == "function" and part.echo is not None and not strict:
        call["extra_content"] = extra_content(part.echo)
    return call


def _add_summaries(choices: list[JsonObject], extras: list[Extra]) -> None:
    """Adds the summaries that the gateway had made of the first choice's thoughts."""
    texts = [text for extra in extras if isinstance(text := extra.data.get("reasoning_summary"), str)]
    if texts and choices:
        details = choices[0]["message"].setdefault("reasoning_details", [])
        details += [our_summary(text, len(details) + number) for number, text in enumerate(texts)]


def _add_reasoning(message: JsonObject, thoughts: list[ReasoningPart], field: ReasoningField) -> None:
    text = "".join(part.text for part in thoughts)
    in_details = field in ("reasoning_details", "all")
    if text:
        message.update(
            dict.fromkeys(("reasoning", "reasoning_content") if field == "all" else () if in_details else (field,), text)
        )
    details: list[JsonObject] = []
    for part in thoughts:
        echo = part.echo
        own = own_details(echo)
        if echo is not None and own is not None:
            details += [*(own if in_details else without_texts(own, echo.provider)), marker_of(echo, own)]
            continue
        kind, name = ("reasoning.summary", "summary") if part.summary else ("reasoning.text", "text")
        if echo is not None and not part.text:
            details.append({"type": "reasoning.encrypted", "data": pack(echo)})
        elif in_details:
            details.append({"type": kind, name: part.text, **({} if echo is None else {"signature": pack(echo)})})
        elif echo is not None:
            details.append(signed_entry(echo, part.text, part.summary))
    if details:
        message["reasoning_details"] = [{**entry, "index": index} for index, entry in enumerate(details)]
