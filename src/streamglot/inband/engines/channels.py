"""Formats whose answer is a row of messages, each with a header that says what its text is: thinking, answer or call."""

from __future__ import annotations

import re
from html import escape, unescape

from ..declared import json_type, schema_types
from ..json_strings import quoted
from ..reader import Reader
from ..scan import Cut, Malformed, Markers, Wait, markers_of
from ..values import ValueWriter
from .engine import Call, Engine, dumped
from .json_calls import INTERPRETERS, json_arguments, raw_arguments

_RECIPIENT = re.compile(r"\bto=([^\s<|]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)|^\s*(\w+)")


class Channels(Engine):
    """``<|start|>assistant<|channel|>analysis<|message|>...<|end|>``: a header up to ``message``, a body up to one of
    ``ends``. ``reasoning`` and ``answer`` are the channels (or recipients) of thinking and answer; any other recipient
    is a tool, whose body is JSON, or whatever the other engines of the row find (``json=False``). ``words`` of a header may stand alone
    between two messages, and mean nothing there."""

    in_reasoning = "marker"
    structure = True

    def __init__(
        self,
        starts: tuple[str, ...],
        message: str,
        ends: tuple[str, ...],
        *,
        reasoning: tuple[str, ...],
        answer: tuple[str, ...],
        json: bool = True,
        words: tuple[str, ...] = (),
        start_openers: tuple[str, ...] = (),
    ) -> None:
        self.openers = (*starts, *ends)
        self.start_openers = start_openers
        self._ends = ends
        self._end = Markers(ends)
        self._message = Markers((message,))
        self._reasoning = reasoning
        self._answer = answer
        self._json = json
        self._words = words

    def read(self, reader: Reader, opener: str) -> Wait:
        if opener in self._ends:
            reader.mode = "text"
            if reader.raw:
                reader.raw = False
                raise Malformed("the end of a call that is not wanted")
            yield from self._between(reader)
            return
        source = reader.source
        try:
            header, _ = yield from source.upto(self._message)
        except Cut:
            if opener in self.start_openers:
                raise
            return
        header = opener + header
        found = _RECIPIENT.search(header)
        recipient = found[1] if found is not None else ""
        channel = ""
        for match in _CHANNEL.finditer(_RECIPIENT.sub("", header)):
            channel = match[1] or channel
        if recipient in self._reasoning or (not recipient and channel in self._reasoning):
            reader.mode = "reasoning"
        elif not recipient or recipient in self._answer:
            reader.mode = "text"
        elif not reader.calls:
            reader.raw = True
            reader.mode = "text"
            raise Malformed("calls are not wanted")
        elif not self._json:
            reader.mode = "text"
        else:
            yield from self._call(reader, recipient, channel)

    def _call(self, reader: Reader, recipient: str, channel: str) -> Wait:
        source = reader.source
        name = reader.declared.resolve(recipient.removeprefix("functions."))
        following = yield from source.spaces()
        if name in INTERPRETERS and name in reader.declared.schemas and following not in ("{", ""):
            yield from raw_arguments(reader, name, self._end)
            reader.mode = "text"
            yield from self._between(reader)
            return
        if name is None or following not in ("{", ""):
            reader.mode = "reasoning" if channel in self._reasoning else "text"
            return
        reader.start(name)
        if not (yield from json_arguments(reader)):
            raise Cut("a call has no arguments")
        yield from source.spaced(self._ends)
        reader.end()
        reader.mode = "text"
        yield from self._between(reader)

    def _between(self, reader: Reader) -> Wait:
        word = yield from reader.source.spaced(self._words)
        if word and not (yield from reader.source.ahead(self.openers)):
            reader.source.give_back(word)

    def write(self, calls: list[Call]) -> str | None:
        if not self._json:
            return None
        message = self._message.words[0]
        return "".join(
            f"<|channel|>commentary to=functions.{call.name} <|constrain|>json{message}{call.arguments}{self._ends[-1]}"
            for call in calls
        )


class SkipTo(Engine):
    """Markup that means nothing to us: dropped from its opener up to ``end``, which is kept where it opens something."""

    in_reasoning = "call"
    structure = True

    def __init__(self, opener: str, end: str, *, keep: bool = False, call: str = "", closers: tuple[str, ...] = ()) -> None:
        self.openers = (opener,)
        self._end = Markers((end,))
        self._keep = keep
        self._call = call
        self.closers = closers

    def read(self, reader: Reader, opener: str) -> Wait:  # noqa: ARG002
        try:
            _, mark = yield from reader.source.upto(self._end)
        except Cut:
            return
        if self._keep:
            reader.source.give_back(mark)
            if self._call and not reader.calls and (yield from reader.source.ahead((self._call,))):
                raise Malformed("the header of a call that is not wanted")


