"""Incremental JSON: reads one value of a literal notation and passes on its JSON text while it is being written.

The same code reads JSON, Python literals and object notations with bare keys: a ``Notation`` describes the differences. JSON is
passed on as it was written; everything else is converted to JSON on the way. It tolerates mistakes of models: control characters
and unknown escapes inside strings are escaped, an unescaped quote inside a Python string does not end it unless something follows
that could follow an end, ``True`` and ``None`` are understood, braces that a prompt template doubled (``{{"a": 1}}``) count once.
It stops directly after the value.

Python strings may have three quotes, and adjacent ones are one string, as in Python. What is Python, but not a literal (``"a" +
"b"``), is malformed: its value is not known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator

from msgspec import Struct

from .scan import Malformed, Markers, Sink, Source, Unfinished, Wait

_JSON_STOP = re.compile(r'["\\\x00-\x1f]')
_TO_ESCAPE = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
_LONE = re.compile(r"[\ud800-\udfff]")
_HEX = frozenset("0123456789abcdefABCDEF")
_PYTHON_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "\n": "",
}


class Notation(Struct, frozen=True):
    """How values are written. ``quotes`` open and close a string; ``escapes`` says how a backslash is read in it. ``exact``: a
    string that is the whole value ends at its first closing quote, also in Python. ``end``: the marker after the whole, which may
    stand where a bracket was omitted."""

    quotes: tuple[str, ...] = ('"',)
    escapes: str = "json"
    bare_keys: bool = False
    bare_strings: bool = False
    exact: bool = False
    end: str = ""


JSON = Notation()
PYTHON = Notation(quotes=('"""', "'''", '"', "'"), escapes="python")
PYTHON_LITERAL = Notation(quotes=PYTHON.quotes, escapes="python", exact=True)

LOOK_CHARS = 256
"""Characters after a quote that are examined to decide whether it ends its string."""

_string_ends: dict[str, Markers] = {}


