"""Calls written as tags with one tag per parameter: the values are raw text, typed by the declared schema.

The grammar, with the mistakes that models make::

    section   = [section_open] {call} [section_close]
    call      = call_open name ">" {parameter} [call_close]
    parameter = parameter_open name ">" value [parameter_close]
    pairs     = call_open name {key_open name key_close value_open value value_close} [call_close]

A call without its end tag ends with its section, or where the next call begins. At the end of the text at most one of the end
tags of a call may be missing, and none if the model was stopped: its value may be cut. A parameter that is given twice breaks the
call: the first value cannot be taken back, and nobody knows which one was meant.

A closing tag of a value counts only if something follows that may follow it, because values contain closing tags too. If text
follows it, or the end of a call, that tag waits: a later closing tag that counts makes it a part of the value. If the end of the
call counts instead, the value ended at the first tag that waited, and the text after it stands after the call. If the text ends
first, the value was cut.

A value without its closing tag ends at the next parameter or at the end of the call. The next parameter is one that the tool has
and that was not given yet. If the tool may have others, it is also one of any other name on a line of its own. The end of the
call is one only if something follows that may follow a call: at the end of the text it may be a part of a value that was cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from typing import Literal

from ..call_reader import CallReader
from ..literals import JSON, PYTHON, quoted, string
from ..parameters import QUOTED, Declared, ValueWriter, feeding, follow, parsed, typed
from ..scan import NAME_CHARS, Malformed, Markers, Sink, Source, Unfinished, Wait, markers_of, nowhere
from . import FormatEngine, WrittenCall, dumped
from .json_calls import JsonCalls

# --- values

WAIT_CHARS = 4096
"""Characters after a closing tag or the end of a call inside a value that wait for the closing tag of the value: a short text
after the calls."""
CDATA = "<![CDATA["
_CDATA_END = Markers(("]]>",))
_BRACKET = re.compile("[<>]")
_HEAD = re.compile(r"""\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s"'>]+))(?P<rest>.*)""", re.S)
_ATTRIBUTES = re.compile(r"""(?:\s+[\w:.-]+(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"']+))?)*\s*/?\s*""")


def head_of(header: str) -> tuple[str, str]:
    """``"f" string="true"``: the name, quoted or bare, and what follows it."""
    found = _HEAD.fullmatch(header)
    if found is None or _ATTRIBUTES.fullmatch(found["rest"]) is None:
        raise Malformed(f"{header[:80]!r} is no name")
    return next(part for part in (found["double"], found["single"], found["bare"]) if part is not None), found["rest"]


class CallParameters:
    """The parameters of one call. ``known``: those of the tool. ``closed``: it has no others. ``given``: those that were read.
    ``unended``: the value of the last one had no closing tag. ``ended``: it had one, and text stands between it and the end of
    the call."""

    __slots__ = ("closed", "ended", "given", "known", "unended")

    def __init__(self, declared: Declared, name: str) -> None:
        schema = declared.schemas.get(name) or {}
        others = follow(schema, schema).get("additionalProperties")
        self.known = declared.properties(name)
        self.closed = bool(self.known) and others is not True and not isinstance(others, Mapping)
        self.given: set[str] = set()
        self.unended = self.ended = False

    def give(self, key: str) -> None:
        """Notes that this parameter was given. It can be given once."""
        if key in self.given:
            raise Malformed(f"{key[:40]!r} is given twice")
        self.given.add(key)

    def may_follow(self, key: str) -> bool:
        return bool(key) and key not in self.given and (key in self.known or not self.closed)


