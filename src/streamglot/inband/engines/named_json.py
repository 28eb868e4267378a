r"""Calls with the name in a header, followed by the arguments as JSON: special-token sections, ``<function=f>{...}</function>``,
``[TOOL_CALLS]f[ARGS]{...}``, ``functions.f:0<...>{...}``, ``>>>f\n{...}``."""

from __future__ import annotations

import re
from typing import Literal

from ..reader import CallReader
from ..scan import Malformed, Markers, Unfinished, Wait
from .engine import FormatEngine, WrittenCall
from .json_calls import JsonCalls, json_arguments, raw_arguments

_INDEXED = re.compile(r"(?:functions?\.)?(?P<name>.+?)(?::(?P<index>\d+))?")
_ID = re.compile(r"[\w.:-]*")
_FENCES = ("```json", "```")


class SectionCalls(FormatEngine):
    """Sections of special tokens. ``section`` tokens open the whole, ``begin`` one call, ``separator`` stands before the
    arguments, ``end`` closes a call and ``section_end`` the whole; all except ``begin`` and ``separator`` may be missing.
    ``id_is_name``: the header is an id such as ``functions.f:0``. ``kind``: a header word that is the type of the call, with the
    name after the separator. ``forgets_begin``: that word alone may begin a call in a section."""

    def __init__(
        self,
        section: tuple[str, ...],
        begin: str,
        separator: str,
        end: str,
        section_end: tuple[str, ...],
        *,
        id_is_name: bool = False,
        kind: str = "",
        forgets_begin: bool = False,
        fenced: bool = False,
        in_reasoning: Literal["no", "call", "marker"] = "no",
    ) -> None:
        self.openers = (*section, begin)
        self.closers = (end, *section_end)
        self.in_reasoning = in_reasoning
        self._section = section
        self._begin = begin
        self._begins = (begin, f"{kind}{separator}") if forgets_begin else (begin,)
        self._separator = Markers((separator,))
        self._end = end
        self._section_end = section_end
        self._id_is_name = id_is_name
        self._kind = kind
        self._fenced = fenced

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        inside = opener == self._begin
        while True:
            if not inside:
                mark = yield from source.spaced(self._begins)
                if not mark:
                    if not (yield from source.spaced(self._section_end)) and opener in self._section and source.trail_size:
                        raise Malformed("a section holds no call")
                    return
                if mark != self._begin:
                    source.give_back(mark)
            inside = False
            yield from self._call(reader)
            opener = ""

    def _call(self, reader: CallReader) -> Wait:
        source = reader.source
        header, _ = yield from source.upto(self._separator)
        name, call_id = header.strip(), ""
        if self._id_is_name:
            call_id = name
            found = _INDEXED.fullmatch(name)
            if found is None:
                raise Malformed("a call has no name")
            name = found["name"]
            if name.isdigit():
                name = reader.declared.only() or name
        elif self._kind and name == self._kind:
            written, _ = yield from source.upto(_LINE_END)
            name = written.strip()
        reader.start(reader.name(name), call_id)
        fence = yield from source.spaced(_FENCES)
        if not (yield from json_arguments(reader)):
            following = yield from source.spaces()
            if not following:
                raise Unfinished("a call has no arguments")
            if following != "<":
                raise Malformed("the arguments are not JSON")
        if fence:
            yield from source.spaced(("```",))
        yield from source.spaced((self._end,))
        reader.end()

    def write(self, calls: list[WrittenCall]) -> str:
        separator = self._separator.words[0]
        written = []
        for index, call in enumerate(calls):
            header, arguments = call.name, call.arguments or "{}"
            if self._id_is_name:
                header = f"functions.{call.name}:{index}"
            elif self._fenced:
                header, arguments = self._kind, f"{call.name}\n```json\n{arguments}\n```"
            written.append(f"{self._begin}{header}{separator}{arguments}{self._end}")
        return self._section[0] + "".join(written) + self._section_end[0]


_LINE_END = Markers(("\n",))