def quoted(text: str) -> str:
    """The text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """The text as the inside of a JSON string."""
    if _TO_ESCAPE.search(text) is None:
        return text
    return _LONE.sub(_as_escape, json.dumps(text, ensure_ascii=False)[1:-1])


def unescaped(text: str) -> str:
    """The text that the inside of a JSON string encodes, as far as it can be written: half a surrogate pair stays an escape."""
    return _LONE.sub(_as_escape, str(json.loads(f'"{text}"')))


def _as_escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def inside_string(source: Source, out: list[str], sink: Sink, notation: Notation, quote: str, nested: bool | None) -> Wait:
    """Reads the inside of a string and its closing quote. ``nested`` is None for a key."""
    python = _PythonString(quote, notation, nested) if notation.escapes == "python" else None
    if python is None and len(quote) > 1:
        yield from _token_string(source, out, sink, quote, (":",) if nested is None else (",", "}", "]", notation.end))
        return
    stop = _STOPS[quote[0]]
    while True:
        text = source.text
        found = stop.search(text, source.at)
        end = len(text) if found is None else found.start()
        if end > source.at:
            out.append(text[source.at : end].replace('"', '\\"') if python is not None else text[source.at : end])
            source.skip(end)
        if found is None:
            if source.closed:
                raise Unfinished("the text ended inside a string")
            if out:
                sink("".join(out))
                out.clear()
            yield
            continue
        char = found[0]
        if char == quote[0]:
            if python is None:
                source.skip(source.at + 1)
                return
            role = yield from python.role_of_quote(source)
            if role == "end":
                source.skip(source.at + len(quote))
                return
            if role == "text":
                source.skip(source.at + 1)
                out.append(escaped(char))
            else:
                quote = yield from python.next_string(source)
                stop = _STOPS[quote[0]]
            continue
        source.skip(source.at + 1)
        if char != "\\":
            out.append(escaped(char))
        elif python is not None:
            out.append(escaped((yield from _python_escape(source))))
        else:
            out.append((yield from _json_escape(source)))


_STOPS = {'"': re.compile(r'["\\\x00-\x1f]'), "'": re.compile(r"['\\\x00-\x1f]")}
_NAME = r"[A-Za-z_]\w{0,63}"
_END_OF_CALL = r"\)\s*[,\]<;]|\)[ \t]*\n"
_LITERAL = r"(?:[\"'\[{(]|[+-]?\.?\d|(?:True|False|None|true|false|null)(?=\W))"
"""The beginning of a value."""
_PART_OF_LITERAL = r"(?:[+-]?\.?|[A-Za-z]{1,5})$"
"""The text ends before it is known whether a value begins."""
_AFTER_ARGUMENT = re.compile(rf"\s*(?:(?P<sure>{_END_OF_CALL}|,\s*{_NAME}\s*=|,\s*\))|(?P<open>$|\)\s*$|,\s*$|,\s*{_NAME}\s*$))")
_AFTER_MEMBER = re.compile(r"\s*(?:(?P<sure>[\]}:)]|,\s*[\"'\[{(\w+\-\])}.])|(?P<open>$|,\s*$))")
_ARGUMENT_AFTER_TWO = re.compile(
    rf"\s*(?:(?P<sure>{_END_OF_CALL}|,\s*{_NAME}\s*=\s*{_LITERAL}|,\s*\))"
    rf"|(?P<open>$|\)\s*$|,\s*$|,\s*{_NAME}\s*(?:$|=\s*{_PART_OF_LITERAL})))"
)
_MEMBER_AFTER_TWO = re.compile(
    rf"\s*(?:(?P<sure>[\]}}]|\)\s*[,\])}}<;]|\)[ \t]*\n|,\s*(?:{_LITERAL}|[\])}}]))"
    rf"|(?P<open>$|\)\s*$|,\s*{_PART_OF_LITERAL}))"
)
"""What may follow two quotes if the first is text. It is narrower than what may follow one: ``'a'', b'`` is two strings."""
_NEXT_LITERAL = re.compile(r"\s*,\s*(?:(?P<sure>[\"'\[{]|[+-]?\.?\d|(?:True|False|None)\b.)|(?P<open>[+-]?\.?$))", re.S)
"""An argument without a name."""
_NEXT_STRING = re.compile(r"\s*[\"']|\s+[rRbBuUfF]{1,2}[\"']")
"""A string directly after another one. Without a space, a letter before the quote is a quoted word."""
_OPERATOR = re.compile(r"\s*[+*%]\s*[\w\"'(\[]|\.[A-Za-z_]\w{0,63}\(|\[|\s+if\s")
"""Something that computes with the string."""
_CONTINUES = re.compile(
    rf"(?P<sure>{_NEXT_STRING.pattern}|{_OPERATOR.pattern})"
    r"|(?P<open>\s*$|\s+[rRbBuUfF]{1,2}$|\s*[+*%]\s*$|\.(?:[A-Za-z_]\w{0,63})?$|\s+if?$)"
)
_NEXT_KEY = re.compile(r"\s*(?:(?P<sure>\w{1,64}\s*:)|(?P<open>\w{0,64}\s*$))")
"""A key without the comma before it."""


class _PythonString:
    """Decides what the quotes in a Python string mean. Models omit the escapes of quotes; what follows a quote decides. A string
    is *loose* after an unescaped quote that is text: the rules of Python do not apply to it any more. A string with three quotes,
    or after another string, is never loose: it ends by the rules of Python."""

    __slots__ = ("_after", "_after_two", "_joined", "_loose", "_quote", "_quotes")

    def __init__(self, quote: str, notation: Notation, nested: bool | None) -> None:
        self._quote = quote
        self._quotes = notation.quotes
        self._after: re.Pattern[str] | None = _AFTER_MEMBER if nested else _AFTER_ARGUMENT
        self._after_two = _MEMBER_AFTER_TWO if nested else _ARGUMENT_AFTER_TWO
        if nested is None or (notation.exact and not nested):
            self._after = None
        self._loose = False
        self._joined = False

    def role_of_quote(self, source: Source) -> Generator[None, None, str]:
        """What the quote at the current position is: "end", "text", or "join" for an end after which another string follows."""
        quote = self._quote
        size = len(quote)
        if size > 1 and not (yield from source.follows((quote,))):
            return "text"
        if self._after is None:
            return "end"
        certain = size > 1 or self._joined
        if not certain:
            if (yield from _follows(source, 1, self._after)):
                return "end"
            if self._loose:
                return "text"
            if (yield from _follows(source, 1, _NEXT_LITERAL)):
                return "end"
        if certain or not (yield from self._is_one_more(source)):
            if (yield from _follows(source, size, _CONTINUES)):
                if _NEXT_STRING.match(source.text, source.at + size) is None:
                    raise Malformed("an argument is an expression")
                return "join"
            if certain:
                return "end"
        self._loose = True
        return "text"

    def _is_one_more(self, source: Source) -> Generator[None, None, bool]:
        """Whether there are two quotes, of which the first is text and the second ends the string: ``"a disk of 5""``."""
        if not (yield from source.follows((self._quote * 2,))) or (yield from source.follows((self._quote * 3,))):
            return False
        return (yield from _follows(source, 2, self._after_two))

    def next_string(self, source: Source) -> Generator[None, None, str]:
        """Reads up to the inside of the string that follows; returns its quote."""
        source.skip(source.at + len(self._quote))
        yield from source.spaces()
        self._quote = yield from source.literal(self._quotes)
        if not self._quote:
            raise Malformed("a string has a prefix")
        self._joined = True
        return self._quote


