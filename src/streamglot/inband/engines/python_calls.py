"""Calls in Python syntax: ``[f(a="x", n=1), g()]``, or one call per line. A positional argument gets the name of the declared
parameter in its place."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Literal

from ..call_reader import CallReader
from ..literals import PYTHON, quoted
from ..scan import Malformed, Markers, Unfinished, Unrelated, Wait
from . import FormatEngine, WrittenCall
from .json_calls import INTERPRETERS, JsonCalls, raw_arguments

_NAME = re.compile(r"[^\W\d][\w.\-]*")
_NAME_END = Markers(("(",))
_KEY = re.compile(r"\s*([^\W\d]\w*)\s*=(?!=)")
_KEY_BEGINS = re.compile(r"\s*(?:[^\W\d]\w*\s*=?)?")


class PythonCalls(FormatEngine):
    """``brackets``: the calls are in a list; otherwise each is on its own line. ``json``: the list may contain JSON calls
    instead. ``bare``: the opener is the bracket itself."""

    def __init__(
        self,
        *openers: str,
        end: tuple[str, ...] = (),
        brackets: bool = True,
        json: bool = False,
        bare: bool = False,
        in_reasoning: Literal["no", "call", "marker"] = "no",
    ) -> None:
        self.openers = openers
        self.closers = () if bare else end
        self.weak = bare
        self.in_reasoning = in_reasoning
        self._end = end
        self._brackets = brackets
        self._json = JsonCalls(end=end) if json else None
        self._bare = bare

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        if self._bare:
            source.give_back(opener[-1])
        if not self._bare and (yield from source.spaced(self._end)):
            return
        if self._brackets:
            if self._json is not None and (yield from self._is_json(reader)):
                yield from self._json.calls(reader)
            else:
                if not (yield from source.spaced(("[",))):
                    raise Malformed("no list of calls follows")
                yield from self._list(reader)
        else:
            if not (yield from source.spaces()):
                raise Unfinished("no call follows")
            while not (yield from source.ahead(self._end)):
                yield from self._call(reader)
                yield from source.spaced((",", ";"))
        yield from source.spaced(self._end)

    def _is_json(self, reader: CallReader) -> Generator[None, None, bool]:
        source = reader.source
        mark = yield from source.spaced(("[{", "[ {", "[\n", "{"))
        if not mark:
            return False
        source.give_back(mark)
        return mark != "[\n" or (yield from source.ahead(("[\n{", "[\n {", "[\n  {", "[\n    {")))

    def _list(self, reader: CallReader) -> Wait:
        source = reader.source
        if (yield from source.spaced(("]",))):
            if self.weak:
                raise Malformed("an empty list is not a call")
            return
        while True:
            yield from self._call(reader)
            mark = yield from source.spaced((",", "]", ";"))
            if mark == "]":
                return
            if not mark:
                if self._end and (yield from source.ahead(self._end)):
                    return
                raise Malformed("a list of calls does not end")
            if (yield from source.spaced(("]",))):
                return

    def _call(self, reader: CallReader) -> Wait:
        source = reader.source
        yield from source.spaces()
        written, _ = yield from source.upto(_NAME_END)
        if not _NAME.fullmatch(written.strip()):
            raise Malformed(f"{written[:40]!r} is no name")
        name = reader.name(written.strip())
        reader.start(name, hold=True)
        names = list(reader.declared.properties(name))
        given: set[str] = set()
        named = False
        while not (yield from source.spaced((")",))):
            if given and not (yield from source.spaced((",",))):
                raise Malformed("arguments without a comma")
            if given and (yield from source.spaced((")",))):
                break
            key = yield from self._key(reader)
            if key:
                named = True
            elif named or len(given) >= len(names):
                raise Malformed("an argument has no name")
            else:
                key = names[len(given)]
            if key in given:
                raise Malformed(f"{key[:40]!r} is given twice")
            reader.arguments((", " if given else "{") + quoted(key) + ": ")
            given.add(key)
            if (yield from source.spaces()) in (",", ")"):
                raise Malformed("an argument has no value")
            yield from reader.value(PYTHON)
        if given:
            reader.arguments("}")
        reader.end()

    def write(self, calls: list[WrittenCall]) -> str:
        written = [f"{call.name}({', '.join(f'{key}={item!r}' for key, item in call.members().items())})" for call in calls]
        text = f"[{', '.join(written)}]" if self._brackets else "\n".join(["", *written, ""])
        return text if self._bare else f"{self.openers[0]}{text}{self._end[0]}"

    def _key(self, reader: CallReader) -> Generator[None, None, str]:
        source = reader.source
        while True:
            found = _KEY.match(source.text, source.at)
            if found is not None and (found.end() < len(source.text) or source.closed):
                source.skip(found.end())
                return found[1]
            if _KEY_BEGINS.fullmatch(source.text, source.at) is None:
                return ""
            if source.closed:
                raise Unfinished("the text ended inside a call")
            yield


_DOTTED = re.compile(r"\w+\.call\(")
_DOTTED_BEGINS = re.compile(r"\w{0,64}(?:\.(?:c(?:a(?:l(?:l)?)?)?)?)?")
_PROSE = frozenset(" \t\r\n,.;:?)]")
"""What follows a marker that a sentence mentions."""
_KEY_END = Markers(("=",))
_CALL_MARK = Markers((".call(",))
_MESSAGE_END = Markers(("<|eom_id|>", "<|eot_id|>"))


class DottedCalls(FormatEngine):
    """``brave_search.call(query="x")``: a built-in tool after its marker. Anything else there is code, if one of the
    ``INTERPRETERS`` was declared. Code begins directly after the marker, or on a line that begins with it: a sentence that
    mentions the marker is no code."""

    def __init__(self, opener: str, json: JsonCalls) -> None:
        self.openers = (opener,)
        self._json = json

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        mentioned = not reader.on_new_line and (yield from source.peek()) in _PROSE
        following = yield from source.spaces()
        if following in ("{", "["):
            yield from self._json.calls(reader)
            return
        interpreter = next((name for name in INTERPRETERS if name in reader.declared.schemas), "")
        if interpreter and not (yield from self._is_dotted(reader)):
            if mentioned or not following:
                raise Unrelated("no code follows")
            yield from raw_arguments(reader, interpreter, _MESSAGE_END)
            return
        written, _ = yield from source.upto(_CALL_MARK)
        name = reader.name(written)
        reader.start(name, hold=True)
        count = 0
        while not (yield from source.spaced((")",))):
            if count and not (yield from source.spaced((",",))):
                raise Malformed("arguments without a comma")
            key, _ = yield from source.upto(_KEY_END)
            reader.arguments(("{" if not count else ", ") + quoted(key.strip()) + ": ")
            yield from reader.value(PYTHON)
            count += 1
        if count:
            reader.arguments("}")
        reader.end()

    def _is_dotted(self, reader: CallReader) -> Generator[None, None, bool]:
        source = reader.source
        while _DOTTED_BEGINS.fullmatch(source.text, source.at) is not None and not source.closed:
            yield
        return _DOTTED.match(source.text, source.at) is not None
