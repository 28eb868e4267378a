"""Reads chat chunks of every compatible server, without knowing which one it is."""

from __future__ import annotations

import re
from collections import Counter
from itertools import compress
from operator import attrgetter
from typing import Any, Final, TypeVar, Unpack

import msgspec

from ...errors import UpstreamRefused, UpstreamTruncated
from ...events import Citation, Echo, Extra, Media, StopReason, StreamEnd, TextDelta, TextEnd, TextStart
from ...json_types import JsonObject, JsonValue
from ..common.blocks import Blocks
from ..common.lenient import json_text
from ..common.reader import ChoicesReader, ReaderOptions
from .wire import (
    REASONS,
    USAGE,
    CallDelta,
    Chunk,
    ChunkChoice,
    Delta,
    ReasoningDetails,
    add_extensions,
    chunk_decoder,
    known_decoder,
    labelled_decoder,
    shown_text,
    unknown_texts,
)

T = TypeVar("T")

_EXTRA_OF_CHUNK: Final = (
    "service_tier",
    "system_fingerprint",
    "provider",
    "timings",
    "moderation",
    "prompt_filter_results",
    "search_results",
)
_WORD: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)
_OTHER: Final = "delta.*"
"""Stands for fields whose names are no words, or too many."""
_MAX_UNREAD: Final = 16
"""Names of unknown fields that are kept: no server has so many, and an upstream chooses them."""
_extra_of: Final = attrgetter(*_EXTRA_OF_CHUNK)
_EXTRA_OF_CHOICE: Final = ("logprobs", "content_filter_results", "native_finish_reason")
_beside_message: Final = attrgetter(*(set(ChunkChoice.__struct_fields__) - {"message", "finish_reason"}))
_beside_text: Final = attrgetter(*(set(Delta.__struct_fields__) - {"content"}))