def _follows(source: Source, offset: int, pattern: re.Pattern[str]) -> Generator[None, None, bool]:
    """Whether the text continues like this. Waits while it may, but reads at most ``LOOK_CHARS``."""
    while True:
        place = source.at + offset
        text = source.text[place : place + LOOK_CHARS]
        found = pattern.match(text)
        if found is None:
            return False
        if found["sure"] is not None or source.closed or len(text) == LOOK_CHARS:
            return True
        yield


def _token_string(source: Source, out: list[str], sink: Sink, quote: str, behind: tuple[str, ...]) -> Wait:
    """A string between special tokens: it has no escapes, and the token ends it only if something follows that may follow a
    string."""
    markers = _string_ends.setdefault(quote, Markers((quote,)))
    sink("".join(out))
    out.clear()
    while True:
        if not (yield from source.stream(markers, lambda part: sink(escaped(part)))):
            raise Unfinished("the text ended inside a string")
        if (yield from source.ahead(behind)) or (yield from _follows(source, 0, _NEXT_KEY)):
            return
        sink(escaped(quote))


def _json_escape(source: Source) -> Generator[None, None, str]:
    yield from source.more()
    char = source.text[source.at]
    if char in '"\\/bfnrt':
        source.skip(source.at + 1)
        return "\\" + char
    if char != "u":
        return "\\\\"
    while len(source.text) - source.at < 5 and not source.closed:
        yield
    digits = source.text[source.at + 1 : source.at + 5]
    if len(digits) == 4 and _HEX.issuperset(digits):
        source.skip(source.at + 5)
        return "\\u" + digits
    return "\\\\"


def _python_escape(source: Source) -> Generator[None, None, str]:
    yield from source.more()
    char = source.text[source.at]
    if char in _PYTHON_ESCAPES:
        source.skip(source.at + 1)
        return _PYTHON_ESCAPES[char]
    width = {"x": 2, "u": 4, "U": 8}.get(char, 0)
    if width:
        while len(source.text) - source.at < width + 1 and not source.closed:
            yield
        digits = source.text[source.at + 1 : source.at + 1 + width]
        if len(digits) == width and _HEX.issuperset(digits) and int(digits, 16) < 0x110000:
            source.skip(source.at + 1 + width)
            return chr(int(digits, 16))
    return "\\"


def string(source: Source, notation: Notation = JSON, max_chars: int = 4096) -> Generator[None, None, str]:
    """Reads one short string and returns its value: a key, a name, an id."""
    parts: list[str] = []
    size = 0

    def note(part: str) -> None:
        nonlocal size
        parts.append(part)
        size += len(part)
        if size > max_chars:
            raise Malformed("a name is too long")

    quote = yield from source.literal(notation.quotes)
    if not quote:
        raise Malformed("a string was expected")
    out: list[str] = []
    yield from inside_string(source, out, note, notation, quote, None)
    note("".join(out))
    return unescaped("".join(parts))


# --- values

MAX_DEPTH = 512
"""Maximum nesting of one value: deeper is an attack, and would overflow the clients' parsers."""