class TaggedJson(FormatEngine):
    """``<function=f>{...}</function>``: the name in the tag, JSON as its content."""

    def __init__(self, opener: str, close: str, end: str, *, wrapper: tuple[str, str] | None = None) -> None:
        self.openers = (opener, wrapper[0]) if wrapper else (opener,)
        self.closers = (end, wrapper[1]) if wrapper else (end,)
        self._opener = opener
        self._close = Markers((close,))
        self._end = end
        self._wrapper = wrapper

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        if opener != self._opener and not (yield from source.spaced((self._opener,))):
            raise Malformed("no call follows")
        name, _ = yield from source.upto(self._close)
        reader.start(reader.name(name.strip(" \"'")))
        if not (yield from json_arguments(reader)) and (yield from source.spaces()) != "<":
            raise Malformed("the arguments are not JSON")
        yield from source.spaced((self._end,))
        if self._wrapper:
            yield from source.spaced((self._wrapper[1],))
        reader.end()

    def write(self, calls: list[WrittenCall]) -> str:
        close = self._close.words[0]
        return "\n".join(f"{self._opener}{call.name}{close}{call.arguments or '{}'}{self._end}" for call in calls)


class PrefixedJson(FormatEngine):
    """One marker with two grammars, both repeated with the marker and without an end::

        calls = opener (array | name ["[CALL_ID]" id] [["[ARGS]"] [object]])

    ``end`` is the token at the end of the message. A server may leave it in the text.
    """

    def __init__(self, opener: str, call_id: str, arguments: str, *, special: bool = False, end: str = "</s>") -> None:
        self.openers = (opener,)
        self.special = special
        self._opener = opener
        self._call_id = call_id
        self._arguments = arguments
        self._after_call = (opener, end)
        self._marks = Markers((call_id, arguments, opener, end, "{"))
        self._array = JsonCalls(opener)

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        if (yield from source.spaces()) in ("[", "{"):
            if not (yield from source.literal((self._arguments, self._call_id))):
                yield from self._array.calls(reader)
                return
            raise Malformed("a call has no name")
        name, mark = yield from source.upto(self._marks, or_end=True)
        if mark == "{" and name.rstrip().endswith("["):
            # Something stands before the array; it is ignored.
            source.give_back("[{")
            yield from self._array.calls(reader)
            return
        name = reader.name(name)
        call_id = ""
        if mark == self._call_id:
            written, mark = yield from source.upto(self._marks, or_end=True)
            call_id = written.strip()
            if _ID.fullmatch(call_id) is None:
                raise Malformed("a call has an invalid id")
        reader.start(name, call_id)
        if mark != self._arguments:
            source.give_back(mark)
        if (yield from source.ahead(self._after_call)):
            if source.cut or reader.declared.needs_arguments(name):
                raise Unfinished("a call has no arguments")
        elif not (yield from json_arguments(reader)):
            raise Malformed("the arguments are not JSON")
        reader.end()

    def write(self, calls: list[WrittenCall]) -> str:
        return "".join(f"{self._opener}{call.name}{self._arguments}{call.arguments or '{}'}" for call in calls)


class LineNamed(FormatEngine):
    r"""``>>>f\n{...}`` and ``>>>all\ntext``: the line after the separator names the recipient of what follows."""

    def __init__(self, opener: str, text: tuple[str, ...]) -> None:
        self.openers = (opener,)
        self.start_openers = ("",)
        self._text = text
        self._opener = Markers((opener,))

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        name, _ = yield from source.upto(_LINE_END)
        if name.strip() in self._text:
            return
        name = reader.name(name)
        following = yield from source.spaces()
        if following == "{":
            reader.start(name)
            yield from json_arguments(reader)
            reader.end()
            return
        if not following:
            raise Unfinished("a call has no arguments")
        source.give_back((yield from raw_arguments(reader, name, self._opener)))

    def write(self, calls: list[WrittenCall]) -> str:
        return "".join(f"{self.openers[0]}{call.name}\n{call.arguments or '{}'}" for call in calls)
