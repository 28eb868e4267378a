"""The values of parameters that are raw text between tags, and the parameters that may follow them.

A closing tag counts only if something follows that may follow it, because values contain closing tags too. If text follows it, or
the end of a call, that tag waits: a later closing tag that counts makes it a part of the value. If the end of the call counts
instead, the value ended at the first tag that waited, and the text after it stands after the call. If the text ends first, the
value was cut.

A value without its closing tag ends at the next parameter or at the end of the call. The next parameter is one that the tool has
and that was not given yet. If the tool may have others, it is also one of any other name on a line of its own. The end of the call
is one only if something follows that may follow a call: at the end of the text it may be a part of a value that was cut.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping

from ..declared import Declared, follow
from ..scan import NAME_CHARS, Malformed, Markers, Sink, Source, Unfinished

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