MAX_WORD_CHARS = 4096
"""Maximum characters of a bare word: longer than any number."""

_FIRST_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")

_WORDS = {
    "true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null",
    "NaN": "null", "Infinity": "null", "-Infinity": "null", "undefined": "null",
}  # fmt: skip


_word_ends: dict[str, re.Pattern[str]] = {}


def word_as_json(word: str) -> str | None:
    """A bare word as JSON: a number with all its digits, true, false, null; None if it is none of them."""
    if NUMBER.fullmatch(word):
        return word
    if word in _WORDS:
        return _WORDS[word]
    try:
        if re.fullmatch(r"[+-]?[\d_]+|[+-]?0[xXoObB][\da-fA-F_]+", word):
            digits = word.replace("_", "")
            if re.search(r"0[xXoObB]", word):
                return str(int(digits, 0))
            whole = digits.lstrip("+-").lstrip("0") or "0"
            return f"-{whole}" if digits.startswith("-") else whole
        if re.fullmatch(r"[+-]?(\d[\d_]*\.?[\d_]*|\.\d+)([eE][+-]?\d+)?", word):
            written = repr(float(word))
            return written if NUMBER.fullmatch(written) else None
    except ValueError:
        return None
    return None


_VALUE, _VALUE_OR_END, _KEY_OR_END, _COLON, _NEXT = range(5)
_SPACES = " \t\r\n"


def value(source: Source, sink: Sink, notation: Notation = JSON) -> Wait:
    """Reads one value and passes on its JSON text."""
    stack: list[str] = []
    expect = _VALUE
    out: list[str] = []
    comma = ""
    yield from source.spaces()
    try:
        while True:
            if source.at >= len(source.text):
                _flush(out, sink)
                yield from source.more()
            char = source.text[source.at]
            if char in _SPACES:
                source.skip(source.at + 1)
                if comma:
                    comma += char
                else:
                    out.append(char)
                continue
            if comma:
                # A comma before the closing bracket is a mistake of the model: it waits until its use is known.
                out.append(comma[1:] if char in "]})" else comma)
                comma = ""
            if expect == _NEXT:
                if char == ",":
                    source.skip(source.at + 1)
                    expect = _KEY_OR_END if stack[-1][0] == "{" else _VALUE_OR_END
                    comma = ","
                    continue
                expect = yield from _close(source, stack, char, out, sink)
            elif expect == _COLON:
                if char not in ":=" or (char == "=" and notation is JSON):
                    raise Malformed(f"a key is followed by {char!r}")
                source.skip(source.at + 1)
                out.append(":")
                expect = _VALUE
            elif expect == _KEY_OR_END:
                if char == "}":
                    expect = yield from _close(source, stack, char, out, sink)
                elif char == "{" and stack[-1] == "{":
                    source.skip(source.at + 1)
                    stack[-1] = "{{"
                else:
                    yield from _key(source, out, sink, notation)
                    expect = _COLON
            elif char == "{":
                source.skip(source.at + 1)
                stack.append("{")
                out.append("{")
                expect = _KEY_OR_END
            elif char == "[" or (char == "(" and notation.escapes == "python"):
                source.skip(source.at + 1)
                stack.append(char)
                out.append("[")
                expect = _VALUE_OR_END
            elif expect == _VALUE_OR_END and char in "])":
                expect = yield from _close(source, stack, char, out, sink)
            else:
                yield from _scalar(source, out, sink, notation, bool(stack))
                expect = _NEXT
            if len(stack) > MAX_DEPTH:
                raise Malformed("a value is nested too deeply")
            if not stack and expect == _NEXT:
                break
    except Malformed:
        _flush(out, sink)
        raise
    _flush(out, sink)


def _flush(out: list[str], sink: Sink) -> None:
    if out:
        sink("".join(out))
        out.clear()


def _close(source: Source, stack: list[str], char: str, out: list[str], sink: Sink) -> Generator[None, None, int]:
    opener = stack.pop()
    if {"{": "}", "{{": "}", "[": "]", "(": ")"}[opener] != char:
        raise Malformed(f"{opener!r} is closed by {char!r}")
    source.skip(source.at + 1)
    if opener == "{{":
        _flush(out, sink)
        if not (yield from source.spaced(("}",))):
            raise Malformed("a doubled brace is closed once")
    out.append("}" if char == "}" else "]")
    return _NEXT


