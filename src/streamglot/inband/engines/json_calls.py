r"""Calls whose arguments are JSON: as objects with name and arguments, or behind a header with the name.

Objects stand between markers, in an array, in a code fence, or bare: ``{"name": "f", "arguments": {...}}`` with its keys in any
order and under the names that a row defines; wrapped in ``{"function": {...}}``, ``{"tool_call": {...}}`` or ``{"tool_calls":
[...]}``; or ``{"f": {...}}`` where the name itself is the key. Arguments may be an object or a string that contains one.
Arguments that come before the name wait for it.

Headers are special-token sections, ``<function=f>{...}</function>``, ``[TOOL_CALLS]f[ARGS]{...}``, ``functions.f:0<...>{...}``,
``>>>f\n{...}``.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Literal

from ..call_reader import CallReader
from ..emitter import Emitter
from ..literals import JSON, decoded_string, escaped, quoted, string, value
from ..scan import MAX_HELD_CHARS, MAX_TRAIL_CHARS, Malformed, Markers, Unfinished, Wait, nowhere
from . import FormatEngine, WrittenCall

NAMES = frozenset(("name", "tool_name", "function_name", "function", "tool"))
ARGUMENTS = frozenset(("arguments", "parameters", "args", "input", "params"))
IDS = frozenset(("id", "tool_call_id", "call_id"))
WRAPPERS = frozenset(("function", "tool_call", "function_call", "tool"))
MAX_WRAPPERS = 4
"""Maximum objects around one call. More are an attack."""

INTERPRETERS = ("python", "ipython", "code_interpreter")
"""Names of tools that get bare code."""

_LIST = '"tool_calls"'
OTHERS = frozenset(("type", "index", "thoughts", "reasoning", "description"))


class JsonCalls(FormatEngine):
    """``name_is_key``: ``{"f": {...}}``. ``end``: markers that may close the whole. ``between``: what may separate two calls;
    inside end markers two calls may also follow each other directly, as models often write them. ``after``: tokens that may
    stand between the opener and the calls. ``bare``: the opener ends with the first bracket of the JSON itself. A code fence after
    the opener is allowed. ``hold``: a call starts only when it is complete, as in a weak notation.

    ``keys`` and ``array`` are for writing only: the names of name, arguments and id, and whether all calls are in one array.
    """

    def __init__(
        self,
        *openers: str,
        end: tuple[str, ...] = (),
        between: tuple[str, ...] = (",", ";"),
        name_is_key: bool = False,
        bare: bool = False,
        weak: bool = False,
        hold: bool = False,
        special: bool = False,
        after: tuple[str, ...] = (),
        in_reasoning: Literal["no", "call", "marker"] = "no",
        keys: tuple[str, ...] = ("name", "arguments"),
        array: bool = False,
    ) -> None:
        self.openers = openers
        self.closers = end if not bare else ()
        self.in_reasoning = in_reasoning
        self.weak = weak or bare
        self._hold = hold or self.weak
        self.special = special
        self._after = after
        self._end = end
        self._next = between if not end else (*between, "{")
        self._name_is_key = name_is_key
        self._bare = bare
        self._keys = keys
        self._array = array or opener_is(openers, "[")

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        if self._bare:
            source.give_back(opener[-1])
        elif self._after:
            yield from source.spaced(self._after)
        fence = "" if self._bare else (yield from source.spaced(("```json", "```")))
        yield from self.calls(reader)
        if fence or opener.startswith("```"):
            yield from source.spaced(("```",))
        if self._end:
            yield from source.spaced(self._end)

    def calls(self, reader: CallReader, listed: bool = False) -> Wait:
        """One call, several in sequence, or an array of them. ``listed``: the array of an object has begun already."""
        source = reader.source
        first = yield from source.spaces()
        if first == "[":
            source.skip(source.at + 1)
            if (yield from source.spaced(("]",))):
                if self.weak:
                    raise Malformed("an empty list is not a call")
                return
            while True:
                yield from self._call(reader, listed)
                if not (yield from source.spaced((",",))):
                    break
            if not (yield from source.spaced(("]",))) and (yield from source.spaces()):
                raise Malformed("an array of calls does not end")
            return
        if not first and not self.weak:
            raise Malformed("no call follows")
        yield from self._call(reader)
        while True:
            space, mark = yield from source.behind_space(self._next)
            if not mark:
                return
            if mark == "{":
                source.give_back(mark)
                yield from self._call(reader)
                continue
            if not (yield from source.ahead(("{",))) or not (yield from source.spaced(("{",))):
                source.give_back(space + mark)
                return
            source.give_back("{")
            yield from self._call(reader)

    def _call(self, reader: CallReader, listed: bool = False) -> Wait:
        source = reader.source
        if (yield from source.spaces()) != "{":
            raise Malformed("a call does not begin with a brace")
        source.skip(source.at + 1)
        braces = 2 if (yield from source.literal(("{",))) else 1
        if not listed and (yield from self._listed(reader)):
            return
        held: list[str] = []
        state = _CallState()
        yield from self._members(reader, state, held)
        if braces == 2 and not (yield from source.spaced(("}",))):
            raise Malformed("a doubled brace is closed once")
        if not state.name:
            raise Malformed("a call has no name")
        if state.unknown and not state.arguments:
            raise Malformed("a call has no arguments")
        if not state.started:
            if not held and self.weak and not state.arguments:
                raise Malformed("a call has no arguments")
            reader.start(state.name, state.call_id)
            for piece in held:
                reader.arguments(piece)
        reader.end()

    def _listed(self, reader: CallReader) -> Generator[None, None, bool]:
        """``{"tool_calls": [...]}``: an object whose only member is the array of the calls."""
        source = reader.source
        if not (yield from source.spaced((_LIST,))):
            return False
        if not (yield from source.spaced((":",))) or (yield from source.spaces()) != "[":
            raise Malformed("no list of calls follows")
        yield from self.calls(reader, listed=True)
        if not (yield from source.spaced(("}",))) and (yield from source.spaces()):
            raise Malformed("a list of calls does not end")
        return True

    def _members(self, reader: CallReader, state: _CallState, held: list[str]) -> Wait:
        source = reader.source
        if (yield from source.spaced(("}",))):
            return
        while True:
            yield from source.spaces()
            key = yield from string(source)
            if not (yield from source.spaced((":",))):
                raise Malformed("a key has no value")
            following = yield from source.spaces()
            yield from self._member(reader, state, held, key, following)
            if (yield from source.spaced((",",))):
                if (yield from source.spaced(("}",))):
                    return
                continue
            if (yield from source.spaced(("}",))):
                return
            if state.arguments and state.name and (yield from self._ends_without_brace(reader)):
                return
            raise Malformed("a call does not end")

    def _ends_without_brace(self, reader: CallReader) -> Generator[None, None, bool]:
        """Whether the text or the marker after the calls ends a call whose last brace is missing: its arguments are whole."""
        source = reader.source
        if (yield from source.spaces()) == "":
            return not source.cut
        return bool(self._end) and (yield from source.ahead(self._end))

    def _member(self, reader: CallReader, state: _CallState, held: list[str], key: str, following: str) -> Wait:
        source = reader.source
        if self._name_is_key and (not state.name or following == "{"):
            if state.name:  # another call in the same object
                reader.end()
                if reader.declared.resolve(key) is None:
                    source.give_back(f"{quoted(key)}: ")
            state.name = reader.name(key)
            reader.start(state.name, hold=self._hold)
            state.started = state.arguments = True
            yield from self._arguments(reader, state, held, following)
        elif key in NAMES and following == '"' and not state.name:
            state.name = reader.name((yield from string(source)))
            if not self._hold and not held:
                reader.start(state.name, state.call_id)
                state.started = True
        elif key in ARGUMENTS and not state.arguments:
            state.arguments = True
            if state.name and not state.started:
                reader.start(state.name, state.call_id, hold=self._hold)
                state.started = True
            yield from self._arguments(reader, state, held, following)
        elif key in IDS and following == '"' and not state.call_id:
            state.call_id = yield from string(source)
        elif key in WRAPPERS and following == "{" and not state.name:
            source.skip(source.at + 1)
            state.wrappers += 1
            if state.wrappers > MAX_WRAPPERS:
                raise Malformed("a call is wrapped too often")
            yield from self._members(reader, state, held)
        elif key == "_name" and following == '"' and not state.name:
            state.name = reader.name((yield from string(source)))
            yield from self._rest_is_arguments(reader, state)
        elif key in OTHERS or key in IDS or state.name:
            if state.name and key in reader.declared.properties(state.name):
                raise Malformed("there is an argument outside of the arguments")
            state.unknown = state.unknown or key not in OTHERS
            yield from value(source, nowhere, JSON)
        else:
            raise Malformed(f"{key[:40]!r} is not a key of a call")

    def _arguments(self, reader: CallReader, state: _CallState, held: list[str], following: str) -> Wait:
        source = reader.source

        if following == '"':
            yield from reader.decoded() if state.started else decoded_string(source, held.append)
        elif (yield from source.literal(("null",))):
            pass
        elif state.started:
            yield from reader.value(JSON)
        else:
            yield from value(source, held.append, JSON)

    def _rest_is_arguments(self, reader: CallReader, state: _CallState) -> Wait:
        """``{"_name": "f", "a": 1}``: the other members are the arguments."""
        source = reader.source
        reader.start(state.name, state.call_id, hold=self._hold)
        state.started = state.arguments = True
        if not (yield from source.spaced((",",))):
            return
        source.give_back("{")
        yield from reader.value(JSON)
        source.give_back("}")

    def write(self, calls: list[WrittenCall]) -> str:
        objects = [self._object(call) for call in calls]
        opener = "" if not self.openers or (self._bare and len(self.openers[0]) == 1) else self.openers[0]
        if self._bare:
            opener = opener.removesuffix("[")
        if self._array:
            objects = ["[" + ", ".join(objects) + "]"]
        start = opener + "".join(self._after[:1])
        end = self._end[0] if self._end else "\n```" if "```" in opener else ""
        if self._bare and not opener:
            return "; ".join(objects) if not self._array else objects[0]
        return "\n".join(f"{start}{text}{end}" for text in objects)

    def _object(self, call: WrittenCall) -> str:
        if self._name_is_key:
            return f"{{{quoted(call.name)}: {call.arguments or '{}'}}}"
        name, arguments, *rest = self._keys
        head = "".join(f"{quoted(key)}: {quoted(call.call_id)}, " for key in rest)
        return f"{{{head}{quoted(name)}: {quoted(call.name)}, {quoted(arguments)}: {call.arguments or '{}'}}}"


class _HeldCalls(JsonCalls):
    """Bare JSON that is a call only with what stands behind it. It is read once without an emission and then again, so that text
    that turns out to be no call is unchanged."""

    _fences: tuple[str, ...] = ()

    def __init__(self, *openers: str) -> None:
        super().__init__(*openers, between=(",", ";", "{"), weak=True)

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        source.trail_limit = MAX_HELD_CHARS  # what is read here is not final
        silent = Emitter()
        probe = CallReader(source, silent, reader.declared)
        probe.whole_calls = True
        yield from self._whole(probe, opener)
        if not silent.found:
            raise Malformed("no call follows")
        text = "".join(source.trail or ())[len(opener) :]
        source.give_back(text)
        source.trail_limit = MAX_TRAIL_CHARS
        yield from self._whole(reader, opener)

    def _whole(self, reader: CallReader, opener: str) -> Wait:
        raise NotImplementedError


class WholeJson(_HeldCalls):
    """JSON that is the whole answer."""

    restarts = True

    def __init__(self) -> None:
        super().__init__()
        self.start_openers = ("{", "[{", "[ ", "[\n")

    def begin(self, reader: CallReader, opener: str) -> Wait:
        if not reader.nothing_before:
            raise Malformed("the answer has more")
        yield from self.read(reader, opener)

    def _whole(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        source.give_back(opener)
        yield from self.calls(reader)
        if not (yield from source.ahead(())):
            raise Malformed("text follows")


class FencedJson(_HeldCalls):
    """JSON that is the whole content of a code fence."""

    def __init__(self) -> None:
        super().__init__("```json\n", "```JSON\n", "```tool_call\n", "```\n")

    def _whole(self, reader: CallReader, opener: str) -> Wait:
        yield from self.calls(reader)
        if not (yield from reader.source.spaced(("```",))):
            raise Malformed("the code fence has something else")


def opener_is(openers: tuple[str, ...], bracket: str) -> bool:
    """Whether the opener ends with the bracket that begins the JSON itself."""
    return bool(openers) and openers[0].endswith(bracket)


class _CallState:
    """The state of the current call."""

    __slots__ = ("arguments", "call_id", "name", "started", "unknown", "wrappers")

    def __init__(self) -> None:
        self.name = ""
        self.call_id = ""
        self.arguments = False
        self.started = False
        self.unknown = False
        """An unknown member: the arguments under another name, if no arguments follow."""
        self.wrappers = 0


def raw_arguments(reader: CallReader, name: str, ends: Markers) -> Generator[None, None, str]:
    """A body that is not JSON is the only string parameter of its tool: code for an interpreter. Returns the marker after it."""
    parameter = next(iter(reader.declared.properties(name)), "code")
    reader.start(name)
    reader.arguments("{" + quoted(parameter) + ': "')
    mark = yield from reader.source.stream(ends, lambda piece: reader.arguments(escaped(piece)))
    if not mark and reader.source.cut:
        raise Unfinished("the text ended inside a value")
    reader.arguments('"}')
    reader.end()
    return mark


def json_arguments(reader: CallReader) -> Generator[None, None, bool]:
    """The arguments of a call that has started: an object, a string that contains one, or nothing."""
    following = yield from reader.source.spaces()
    if following == '"':
        yield from reader.decoded()
    elif following and following in "{[":
        yield from reader.value(JSON)
    else:
        return False
    return True


# --- headers with the name

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
