"""Calls in a special object notation: ``call:f{a:<|"|>x<|"|>,n:1,o:{k:true}}`` with bare keys, and tokens for quotes."""

from __future__ import annotations

from collections.abc import Generator

from ..call_reader import CallReader
from ..literals import Notation, quoted
from ..parameters import ValueWriter
from ..scan import Malformed, Markers, Unfinished, Wait
from . import FormatEngine, WrittenCall, dumped

MAX_WORD_CHARS = 65_536
"""Maximum characters of a bare word: strings have quotes, so this is far more than a number needs."""

_NAME_END = Markers(("{",))
_KEY_END = Markers((":",))
_BARE_END = Markers((",", "}"))


class BraceCalls(FormatEngine):
    """``quote`` is the token around strings. Bare words are numbers, true, false, null, or strings; a bare word whose schema
    says string is a string."""

    def __init__(self, opener: str, end: str, quote: str, prefix: str = "call:") -> None:
        self.openers = (opener,)
        self.closers = (end,)
        self.in_reasoning = "call"
        self._end = end
        self._prefix = prefix
        self._notation = Notation(quotes=(quote, '"'), bare_keys=True, bare_strings=True, end=end)
        self._quotes = (quote, '"')

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        count = 0
        while True:
            if (yield from source.spaced((self._prefix,))):
                yield from self._call(reader)
                count += 1
            elif (yield from source.spaced((self._end,))) or count:
                return
            else:
                raise Malformed("no call follows")

    def _call(self, reader: CallReader) -> Wait:
        source = reader.source
        written, _ = yield from source.upto(_NAME_END)
        name = reader.name(written)
        reader.start(name)
        count = 0
        while not (yield from source.spaced(("}",))):
            if count and not (yield from source.spaced((",",))):
                raise Malformed("members without a comma")
            if count and (yield from source.spaced(("}",))):
                break
            key = yield from self._key(reader)
            reader.arguments(("{" if not count else ", ") + quoted(key) + ": ")
            yield from self._value(reader, name, key)
            count += 1
        if count:
            reader.arguments("}")
        reader.end()

    def write(self, calls: list[WrittenCall]) -> str:
        return "".join(f"{self.openers[0]}{self._prefix}{call.name}{self._written(call.members())}{self._end}" for call in calls)

    def _written(self, item: object) -> str:
        if isinstance(item, dict):
            return "{" + ",".join(f"{key}:{self._written(part)}" for key, part in item.items()) + "}"
        if isinstance(item, list):
            return "[" + ",".join(map(self._written, item)) + "]"
        return f"{self._quotes[0]}{item}{self._quotes[0]}" if isinstance(item, str) else dumped(item)

    def _key(self, reader: CallReader) -> Generator[None, None, str]:
        source = reader.source
        quote = yield from source.spaced(self._quotes)
        if quote:
            key, _ = yield from source.upto(Markers((quote,)))
            if not (yield from source.spaced((":",))):
                raise Malformed("a key has no value")
            return key
        key, _ = yield from source.upto(_KEY_END)
        return key.strip()

    def _value(self, reader: CallReader, name: str, key: str) -> Wait:
        source = reader.source
        following = yield from source.spaces()
        if not following:
            raise Unfinished("the text ended before a value")
        quote = yield from source.literal(self._quotes)
        if quote:
            source.give_back(quote)
        if quote or following in "{[":
            yield from reader.value(self._notation)
            return
        word, mark = yield from source.upto(_BARE_END, MAX_WORD_CHARS)
        source.give_back(mark)
        types = reader.declared.types(name, key)
        if not word.strip() and types and "string" not in types:
            if "null" not in types:
                raise Malformed(f"{key[:40]!r} has no value")
            word = "null"
        writer = ValueWriter(reader.arguments, types, "json", False)
        writer.feed(word.strip())
        writer.close()
