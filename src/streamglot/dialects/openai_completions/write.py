"""Writes chunks of text completions, and the completion object: text and its end. The format has no reasoning, calls or media."""

from __future__ import annotations

from typing import Final, Unpack

from ...events import (
    Choice,
    Extra,
    StepEnd,
    StreamEnd,
    StreamError,
    TextDelta,
    TextEnd,
    TextStart,
)
from ...framing import sse
from ...json_types import JsonObject
from ...messages import RefusalPart, Response, TextPart
from ...stages.steps import STEP_BREAK, with_step_breaks
from ..common.completions import build_completion
from ..common.tables import completion_usage
from ..common.writer import Rules, Writer, WriterOptions, encode
from .request import DIALECT
from .wire import FINISH_OF, error_body

_OF_CHUNK: Final = frozenset(("system_fingerprint", "provider", "timings", "prompt_filter_results"))
_SPEC: Final = frozenset(("system_fingerprint", "logprobs"))


class CompletionsWriter(Writer):
    """``include_usage`` writes the usage chunk, the only one without a choice."""

    dialect = "openai_completions"
    folded = {
        "TextStart": "not written; a refusal is text",
        "TextEnd": "not written; an echo is lost",
        "StepEnd": "an empty line between the texts of two steps",
    }

    def __init__(self, **more: Unpack[WriterOptions]) -> None:
        self._head = b""
        self._riding: JsonObject = {}
        self._ended: set[int] = set()
        self._choices = 1
        super().__init__(**more)

    def rules(self) -> Rules:
        return {
            **super().rules(),
            TextDelta: lambda event: self._write(0, encode(event.text)),
            TextStart: self._text_start,
            TextEnd: self._text_end,
            Extra: lambda event: self._extra(event, 0),
            Choice: self._choice,
        }

    def write_start(self) -> None:
        head = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        self._head = b"data: " + encode(head)[:-1]

    def write_end(self, event: StreamEnd) -> None:
        for index in range(self._choices):
            self._end(index, event if index == 0 else StreamEnd())
        usage = completion_usage(self.usage, self.strict)
        if self.include_usage and usage is not None:
            self.pieces.append(b'%b,"choices":[],"usage":%b}\n\n' % (self._head, encode(usage)))
        self.pieces.append(b"data: [DONE]\n\n")

    def write_error(self, event: StreamError) -> None:
        self.pieces.append(sse.event(encode(error_body(event))))
        if not self.abort:
            self.pieces.append(b"data: [DONE]\n\n")

    def _write(self, index: int, text: bytes, finish: bytes = b"null", logprobs: bytes = b"null", more: bytes = b"") -> None:
        self.ensure_started()
        fields = b""
        if self._riding:
            fields = b"," + encode(self._riding)[1:-1]
            self._riding = {}
        self.pieces.append(
            b'%b,"choices":[{"text":%b,"index":%d,"logprobs":%b%b,"finish_reason":%b}]%b}\n\n'
            % (self._head, text, index, logprobs, more, finish, fields)
        )

    def _end(self, index: int, event: StreamEnd) -> None:
        if index not in self._ended:
            self._ended.add(index)
            self._write(index, b'""', encode(FINISH_OF.get(event.reason, "stop")))

    def _text_start(self, _event: TextStart) -> None:
        if self.step_break.due():
            self._write(0, encode(STEP_BREAK))

    def _text_end(self, event: TextEnd) -> None:
        if event.echo is not None:
            self.lose(event)

    def _choice(self, event: Choice) -> None:
        self._choices = max(self._choices, event.index + 1)
        match event.event:
            case TextDelta(text=text):
                self._write(event.index, encode(text))
            case StreamEnd() as end:
                self._end(event.index, end)
            case Extra() as extra:
                self._extra(extra, event.index)
            case TextEnd() as text_end:
                self._text_end(text_end)
            case TextStart() | StepEnd():
                pass
            case _:
                self.lose(event)

    def _extra(self, event: Extra, index: int) -> None:
        data = event.data if event.dialect == self.dialect else {}
        inner = data.get("choice")
        choice = self._allowed(inner) if isinstance(inner, dict) else {}
        chunk = self._allowed({name: value for name, value in data.items() if name in _OF_CHUNK})
        if choice:
            logprobs = encode(choice.pop("logprobs", None))
            self._write(index, b'""', logprobs=logprobs, more=b"," + encode(choice)[1:-1] if choice else b"")
        self._riding.update(chunk)  # for the next chunk: clients take the first choice of every one
        if not data:
            self.lose(event)

    def _allowed(self, data: JsonObject) -> JsonObject:
        return {name: value for name, value in data.items() if name in _SPEC or not self.strict}


# --- the whole response


def build(response: Response, *, strict: bool = False) -> JsonObject:
    choices: list[JsonObject] = []
    for choice in response.choices:
        text = "".join(part.text for part in with_step_breaks(choice) if isinstance(part, (TextPart, RefusalPart)))
        finish = FINISH_OF.get(choice.stop_reason, "stop") if choice.stop_reason else None
        choices.append({"text": text, "index": choice.index, "logprobs": None, "finish_reason": finish})
    extras: list[JsonObject] = []
    for data in (extra.data for extra in response.extras if extra.dialect == DIALECT):
        own = data.get("choice")
        if isinstance(own, dict) and choices:
            _add_to_choice(choices[0], own, strict)
        else:
            extras.append({name: value for name, value in data.items() if name != "choice"})
    return build_completion(response, "text_completion", choices, extras, error_body, strict=strict)


def _add_to_choice(choice: JsonObject, own: JsonObject, strict: bool) -> None:
    """Joins log probabilities, which arrive in pieces as parallel lists."""
    for name, value in own.items():
        if name == "logprobs" and isinstance(value, dict):
            joined = choice["logprobs"] or {}
            for key, entries in value.items():
                before = joined.get(key)
                joined[key] = [*before, *entries] if isinstance(before, list) and isinstance(entries, list) else entries
            choice["logprobs"] = joined
        elif not strict:
            choice[name] = value