class XmlValues:
    """``parameter``: beginnings of the tag of a parameter. ``key_end``: what ends the name in it. ``closing``: the closing tag of
    a value. ``ends``: the ends of a call and of a section. ``after_value``, ``after_call``: what may follow them. ``cdata``: a
    value with markup is in a CDATA section."""

    def __init__(
        self,
        parameter: tuple[str, ...],
        closing: str,
        ends: tuple[str, ...],
        *,
        key_end: str,
        after_value: tuple[str, ...],
        after_call: tuple[str, ...],
        cdata: bool,
    ) -> None:
        self._parameter = parameter
        self._closing = closing
        self._key_end = key_end
        self._after_value = after_value
        self._after_call = after_call
        self._cdata = cdata
        self._markers = Markers((closing, *parameter, *ends))
        self._next_parameter = re.compile(rf"\s*(?:{'|'.join(map(re.escape, parameter))})")

    def read(self, source: Source, sink: Sink, parameters: CallParameters) -> Generator[None, None, bool]:
        """Reads a value up to its end. Returns whether it had a closing tag."""
        last = ""
        parameters.unended = False
        inner = 0  # tags of parameters inside the value that were not closed
        waiting: list[str] = []
        size = 0

        def note(piece: str) -> None:
            nonlocal last, size
            last = piece[-1]
            if waiting:
                waiting.append(piece)
                size += len(piece)
                if size > WAIT_CHARS:
                    release()
            else:
                sink(piece)

        def release() -> None:
            # What waited is a part of the value.
            nonlocal size
            if waiting:
                sink("".join(waiting))
                waiting.clear()
                size = 0

        def end_at_first() -> bool:
            # The first tag that waited is the end of the value.
            closed = waiting[0] == self._closing
            parameters.unended, parameters.ended = not closed, closed
            source.give_back("".join(waiting[closed:]))
            return closed

        if self._cdata and (yield from source.literal((CDATA,))):
            while (yield from source.stream(_CDATA_END, sink)):
                if not (yield from source.literal((CDATA,))):
                    yield from source.spaced((self._closing,))
                    return True
            raise Unfinished("the text ended inside a value")
        while True:
            mark = yield from source.stream(self._markers, note)
            if not mark:
                release()
                raise Unfinished("the text ended inside a value")
            if mark in self._parameter:
                key = yield from self._key_ahead(source)
                if parameters.may_follow(key) and (last == "\n" or key in parameters.known):
                    release()
                    source.give_back(mark)
                    return False
                inner += last in ("", "\n")  # elsewhere the value mentions the tag
                note(mark)
                continue
            if mark == self._closing:
                if (yield from source.ahead(self._after_value)) and not (
                    inner and (yield from self._goes_on(source, parameters))
                ):
                    release()
                    return True
                inner -= inner > 0
            elif (yield from source.ahead(self._after_call, or_end=False)):
                waiting.append(mark)
                return end_at_first()
            if waiting:
                note(mark)
            else:
                waiting.append(mark)
                last = ">"

    def _goes_on(self, source: Source, parameters: CallParameters) -> Generator[None, None, bool]:
        """Whether a value that contains tags of parameters goes on after a closing tag: the next tag is that of a parameter that
        may not follow."""
        found = self._next_parameter.match(source.text, source.at)
        return found is not None and not parameters.may_follow((yield from self._key_ahead(source, len(found[0]))))

    def _key_ahead(self, source: Source, skip: int = 0) -> Generator[None, None, str]:
        """The name in the tag of a parameter whose beginning was read, or ends ``skip`` characters ahead; "" if it is none.
        Reads nothing."""
        while True:
            begin = source.at + skip
            rest = source.text[begin : begin + NAME_CHARS]
            found = _BRACKET.search(rest)
            tag = rest[found.start() :] if found is not None else ""
            if found is not None and tag.startswith(self._key_end):
                return self._key_of(rest[: found.start()])
            if source.closed or len(rest) == NAME_CHARS or not self._key_end.startswith(tag):
                return ""
            yield

    def _key_of(self, header: str) -> str:
        if self._key_end != ">":
            return header.strip()
        try:
            return head_of(header)[0]
        except Malformed:
            return ""


# --- calls

_STRING_ATTRIBUTE = re.compile(r"""\bstring\s*=\s*["']?(true|false)""", re.I)
_WORD = re.compile(r"[^\W\d][\w.-]*")
_WRAPPERS = frozenset(("arguments", "input", "parameters", "properties"))
"""Undeclared parameters into which models write all arguments."""
_KEY_END = Markers(("=",))
_SPACES = (" ", "\n", "\t")
_NAME_TAG_END = Markers((">", "<"))
WHOLE = -1
"""The arguments came as a whole: nothing may be added to them."""