_ATTRIBUTE = re.compile(r"""([\w.-]+)\s*=\s*"([^"]*)\"""")


class Elements(Engine):
    """Elements between tokens: ``<|open|>call tool="f" index="1"<|sep|>...<|close|>call<|sep|>``. The element ``think``
    is thinking, ``response`` is the answer; a call holds one ``argument`` for each parameter, typed by an attribute."""

    in_reasoning = "marker"
    structure = True

    def __init__(self, open_: str, close: str, separator: str) -> None:
        self.openers = (open_, close)
        self._open = open_
        self._close = close
        self._separator = separator
        self._header_end = Markers((separator, open_, close))
        self._argument_end = f"{close}argument{separator}"
        self._value_end = Markers((self._argument_end, f"{close}call{separator}"))
        self._behind_argument = (open_, f"{close}call", f"{close}tools")
        self._behind_call = (f"{open_}call", f"{close}tools")

    def read(self, reader: Reader, opener: str) -> Wait:
        source = reader.source
        try:
            header, mark = yield from source.upto(self._header_end)
        except Cut:
            return
        if mark != self._separator:
            source.give_back(mark)
        words = header.split()
        element = words[0] if words else ""
        if not reader.calls and element in ("tools", "call", "argument"):
            reader.mode = "text"
            raise Malformed("calls are not wanted")
        if opener == self._close:
            reader.mode = "text"
        elif element == "think":
            reader.mode = "reasoning"
        elif element == "call":
            yield from self._call(reader, header)
        elif element in ("response", "tools", "message"):
            reader.mode = "text"
        else:
            raise Malformed(f"{element[:40]!r} is no element")

    def _call(self, reader: Reader, header: str) -> Wait:
        source = reader.source
        reader.mode = "text"
        attributes = {key: unescape(text) for key, text in _ATTRIBUTE.findall(header)}
        name = reader.name(attributes.get("tool", ""))
        reader.start(name)
        count = 0
        while True:
            mark = yield from source.spaced((self._open, self._close))
            if not mark:
                raise Cut("the text ended inside a call")
            header, _ = yield from source.upto(markers_of((self._separator,)))
            if mark == self._close:
                break
            attributes = {key: unescape(text) for key, text in _ATTRIBUTE.findall(header)}
            if header.split()[:1] != ["argument"] or "key" not in attributes:
                raise Malformed("a call holds something else than arguments")
            key = attributes["key"]
            types = reader.declared.types(name, key) or schema_types({"type": attributes.get("type", "")}, {})
            reader.arguments(("{" if not count else ", ") + quoted(key) + ": ")
            writer = ValueWriter(reader.arguments, types, "string", False)
            yield from self._value(reader, writer)
            writer.close()
            count += 1
        if count:
            reader.arguments("}")
        reader.end()

    def _value(self, reader: Reader, writer: ValueWriter) -> Wait:
        """An end counts only where something follows that may follow it: a value may speak of this notation."""
        source = reader.source
        while True:
            mark = yield from source.stream(self._value_end, writer.feed)
            if not mark:
                raise Cut("the text ended inside a value")
            if mark == self._argument_end:
                if (yield from source.ahead(self._behind_argument)):
                    return
            elif (yield from source.ahead(self._behind_call)):
                raise Malformed("an argument is not closed")
            writer.feed(mark)

    def write(self, calls: list[Call]) -> str:
        return self._element("tools", "", "".join(self._written(call, index + 1) for index, call in enumerate(calls)))

    def _written(self, call: Call, index: int) -> str:
        inside = "".join(
            self._element(
                "argument", f' key="{escape(key)}" type="{json_type(item)}"', item if isinstance(item, str) else dumped(item)
            )
            for key, item in call.members().items()
        )
        return self._element("call", f' tool="{escape(call.name)}" index="{index}"', inside)

    def _element(self, name: str, attributes: str, inside: str) -> str:
        return f"{self._open}{name}{attributes}{self._separator}{inside}{self._close}{name}{self._separator}"