def _key(source: Source, out: list[str], sink: Sink, notation: Notation) -> Wait:
    if len(notation.quotes[0]) > 1:
        _flush(out, sink)
    quote = yield from source.literal(notation.quotes)
    if quote:
        out.append('"')
        yield from inside_string(source, out, sink, notation, quote, None)
        out.append('"')
        return
    if not notation.bare_keys:
        raise Malformed(f"a key begins with {source.text[source.at]!r}")
    word = yield from _word(source, r"[\s:{}\[\],]", out, sink)
    if not word:
        raise Malformed("a key is empty")
    out.append(quoted(word))


def _scalar(source: Source, out: list[str], sink: Sink, notation: Notation, nested: bool) -> Wait:
    if len(notation.quotes[0]) > 1:
        _flush(out, sink)
    quote = yield from source.literal(notation.quotes)
    if quote:
        out.append('"')
        yield from inside_string(source, out, sink, notation, quote, nested)
        out.append('"')
        return
    if notation.bare_strings:
        word = (yield from _word(source, r"[,{}\[\]]", out, sink)).strip()
    else:
        word = yield from _word(source, r"[^\w.+-]", out, sink)
    written = word_as_json(word)
    if written is None:
        if not notation.bare_strings or not word:
            source.give_back(word)
            raise Malformed(f"{word[:40]!r} is not a value")
        written = quoted(word)
    out.append(written)


def _word(source: Source, end: str, out: list[str], sink: Sink) -> Generator[None, None, str]:
    pattern = _word_ends.setdefault(end, re.compile(end))
    parts: list[str] = []
    size = 0
    while True:
        found = pattern.search(source.text, source.at)
        stop = len(source.text) if found is None else found.start()
        stop = min(stop, source.at + MAX_WORD_CHARS + 1 - size)
        parts.append(source.text[source.at : stop])
        size += stop - source.at
        source.skip(stop)
        if size > MAX_WORD_CHARS:
            reason = Malformed("a bare word does not end")
            reason.rest = "".join(parts)
            raise reason
        if found is not None or source.closed:
            return "".join(parts)
        _flush(out, sink)
        yield


def decoded_string(source: Source, arguments: Sink) -> Wait:
    """Reads a JSON string, at whose quote the source stands, and passes on the JSON *in* it: arguments that a model wrote as a
    string. If they break, ``rest`` of the error is the rest of the string, with its escapes and its closing quote."""
    held = ""
    rest: list[str] = []
    inner = Source()
    steps = value(inner, arguments)
    done = False
    failed: Malformed | None = None

    def sink(piece: str) -> None:
        # An error is raised at the end of the string, so that the splits of the string do not matter.
        nonlocal done, failed
        if failed is not None:
            rest.append(piece)
            return
        inner.push(piece)
        try:
            if not done:
                done = next(steps, True) is True
            if done and inner.text[inner.at :].strip():
                raise Malformed("text after the arguments")
        except Malformed as reason:
            failed = reason
            rest.extend((reason.rest or "", inner.text[inner.at :]))

    def note(part: str) -> None:
        # Escapes arrive complete; the first half of a surrogate pair waits for the second.
        nonlocal held
        text = held + part
        head = text[:-5]
        half = _FIRST_HALF.fullmatch(text[-6:]) is not None and (len(head) - len(head.rstrip("\\"))) % 2 == 1
        held = text[-6:] if half else ""
        sink(unescaped(text[: len(text) - len(held)]))

    source.skip(source.at + 1)
    out: list[str] = []
    broken: Malformed | None = None
    try:
        yield from inside_string(source, out, note, JSON, '"', None)
    except Malformed as reason:
        broken = reason
    sink(unescaped(held + "".join(out)))
    inner.closed = True
    if failed is None and not done:
        try:
            next(steps, None)
        except Malformed as reason:
            failed = reason
            rest.extend((reason.rest or "", inner.text[inner.at :]))
    end = '"' if broken is None else ""
    broken = broken or failed
    if broken is not None:
        broken.rest = escaped("".join(rest)) + end
        raise broken
