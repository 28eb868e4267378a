"""Calls whose tags are names: ``<tool><parameter>value</parameter></tool>`` with the declared tools, and parameters as nested
tags, each after a token that prose never contains."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping

from ..call_reader import CallReader
from ..literals import quoted
from ..parameters import Declared, Schema, ValueWriter, feeding, follow, schema_types, typed
from ..scan import Malformed, Markers, Unfinished, Wait, markers_of
from . import FormatEngine, WrittenCall, dumped
from .xml_calls import head_of

_NAME = re.compile(r"[A-Za-z_][\w.:-]*")
_TAG_END = Markers((">",))


class ToolTags(FormatEngine):
    """``<read><filePath>a</filePath></read>``: only the tags of declared tools open a call. A value of several lines has a line
    end on each side that does not belong to it."""

    weak = True

    def openers_for(self, declared: Declared) -> tuple[str, ...]:
        return tuple(f"<{name}>" for name in declared.schemas)

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        name = opener[1:-1]
        end = f"</{name}>"
        reader.start(name, hold=True)
        count = 0
        while True:
            mark = yield from source.spaced((end, "<"))
            if mark == end:
                break
            if not mark:
                raise Unfinished("no parameter follows")
            key, _ = yield from source.upto(_TAG_END)
            if not _NAME.fullmatch(key):
                raise Malformed(f"{key[:40]!r} is not a parameter")
            reader.arguments(("{" if not count else ", ") + quoted(key) + ": ")
            writer = ValueWriter(reader.arguments, reader.declared.types(name, key), "string", True)
            yield from feeding(writer, self._value(reader, writer, f"</{key}>", end))
            count += 1
            reader.commit()
        if count:
            reader.arguments("}")
        reader.end()

    def _value(self, reader: CallReader, writer: ValueWriter, close: str, end: str) -> Generator[None, None, bool]:
        """A closing tag counts only if a tag follows it, because a value may contain markup."""
        source = reader.source
        markers = markers_of((close, end))
        while True:
            mark = yield from source.stream(markers, writer.feed)
            if mark == close:
                if (yield from source.ahead(("<",))):
                    return True
            elif not mark:
                raise Unfinished("the text ended inside a value")
            elif not (yield from source.ahead((close, "<"))) or not reader.started:
                source.give_back(mark)
                raise Malformed("a parameter is not closed")
            writer.feed(mark)

    def write(self, calls: list[WrittenCall]) -> str:
        written = []
        for call in calls:
            lines = [f"<{key}>{_on_lines(item)}</{key}>" for key, item in call.members().items()]
            written.append("\n".join([f"<{call.name}>", *lines, f"</{call.name}>"]))
        return "\n".join(written)


def _on_lines(item: object) -> str:
    """A value, with a line end on each side if it has several lines."""
    text = item if isinstance(item, str) else dumped(item)
    return f"\n{text}\n" if "\n" in text or "\r" in text else text


class NestedTags(FormatEngine):
    """``token`` stands before every tag: ``T<tool_call>T<invoke name="f">T<a>vT</a>T</invoke>T</tool_call>``. Tags inside a
    parameter make an object, tags named ``item`` an array."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._open = f"{token}<tool_call>"
        self._close = f"{token}</tool_call>"
        self._invoke = f"{token}<invoke name="
        self._invoke_end = f"{token}</invoke>"
        self.openers = (self._open,)
        self.closers = (self._close,)
        self._mark = Markers((f"{token}<",))

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        first = True
        while True:
            mark = yield from source.spaced((self._invoke, self._close))
            if mark != self._invoke:
                if not mark and first:
                    raise Malformed("no call follows")
                return
            first = False
            yield from self._call(reader)

    def _call(self, reader: CallReader) -> Wait:
        source = reader.source
        header, _ = yield from source.upto(_TAG_END)
        name = reader.name(head_of(header)[0])
        root = reader.declared.schemas.get(name) or {}
        reader.start(name, hold=True)
        count = 0
        while True:
            mark = yield from source.spaced((self._invoke_end, f"{self._token}<"))
            if mark == self._invoke_end:
                break
            if not mark:
                raise Malformed("text between parameters")
            key, _ = yield from source.upto(_TAG_END)
            if key.startswith("/"):
                raise Malformed("a call is closed by another tag")
            reader.arguments(("{" if not count else ", ") + quoted(key) + ": ")
            yield from self._element(reader, key, reader.declared.properties(name).get(key), root)
            reader.commit()
            count += 1
        if (yield from source.ahead(())) and source.cut:
            raise Unfinished("the text ended inside a section")
        if count:
            reader.arguments("}")
        reader.end()

    def _element(self, reader: CallReader, tag: str, schema: object, root: Schema, depth: int = 0) -> Wait:
        """The value of one tag, up to its end tag: text, an object of tags, or an array of items."""
        if depth > 64:
            raise Malformed("tags are nested too deeply")
        source = reader.source
        types = schema_types(schema, root)
        only_text = "string" in types or (bool(types) and not types & {"object", "array"})
        close = f"{self._token}</{tag}>"
        if only_text:
            writer = ValueWriter(reader.arguments, types, "string", False)
            yield from feeding(writer, self._text(reader, writer, close))
            return
        if (yield from source.spaced((f"{self._token}<",))):
            source.give_back(f"{self._token}<")
            if not (yield from source.literal((close,))):
                yield from self._children(reader, close, follow(schema, root), root, depth)
                return
            reader.arguments("[]" if types == {"array"} else "{}" if "object" in types else typed("", types))
            return
        writer = ValueWriter(reader.arguments, types, "json", False)
        yield from feeding(writer, self._words(reader, writer, close))

    def _text(self, reader: CallReader, writer: ValueWriter, close: str) -> Generator[None, None, bool]:
        """A value that can only be text, and may contain tags."""
        source = reader.source
        while True:
            mark = yield from source.stream(markers_of((close, self._invoke_end)), writer.feed)
            if not mark:
                raise Unfinished("the text ended inside a value")
            if mark == close:
                if (yield from source.ahead(self._mark.words)):
                    return True
            elif (yield from source.ahead((self._close, self._invoke))):
                source.give_back(mark)
                raise Malformed("a parameter is not closed")
            writer.feed(mark)

    def _words(self, reader: CallReader, writer: ValueWriter, close: str) -> Generator[None, None, bool]:
        """A value of any type, up to the next tag."""
        source = reader.source
        if not (yield from source.stream(self._mark, writer.feed)):
            raise Unfinished("the text ended inside a value")
        source.give_back(f"{self._token}<")
        if not (yield from source.literal((close,))):
            raise Malformed("a parameter is closed by another tag")
        return True

    def _children(self, reader: CallReader, close: str, schema: Schema, root: Schema, depth: int) -> Wait:
        source = reader.source
        types = schema_types(schema, root)
        brackets = ""
        count = 0
        while not (yield from source.spaced((close,))):
            if not (yield from source.spaced((f"{self._token}<",))):
                raise Malformed("text between tags")
            tag, _ = yield from source.upto(_TAG_END)
            if tag.startswith("/"):
                raise Malformed("a parameter is closed by another tag")
            if not brackets:
                brackets = "[]" if tag == "item" and types != {"object"} else "{}"
                reader.arguments(brackets[0])
            key = "" if brackets == "[]" else quoted(tag) + ": "
            reader.arguments((", " if count else "") + key)
            yield from self._element(reader, tag, _child(schema, tag, root), root, depth + 1)
            count += 1
        reader.arguments(brackets[1:] or "{}")

    def write(self, calls: list[WrittenCall]) -> str:
        written = "".join(
            f'{self._invoke}"{call.name}">'
            + "".join(_nested(self._token, key, item) for key, item in call.members().items())
            + self._invoke_end
            for call in calls
        )
        return f"{self._open}\n{written}\n{self._close}"


def _nested(token: str, tag: str, item: object) -> str:
    if isinstance(item, dict):
        inside = "".join(_nested(token, key, part) for key, part in item.items())
    elif isinstance(item, list):
        inside = "".join(_nested(token, "item", part) for part in item)
    else:
        inside = item if isinstance(item, str) else dumped(item)
    return f"{token}<{tag}>{inside}{token}</{tag}>"


def _child(schema: Schema, tag: str, root: Schema) -> object:
    """The schema of a tag inside this one, through unions, if it is declared."""
    for branch in (schema, *(part for joint in ("anyOf", "oneOf", "allOf") for part in schema.get(joint) or ())):
        branch = follow(branch, root)
        if tag == "item" and "items" in branch:
            return branch["items"]
        properties = branch.get("properties")
        if isinstance(properties, Mapping) and tag in properties:
            return properties[tag]
    return schema.get("additionalProperties")
