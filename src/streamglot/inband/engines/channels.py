"""Formats whose answer is a sequence of messages, each with a header that says what its text is: reasoning, answer or call."""

from __future__ import annotations

import re
from collections.abc import Generator
from html import escape, unescape

from ..call_reader import CallReader
from ..literals import quoted
from ..parameters import ValueWriter, feeding, json_type, schema_types
from ..scan import Malformed, Markers, Unfinished, Unrelated, Wait, markers_of
from . import FormatEngine, WrittenCall, dumped
from .json_calls import INTERPRETERS, json_arguments, raw_arguments

_RECIPIENT = re.compile(r"\bto=([\w.:/-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_HEADER = re.compile(
    r"(?:<\|start\|>)? ?[\w.-]* ?(?:to=[\w.:/-]+)? ?(?:<\|channel\|> ?\w* ?(?:to=[\w.:/-]+)? ?)*"
    r"(?:<\|constrain\|> ?[\w-]*|json|code)? ?"
)
"""A header, its white space folded to single spaces."""
_HALF_TOKEN = re.compile(r"<[^>]*$")
_FIRST_WORD = re.compile(r"\w+")
_NO_WORDS = re.compile(r"<\|\w+\|>|to=\S*")
_HEADER_WORDS = ("assistant", "analysis", "commentary", "final", "json", "code")


def _is_header(text: str) -> bool:
    return _HEADER.fullmatch(re.sub(r"\s+", " ", text)) is not None


def _is_known(header: str) -> bool:
    """Whether the last word of a header that was cut off is the beginning of a role or of a channel."""
    words = _FIRST_WORD.findall(_NO_WORDS.sub(" ", header))
    return not words or any(word.startswith(words[-1]) for word in _HEADER_WORDS)


class Channels(FormatEngine):
    """A sequence of messages, each with a header up to ``message`` and a body up to one of ``ends``::

        answer  = {message}
        message = [start role] [" to=" recipient] {"<|channel|>" channel [" to=" recipient]} ["<|constrain|>" type]
                  "<|message|>" body end

    ``reasoning`` and ``answer`` are the channels (or recipients) of reasoning and answer. Any other recipient is a tool, whose
    body is JSON, or what the other engines of the row find (``json=False``). The prompt ends after the role of the first message,
    so an answer may begin inside a header.
    """

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
    ) -> None:
        self.openers = (*starts, *ends)
        self.start_openers = ("to=",)
        self.message = message
        self._ends = self.ends = ends
        self._end = Markers(ends)
        self._header_end = Markers((message, "{"))
        self._reasoning = reasoning
        self._answer = answer
        self._json = json

    def read(self, reader: CallReader, opener: str) -> Wait:
        if opener in self._ends:
            reader.mode = "text"
            reader.to_user = False
            reader.announced = ""
            if reader.raw:
                reader.raw = False
                reader.text(opener)
            reader.at_start = True
            return
        try:
            header, mark = yield from reader.source.upto(self._header_end)
        except Unfinished:
            header = _HALF_TOKEN.sub("", "".join(reader.source.trail or ()))
            found = _RECIPIENT.search(header)
            if opener in self.start_openers or (found is not None and self._is_tool(found[1])):
                raise
            if not _is_header(header) or not _is_known(header):
                raise Unrelated("not a header") from None
            return
        header = opener + header
        if mark == "{":
            reader.source.give_back(mark)
        if not _is_header(header) or (mark == "{" and "to=" not in header):
            raise Unrelated("not a header")
        yield from self.body(reader, header)

    def body(self, reader: CallReader, header: str) -> Wait:
        """Reads what follows a header, by its recipient and its channel."""
        reader.raw = False
        reader.announced = ""
        found = _RECIPIENT.search(header)
        recipient = found[1] if found is not None else ""
        channels = _CHANNEL.findall(header) or _FIRST_WORD.findall(header)[:1]
        thinks = channels[-1:] != [] and channels[-1] in self._reasoning
        reader.to_user = recipient in self._answer
        if not self._is_tool(recipient):
            reader.mode = "reasoning" if recipient in self._reasoning or thinks else "text"
        elif not reader.calls:
            reader.raw = True
            reader.mode = "text"
            raise Malformed("calls are not wanted")
        elif not self._json:
            reader.mode = "text"
            reader.announced = reader.declared.resolve(recipient) or ""
        else:
            yield from self._call(reader, recipient, thinks)

    def _is_tool(self, recipient: str) -> bool:
        return bool(recipient) and recipient not in self._reasoning and recipient not in self._answer

    def _call(self, reader: CallReader, recipient: str, thinks: bool) -> Wait:
        source = reader.source
        name = reader.declared.resolve(recipient.removeprefix("functions."))
        is_json = yield from source.ahead(("{",))
        if name in INTERPRETERS and name in reader.declared.schemas and not is_json:
            yield from raw_arguments(reader, name, self._end)
            reader.mode = "text"
            reader.at_start = True
            return
        is_empty = name is not None and not is_json and bool((yield from source.spaced(self._ends)))
        if name is None or not (is_json or is_empty):
            reader.mode = "reasoning" if thinks else "text"
            if is_json and not thinks:
                # A call of an undeclared tool is text, with its header.
                reader.raw = True
                reader.text("".join(source.trail or ()))
            return
        reader.start(name)
        if is_json:
            if not (yield from json_arguments(reader)):
                raise Unfinished("a call has no arguments")
            yield from source.spaced(self._ends)
        reader.end()
        reader.mode = "text"
        reader.at_start = True

    def write(self, calls: list[WrittenCall]) -> str | None:
        if not self._json:
            return None
        return "".join(
            f"<|channel|>commentary to=functions.{call.name} <|constrain|>json{self.message}{call.arguments}{self._ends[-1]}"
            for call in calls
        )