class ChatReader(ChoicesReader):
    dialect = "openai_chat"
    decoder: msgspec.json.Decoder[Any] = chunk_decoder  # Any: one of three kinds of chunk, see ``_decode_other``

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._refused: set[int] = set()
        self._details: dict[int, ReasoningDetails] = {}
        self._early: JsonObject = {}
        self._urls: set[str] = set()
        self.decoder = known_decoder

    def whole_at_once(self, body: bytes) -> bool:
        try:
            chunk = chunk_decoder.decode(body)
        except (ValueError, RecursionError):
            return False
        if not chunk.choices or chunk.error:
            return False
        if any(choice.finish_reason is None for choice in chunk.choices):
            return False
        self.look_again(body)
        if not self._read_plain_text(chunk, chunk.choices[0]):
            self.read_chunk(chunk)
            self.finish_stream()
        return True

    def _read_plain_text(self, chunk: Chunk, choice: ChunkChoice) -> bool:
        """Reads an answer that is one text, as most are, without the blocks that others need. Returns False for another answer."""
        message = choice.message
        text = message.content if message is not None else None
        reason = REASONS.get(choice.finish_reason or "")
        if (
            not isinstance(text, str)
            or not 0 < len(text) <= self.limits.block_chars
            or reason is None
            or len(chunk.choices or ()) > 1
            or chunk.extensions
            or any(_beside_message(choice))
            or any(_beside_text(message))
        ):
            return False
        self.start(chunk.id or "", chunk.model or "", int(chunk.created or 0))
        self._out += (TextStart(), TextDelta(text), TextEnd())
        if chunk.usage or chunk.x_groq:
            self._read_usage(chunk)
        self._read_extras(chunk)
        self.end(reason, choice.finish_reason)
        return True

    # --- one chunk

    def _decode_other(self, decoder: msgspec.json.Decoder[T], data: bytes) -> T:
        if self.decoder is known_decoder:
            self.decoder = labelled_decoder
            return self.decode(labelled_decoder, data)  # type: ignore[return-value]  # a chunk, too
        if decoder is not chunk_decoder:
            self.look_again(data)
            return self.decode(chunk_decoder, data)  # type: ignore[return-value]  # as above
        return super()._decode_other(decoder, data)

    def read_chunk(self, chunk: Chunk) -> None:
        choices = chunk.choices
        if not self.started and (choices or chunk.id or chunk.usage):
            self.start(chunk.id or "", chunk.model or "", int(chunk.created or 0))
            if self._early:
                self.emit_counted(Extra(self.dialect, self._early))
        if choices:
            for choice in choices:
                if choice.message is not None and (choice.extensions or chunk.extensions):
                    add_extensions(choice.message, choice.extensions or {})
                    if not choice.index:
                        add_extensions(choice.message, chunk.extensions or {})
                self._read_choice(choice)
        if chunk.usage or chunk.x_groq:
            self._read_usage(chunk)
        self._read_extras(chunk)

    def _read_choice(self, choice: ChunkChoice) -> None:
        index = max(choice.index or 0, 0)
        blocks = self.blocks(index)
        delta = choice.delta or choice.message
        if delta is not None:
            if choice.is_reasoning:
                delta.is_reasoning = True
            self._read_delta(delta, blocks, index)
        if choice.finish_reason:
            self._finish[index] = choice.finish_reason
            if choice.finish_reason.lower() != "error":
                blocks.finish(cut=REASONS.get(choice.finish_reason.lower()) == "length")
            for sequence in (choice.stop_reason, choice.matched_stop):
                if isinstance(sequence, str) and sequence:
                    self._sequences[index] = sequence
        if choice.logprobs or choice.content_filter_results or choice.native_finish_reason:
            self._read_choice_extras(choice, index)

    def _read_delta(self, delta: Delta, blocks: Blocks, index: int) -> None:
        if delta.reasoning_details or delta.reasoning_content or delta.reasoning or delta.thinking or delta.thought:
            self._read_reasoning(delta, blocks, index)
        content = delta.content
        if content:
            if isinstance(content, str):
                if delta.is_reasoning:  # the server marks its tokens: this one is not part of the answer
                    blocks.reasoning(content)
                else:
                    blocks.text(content)
            else:
                for part in content:
                    self._read_part(part, blocks)
        if delta.refusal:
            self._refused.add(index)
            blocks.text(delta.refusal, refusal=True)
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._read_call(call, blocks)
        if delta.function_call is not None:
            function = delta.function_call
            blocks.call(None, "", function.name or "", json_text(function.arguments))
        if delta.annotations or delta.images or delta.audio or delta.executed_tools:
            self._read_attachments(delta, blocks)

    def _read_reasoning(self, delta: Delta, blocks: Blocks, index: int) -> None:
        """Servers send the same reasoning in up to three fields: the details win, and nothing is emitted twice."""
        plain_fields: tuple[tuple[str, str | None], ...]
        plain_fields = (("reasoning_content", delta.reasoning_content), ("reasoning", delta.reasoning))
        if delta.thinking or delta.thought:
            others = (("thinking", delta.thinking), ("thought", delta.thought))
            plain_fields += tuple((field, plain) for field, plain in others if isinstance(plain, str))
        if delta.reasoning_details and self._read_details(delta.reasoning_details, plain_fields, blocks, index):
            return
        for field, plain in plain_fields:
            if plain:
                block = blocks.reasoning(plain)
                block.redacted = False
                if block.echo is None:
                    both = field == "reasoning_content" and delta.reasoning == plain
                    block.echo = Echo(self.provider, {"field": field, "more": ["reasoning"]} if both else {"field": field})
                elif callable(block.echo):
                    self._details[index].beside(field)
                return

    def _read_details(
        self, details: list[JsonValue], plain_fields: tuple[tuple[str, str | None], ...], blocks: Blocks, index: int
    ) -> bool:
        """Reads ``reasoning_details``. Returns whether they have a text. Fields with the same text are noted."""
        entries = [entry for entry in details if isinstance(entry, dict)]
        joined = "".join(shown_text(entry)[0] for entry in entries)
        beside = [field for field, plain in plain_fields if joined and plain == joined]
        for entry in entries:
            text, summary = shown_text(entry)
            block = blocks.reasoning(text, summary)
            if not callable(block.echo):
                self._details[index] = ReasoningDetails(self.provider)
                block.echo = self._details[index].echo
            if not block.size:
                block.redacted = True
            elif text:
                block.redacted = False
                for field in beside:
                    self._details[index].beside(field)
            blocks.count_opaque(block, self._details[index].add(entry))
        return bool(joined)

    def _read_part(self, part: object, blocks: Blocks) -> None:
        """Reads one part of a ``content`` list: text, thinking with parts of its own, a reference, an image."""
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, dict):
            return
        kind, text = part.get("type"), part.get("text")
        if kind == "thinking":
            thinking = part.get("thinking")
            pieces = thinking if isinstance(thinking, list) else [{"text": thinking}]
            joined = "".join(piece["text"] for piece in pieces if isinstance(piece, dict) and isinstance(piece.get("text"), str))
            block = blocks.reasoning(joined)
            state = {name: part[name] for name in ("signature", "id") if part.get(name)}
            blocks.keep(block, Echo(self.provider, {"thinking": state}))
        elif isinstance(text, str):
            if text:
                blocks.text(text)
        elif kind == "image_url":
            _put_image(part, blocks)
        else:
            self.emit(Extra(self.dialect, {"content": [part]}))

    def _read_call(self, call: CallDelta, blocks: Blocks) -> None:
        if call.custom is not None:
            block = blocks.call(call.index, call.id or "", call.custom.name or "", call.custom.input or "", "custom")
        elif call.function is not None:
            function = call.function
            block = blocks.call(call.index, call.id or "", function.name or "", json_text(function.arguments))
        elif call.id or call.index is not None:
            block = blocks.call(call.index, call.id or "", "", "")
        else:
            return
        if call.extra_content and not block.ended:
            blocks.keep(block, Echo(self.provider, {"extra_content": call.extra_content}))

    def _read_attachments(self, delta: Delta, blocks: Blocks) -> None:
        for annotation in delta.annotations or ():
            if isinstance(annotation, dict):
                blocks.put(read_annotation(annotation, self.dialect))
        for image in delta.images or ():
            if isinstance(image, dict):
                _put_image(image, blocks)
        if isinstance(delta.audio, dict):
            audio = {name: value for name, value in delta.audio.items() if isinstance(value, str)}
            if audio.get("data") or audio.get("transcript") or audio.get("id"):
                blocks.put(Media("audio/*", audio.get("data", ""), "", audio.get("id", ""), audio.get("transcript", "")))
            if delta.audio.get("expires_at") is not None:
                self.emit(Extra(self.dialect, {"audio": {"expires_at": delta.audio["expires_at"]}}))
        if delta.executed_tools:
            self.emit(Extra(self.dialect, {"executed_tools": delta.executed_tools}))

    def look_again(self, data: bytes) -> None:
        for name in unknown_texts(data):
            if self.unread is None:
                self.unread = Counter()
            shown = f"delta.{name}" if _WORD.fullmatch(name) else _OTHER
            self.unread[shown if shown in self.unread or len(self.unread) < _MAX_UNREAD else _OTHER] += 1

    def _read_usage(self, chunk: Chunk) -> None:
        raw = chunk.usage or (chunk.x_groq or {}).get("usage")
        if isinstance(raw, dict) and raw and (self._usage is None or raw != self._usage.raw):
            self.start()
            self._usage = USAGE.read(raw, self._usage)
            self.emit(self._usage)

    def _read_extras(self, chunk: Chunk) -> None:
        for name in compress(_EXTRA_OF_CHUNK, _extra_of(chunk)):
            value = getattr(chunk, name)
            if self._emitted.get(name) != value:
                self._emitted[name] = value
                if self.started:
                    self.emit(Extra(self.dialect, {name: value}))
                else:
                    self.tally.extra(value)
                    self._early[name] = value
        for url in chunk.citations or ():
            if isinstance(url, str) and url not in self._urls:
                self._urls.add(url)
                self.blocks().put(Citation(url))

    def _read_choice_extras(self, choice: ChunkChoice, index: int) -> None:
        for name in _EXTRA_OF_CHOICE:
            value = getattr(choice, name)
            if value and any(value.values() if isinstance(value, dict) else (value,)):
                self.emit(Extra(self.dialect, {"choice": {name: value}}), index)

    # --- the end

    def finish_stream(self) -> None:
        for word in self._finish.values():
            if word.lower() == "error":
                raise UpstreamRefused("the upstream ended its stream with the finish reason 'error' and no explanation")
        indexes = sorted(self._blocks, reverse=True)
        for index in indexes:
            blocks = self._blocks[index]
            if index not in self._finish and blocks.half_call():
                place = "the answer ends" if self.is_whole else "the stream has [DONE]"
                raise UpstreamTruncated(f"{place} inside the arguments of a tool call")
            blocks.finish()
        if not self._finish and not any(blocks.count for blocks in self._blocks.values()):
            raise UpstreamTruncated("the stream ended without an answer and without a finish reason", code="upstream_empty")
        for index in indexes:
            if index:
                reason, raw, sequence = self._reason(index)
                self.emit(StreamEnd(reason, raw, sequence), index)
        self.end(*self._reason(0))

    def _reason(self, index: int) -> tuple[StopReason, str | None, str | None]:
        raw = self._finish.get(index)
        reason = REASONS.get(raw.lower(), "other") if raw else "other"
        sequence = self._sequences.get(index)
        if reason in ("end", "other"):
            if index in self._blocks and self._blocks[index].calls:
                reason = "tool_calls"
            elif index in self._refused:
                reason = "refusal"
            elif sequence:
                reason = "stop_sequence"
        return reason, raw, sequence


def _put_image(image: JsonObject, blocks: Blocks) -> None:
    link = image.get("image_url")
    url = link.get("url") if isinstance(link, dict) else link
    if isinstance(url, str) and url:
        blocks.put(read_image(url))


def read_image(url: str) -> Media:
    """A ``data:`` URL as its content, any other as a link."""
    head, comma, data = url.partition(",")
    if head.startswith("data:") and comma:
        return Media(head[5:].partition(";")[0] or "image/*", data)
    return Media("image/*", url=url)


def read_annotation(annotation: JsonObject, dialect: str) -> Citation:
    inner = annotation.get("url_citation")
    fields = inner if isinstance(inner, dict) else annotation
    words = {name: value if isinstance(value := fields.get(name), str) else "" for name in ("url", "title", "content")}
    places = {name: value if isinstance(value := fields.get(f"{name}_index"), int) else None for name in ("start", "end")}
    return Citation(words["url"], words["title"], words["content"], **places, native=Echo(dialect, annotation))