class XmlCalls(FormatEngine):
    """``call`` and ``parameter`` are the beginnings of tags that continue with a name. ``pairs``: the parameter has a key tag
    and a value tag, and the name of the call is bare text after its opener. ``json_calls``: a section may also contain a JSON
    call. ``string_attribute``: each parameter tag says whether its value is a string. ``before``: tokens without meaning that
    may precede a call. ``cdata``: a value with markup is in a CDATA section."""

    def __init__(
        self,
        section: tuple[str, ...],
        section_end: tuple[str, ...],
        call: tuple[str, ...],
        call_end: tuple[str, ...],
        parameter: tuple[str, ...],
        parameter_end: str,
        *,
        pairs: tuple[str, str] | None = None,
        name_end: tuple[str, ...] = (),
        trim: bool = False,
        untyped: Literal["string", "json"] = "string",
        json_calls: bool = False,
        before: tuple[str, ...] = (),
        only_declared: bool = False,
        string_attribute: bool = False,
        cdata: bool = False,
        loose: bool = True,
        in_reasoning: Literal["no", "call", "marker"] = "no",
    ) -> None:
        self.openers = (*section, *call) if loose else section
        self.closers = (*section_end, *call_end) if loose else section_end
        self.inner = parameter_end
        self.in_reasoning = in_reasoning
        self._section = section
        self._section_end = section_end
        self._call = call
        self._call_end = call_end
        self._parameter = parameter
        self._pairs = pairs
        self._separator = next((word for word in name_end if word != "\n"), "") if section else ""
        self._trim = trim
        self._untyped = untyped
        self._before = before
        self._only_declared = only_declared
        self._string_attribute = string_attribute
        self._cdata = cdata
        self._parameter_end = parameter_end
        self._json = JsonCalls(end=(*section_end, *call_end)) if json_calls else None
        self._name_end = Markers((*name_end, *parameter, *call_end, "{", "=")) if pairs else _NAME_TAG_END
        self._word_end = Markers((*_SPACES, *call_end))
        self._after_value = (*parameter, *call_end, *section_end, *call, *section)
        self._values = XmlValues(
            parameter,
            parameter_end,
            (*call_end, *section_end),
            key_end=pairs[0] if pairs else ">",
            after_value=(*self._after_value, "\\n") if pairs else self._after_value,
            after_call=(*section_end, *call, *section, *before),
            cdata=cdata,
        )

    def read(self, reader: CallReader, opener: str) -> Wait:
        source = reader.source
        begun = opener in self._call and opener not in self._section
        inside = first = not begun  # ``first``: nothing of the section was read, so a call must follow
        while True:
            if not begun:
                if first and (yield from self._json_body(reader)):
                    return
                while (yield from source.spaced(self._before)):
                    pass
                mark = yield from source.spaced((*self._call, *self._section_end, *self._section))
                if mark in self._section_end:
                    return
                if mark in self._section and mark not in self._call:
                    inside = True
                    continue
                if not mark:
                    if first:
                        raise Malformed("no call follows")
                    # A call was read, and neither another one nor the end of the section follows: the model forgot the end. It is
                    # no reason to lose the call; what follows is text.
                    return
            begun = first = False
            if not self._pairs or not (yield from self._json_body(reader)):
                yield from self._one(reader, inside)

    def _json_body(self, reader: CallReader) -> Generator[None, None, bool]:
        """Some models write a JSON call instead of tags."""
        if self._json is None or (yield from reader.source.spaces()) not in ("{", "["):
            return False
        yield from self._json.calls(reader)
        yield from reader.source.spaced((*self._section_end, *self._call_end))
        return True

    def _one(self, reader: CallReader, inside: bool) -> Wait:
        """One call after its opener. ``inside``: a section is open. Outside of it, prose may mention the tag of a call, which is
        certain only when a parameter follows."""
        source = reader.source
        header, mark = yield from source.upto(self._name_end)
        written = header.strip().removesuffix("\\n") if self._pairs else head_of(header)[0]
        if not written and mark in self._call_end:
            return
        key = ""
        if mark == "=":
            written, _, key = written.partition(" ")
        name = reader.name(written)
        # An open section makes the tag of a call a strong marker: the call starts with its name, and its arguments stream. The
        # rest is held until a parameter proves that it is a call: without a section a sentence may mention the tag, and in pairs
        # the name is bare text, as prose is. With ``only_declared`` a call whose parameters are all unknown is malformed, so a
        # single one proves nothing.
        reader.start(name, hold=not inside or self._pairs is not None or self._only_declared)
        parameters = CallParameters(reader.declared, name)
        if (
            self._pairs
            and mark not in self._call_end
            and (yield from self._bare_arguments(reader, name, mark, key.strip(), parameters))
        ):
            return
        ended = mark in self._call_end
        if mark in self._parameter or mark == "<":
            source.give_back(mark)  # the name ends where the next tag begins; the loop reads that tag
        count = 0
        while not ended:
            if self._pairs:
                yield from source.spaced(("\\n",))
            mark = yield from source.spaced(self._after_value)
            if mark in self._parameter:
                gained = yield from self._parameter_of(reader, name, count, parameters)
                count = WHOLE if gained == WHOLE else count + gained
            elif mark in self._call_end:
                ended = True
            elif mark:
                # The end tag is missing: the section ends, or the next call begins.
                source.give_back(mark)
                ended = True
            elif parameters.ended:
                # Text follows the last value. The values have seen the end of the call behind it, so the call is whole, and the
                # text stands after it.
                ended = True
            elif (yield from source.ahead(())):
                raise Unfinished("the text ended inside a call")
            else:
                raise Malformed("a call does not end" if count else "text before the parameters")
        if not parameters.ended:
            # This comes before the end of the call: after an Unfinished it ends as incomplete, and nobody runs it.
            yield from self._refuse_cut(source, (mark not in self._call_end) + parameters.unended, inside)
        if count > 0:
            reader.arguments("}")
        elif not count and parameters.given:
            raise Malformed("no parameter of the tool was given")
        reader.end()

    def _bare_arguments(
        self, reader: CallReader, name: str, mark: str, key: str, parameters: CallParameters
    ) -> Generator[None, None, bool]:
        """``f {"a": 1}`` and ``f a=1 b="x y"``: some models omit the tags of the parameters."""
        source = reader.source
        if mark == "{":
            source.give_back(mark)
        if mark == "=":
            yield from self._words(reader, name, key, parameters)
        elif mark not in self._parameter and (yield from source.spaces()) == "{":
            yield from reader.value(JSON)
        else:
            return False
        if not (yield from source.spaced(self._call_end)):
            raise Malformed("a call does not end")
        reader.end()
        return True

    def _words(self, reader: CallReader, name: str, key: str, parameters: CallParameters) -> Wait:
        source = reader.source
        brackets = "{"
        while True:
            if not _WORD.fullmatch(key):
                raise Malformed(f"{key[:40]!r} is not a parameter")
            parameters.give(key)
            reader.arguments(brackets + quoted(key) + ": ")
            if (yield from source.peek()) in ('"', "'"):
                text = yield from string(source, PYTHON)
            else:
                text, mark = yield from source.upto(self._word_end)
                source.give_back(mark)
            reader.arguments(typed(text, reader.declared.types(name, key), self._untyped))
            brackets = ", "
            if (yield from source.ahead(self._call_end)):
                reader.arguments("}")
                return
            yield from source.spaces()
            key, _ = yield from source.upto(_KEY_END)

    def _parameter_of(self, reader: CallReader, name: str, count: int, parameters: CallParameters) -> Generator[None, None, int]:
        """One parameter. Returns how many members the arguments gained: 0 if the value is missing, or the tool does not have the
        parameter."""
        source = reader.source
        untyped = self._untyped
        if self._pairs:
            key, _ = yield from source.upto(markers_of((self._pairs[0],)))
            if "<" in key:
                raise Malformed("a tag inside a tag")
            yield from source.spaced(("\\n",))
            if not (yield from source.spaced((self._pairs[1],))):
                space, tag = yield from source.behind_space((*self._parameter, *self._call_end))
                if not tag:
                    raise Malformed(f"{key[:40]!r} has no value")
                source.give_back(space + tag)  # a key without a value counts as not given
                return 0
            reader.commit()  # no prose has a key tag and a value tag behind the name of a tool
        else:
            header, mark = yield from source.upto(_NAME_TAG_END)
            if mark == "<":
                raise Malformed("a tag inside a tag")
            key, rest = head_of(header)
            found = _STRING_ATTRIBUTE.search(rest)
            if found is not None:
                untyped = "string" if found[1].lower() == "true" else "json"
            if not self._only_declared:
                reader.commit()
        key = key.strip()
        parameters.give(key)
        known = parameters.known
        if not count and key in _WRAPPERS and known and key not in known:
            return (yield from self._wrapped(reader, key, untyped, parameters))
        if count == WHOLE or (self._only_declared and known and key not in known):
            # The value is read all the same: only its end tells where the next parameter begins.
            yield from self._values.read(source, nowhere, parameters)
            return WHOLE if count == WHOLE else 0
        reader.arguments(("{" if not count else ", ") + quoted(key) + ": ")
        types = reader.declared.types(name, key)
        if untyped == "json" and reader.declared.is_loose(name, key):
            types |= {QUOTED}
        writer = ValueWriter(reader.arguments, types, untyped, self._trim)
        yield from feeding(writer, self._values.read(source, writer.feed, parameters))
        return 1

    def _refuse_cut(self, source: Source, missing: int, inside: bool) -> Wait:
        """Raises Unfinished if the text ends behind a call, and this end may be a part of a value that was cut: an end tag is missing. A
        model that ended its answer itself may have omitted one. ``missing``: the end tags that the call lacks. ``inside``: that
        of its section follows."""
        space = word = ""
        if missing:
            space, word = yield from source.behind_space(self._section_end)
        elif not inside or not (yield from source.ahead(())):
            return
        missing += inside and not word
        # ``ahead(())`` is true at the end of the text only: anything behind the call shows that the model went on after it. There
        # one missing tag is a habit of models that end their answer themselves. Two, or a model that was stopped, look the same
        # as a value that was cut.
        if (yield from source.ahead(())) and (source.cut or missing > 1):
            raise Unfinished("the text ended inside a call")
        source.give_back(space + word)

    def _wrapped(self, reader: CallReader, key: str, untyped: str, parameters: CallParameters) -> Generator[None, None, int]:
        """All arguments as JSON in one parameter that the tool does not have."""
        parts: list[str] = []
        yield from self._values.read(reader.source, parts.append, parameters)
        text = "".join(parts)
        written = parsed(text)
        if written is not None and written.startswith("{"):
            members = json.loads(written)
            known = {name: item for name, item in members.items() if name in parameters.known}
            if known:
                reader.arguments(dumped(known) if self._only_declared and len(known) < len(members) else written)
                return WHOLE
        if self._only_declared:
            return 0
        reader.arguments("{" + quoted(key) + ": " + typed(text, frozenset(), untyped))
        return 1

    def write(self, calls: list[WrittenCall]) -> str:
        written = "\n".join(self._written(call) for call in calls)
        return f"{self._section[0]}\n{written}\n{self._section_end[0]}" if self._section else written

    def _written(self, call: WrittenCall) -> str:
        lines = []
        for key, item in call.members().items():
            text = item if isinstance(item, str) else dumped(item)
            if self._pairs:
                lines.append(f"{self._parameter[0]}{key}{self._pairs[0]}\n{self._pairs[1]}{text}{self._parameter_end}")
                continue
            if self._trim:
                text = f"\n{text}\n"
            elif self._cdata and "<" in text:
                text = CDATA + text.replace("]]>", f"]]]]>{CDATA}>") + "]]>"
            typed_as = f' string="{"true" if isinstance(item, str) else "false"}"' if self._string_attribute else ""
            lines.append(f"{self._parameter[0]}{_named(self._parameter[0], key)}{typed_as}>{text}{self._parameter_end}")
        if self._pairs:
            return "\n".join([self._call[0] + call.name + self._separator, *lines, self._call_end[0]])
        return "\n".join([f"{self._call[0]}{_named(self._call[0], call.name)}>", *lines, self._call_end[0]])


def _named(tag: str, name: str) -> str:
    """A name as it is written in a tag: quoted if it is an attribute."""
    return f'"{name}"' if tag.endswith("name=") else name