class RenderedChannels(FormatEngine):
    """Headers without their special tokens. If a model writes a header word where a message begins and continues with a token,
    the word is ignored. If a server drops all tokens (``analysis…assistantfinal…``), the first word of a message shows it; only
    then do the words of later headers count."""

    in_reasoning = "call"
    structure = True
    weak = True

    def __init__(self, channels: Channels, role: str, reasoning: tuple[str, ...], others: tuple[str, ...]) -> None:
        self._channels = channels
        self._role = role
        self._reasoning = reasoning
        self.openers = tuple(role + word for word in (*reasoning, *others))
        self.start_openers = (*self.openers, *reasoning, *others, role)
        self._header_end = Markers((channels.message, "{"))

    def begin(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        following = yield from source.spaces()
        if not following:
            raise Malformed("the whole answer is one word")
        if following == "<" and (yield from source.ahead(self._channels.openers)):
            return
        if following == "<" and (yield from source.spaced((self._channels.message,))):
            yield from self._channels.body(reader, opener)
            return
        addressed = yield from source.ahead(("to=",))
        if not addressed and opener not in self.openers and opener not in self._reasoning:
            raise Malformed("a word of the text")
        reader.rendered = True
        yield from self.read(reader, opener)

    def read(self, reader: CallReader, opener: str) -> Wait:
        if not reader.rendered:
            raise Malformed("words of the text")
        source = reader.source
        if (yield from source.ahead(("to=",))):
            header, mark = yield from source.upto(self._header_end)
            if mark == "{":
                source.give_back(mark)
            yield from self._channels.body(reader, f"{opener.removeprefix(self._role)} {header}")
            return
        reader.mode = "reasoning" if opener.removeprefix(self._role) in self._reasoning else "text"


class SkipTo(FormatEngine):
    """A header without meaning here: dropped from its opener up to ``end``, which is kept if it opens something (``keep``).
    ``inside`` is what a header may contain; with anything else it is not a header, but text."""

    in_reasoning = "call"
    structure = True

    def __init__(
        self,
        opener: str,
        end: str,
        inside: str,
        *,
        keep: bool = False,
        call: str = "",
        closers: tuple[str, ...] = (),
        span: str = "",
    ) -> None:
        self.openers = (opener,)
        self.span = span
        self._end = Markers((end,))
        self._inside = re.compile(inside)
        self._keep = keep
        self._call = call
        self.closers = closers

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        while True:
            found = self._inside.match(source.text, source.at)
            end = source.at if found is None else found.end()
            if end < len(source.text):
                break
            if source.closed:
                name = source.text[source.at :]
                if self._keep and name and reader.declared.resolve(name) is None:
                    raise Unrelated("not a header")
                source.skip(end)
                return
            yield
        source.skip(end)
        if not (yield from source.literal(self._end.words)):
            if source.closed and self._end.words[0].startswith(source.text[source.at :]):
                source.skip(len(source.text))
                return
            raise Unrelated("not a header")
        if self._keep:
            source.give_back(self._end.words[0])
            if self._call and not reader.calls and (yield from source.ahead((self._call,))):
                raise Malformed("the header of a call that is not wanted")


class Verbatim(FormatEngine):
    """Markup of another notation, from its opener to its end: not a call, but text as it was written."""

    def __init__(self, opener: str, end: str) -> None:
        self.openers = (opener,)
        self._end = Markers((end,))

    def read(self, reader: CallReader, opener: str) -> Wait:
        reader.text(opener)
        reader.text((yield from reader.source.stream(self._end, reader.text)))


_ATTRIBUTE = re.compile(r"""([\w.-]+)\s*=\s*"([^"]*)\"""")
_ELEMENTS = ("think", "response", "tools", "call", "argument", "message")
_ELEMENT = re.compile(r"""\s*[\w-]*(?:\s+[\w.-]+\s*=\s*"[^"]*")*\s*""")


class TokenElements(FormatEngine):
    """Elements between tokens: ``<|open|>call tool="f" index="1"<|sep|>...<|close|>call<|sep|>``. The element ``think`` is
    reasoning, ``response`` is the answer; a call contains one ``argument`` per parameter, typed by an attribute."""

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

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        try:
            header, mark = yield from source.upto(self._header_end)
        except Unfinished:
            header = _HALF_TOKEN.sub("", "".join(source.trail or ()).removeprefix(opener)).strip()
            if not any(name.startswith(header) for name in _ELEMENTS) or (opener == self._open and header == "call"):
                raise
            return
        if mark != self._separator:
            source.give_back(mark)
        if _ELEMENT.fullmatch(header) is None:
            raise Malformed("a header has something other than attributes")
        words = header.split()
        element = words[0] if words else ""
        if not reader.calls and element in ("tools", "call", "argument"):
            reader.mode = "text"
            raise Malformed("calls are not wanted")
        if element not in _ELEMENTS:
            raise Malformed(f"{element[:40]!r} is no element")
        if element == "argument" and opener == self._open:
            reader.raw = True
        if reader.raw and (element == "argument" or (element == "call" and opener == self._close)):
            # It belongs to a call that became text.
            reader.raw = element == "argument"
            reader.mode = "text"
            reader.text("".join(source.trail or ()))
        elif opener == self._close:
            reader.mode = "text"
        elif element == "think":
            reader.mode = "reasoning"
        elif element == "call":
            reader.raw = False
            try:
                yield from self._call(reader, header)
            except Malformed:
                reader.raw = not reader.started
                raise
        else:
            reader.mode = "text"

    def _call(self, reader: CallReader, header: str) -> Wait:
        source = reader.source
        reader.mode = "text"
        attributes = {key: unescape(text) for key, text in _ATTRIBUTE.findall(header)}
        name = reader.name(attributes.get("tool", ""))
        reader.start(name)
        count = 0
        while True:
            mark = yield from source.spaced((self._open, self._close))
            if not mark:
                raise Unfinished("the text ended inside a call")
            header, _ = yield from source.upto(markers_of((self._separator,)))
            if mark == self._close:
                if header.strip() not in ("call", "tools"):
                    raise Malformed("a call is closed by another element")
                break
            attributes = {key: unescape(text) for key, text in _ATTRIBUTE.findall(header)}
            if _ELEMENT.fullmatch(header) is None or header.split()[:1] != ["argument"] or "key" not in attributes:
                raise Malformed("a call has something other than arguments")
            key = attributes["key"]
            types = reader.declared.types(name, key) or schema_types({"type": attributes.get("type", "")}, {})
            reader.arguments(("{" if not count else ", ") + quoted(key) + ": ")
            writer = ValueWriter(reader.arguments, types, "string", False)
            yield from feeding(writer, self._value(reader, writer))
            count += 1
        if (yield from source.ahead(())) and source.cut:
            raise Unfinished("the text ended inside a section")
        if count:
            reader.arguments("}")
        reader.end()

    def _value(self, reader: CallReader, writer: ValueWriter) -> Generator[None, None, bool]:
        """An end counts only if something follows that may follow it, because a value may contain this notation."""
        source = reader.source
        while True:
            mark = yield from source.stream(self._value_end, writer.feed)
            if not mark:
                raise Unfinished("the text ended inside a value")
            if mark == self._argument_end:
                if (yield from source.ahead(self._behind_argument)):
                    return True
            elif (yield from source.ahead(self._behind_call)):
                source.give_back(mark)
                raise Malformed("an argument is not closed")
            writer.feed(mark)

    def write(self, calls: list[WrittenCall]) -> str:
        return self._element("tools", "", "".join(self._written(call, index + 1) for index, call in enumerate(calls)))

    def _written(self, call: WrittenCall, index: int) -> str:
        inside = "".join(
            self._element(
                "argument", f' key="{escape(key)}" type="{json_type(item)}"', item if isinstance(item, str) else dumped(item)
            )
            for key, item in call.members().items()
        )
        return self._element("call", f' tool="{escape(call.name)}" index="{index}"', inside)

    def _element(self, name: str, attributes: str, inside: str) -> str:
        return f"{self._open}{name}{attributes}{self._separator}{inside}{self._close}{name}{self._separator}"
