"""Incremental JSON: reads one value of a literal notation and hands on its JSON text while it is being written.

The same machine reads JSON, Python literals and object notations with bare keys: a ``Notation`` says how they differ.
JSON goes out as it was written; everything else is turned into JSON on the way. It is forgiving where models slip:
control characters and unknown escapes inside strings are escaped, ``True`` and ``None`` are understood, braces that
were doubled by a prompt template (``{{"a": 1}}``) count once. It stops right behind the value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator

from msgspec import Struct

from .scan import Cut, Malformed, Markers, Sink, Source, Wait

MAX_DEPTH = 512
"""Nesting of one value: deeper than this is an attack, and the readers behind us would overflow."""

NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")

_JSON_STOP = re.compile(r'["\\\x00-\x1f]')
_HEX = frozenset("0123456789abcdefABCDEF")
_PYTHON_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\\": "\\", "'": "'", '"': '"', "\n": ""}
_WORDS = {
    "true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null",
    "NaN": "null", "Infinity": "null", "-Infinity": "null", "undefined": "null",
}  # fmt: skip


class Notation(Struct, frozen=True):
    """How values are written. ``quotes`` open and close a string; ``escapes`` tells how a backslash is read in it."""

    quotes: tuple[str, ...] = ('"',)
    escapes: str = "json"
    bare_keys: bool = False
    bare_strings: bool = False


JSON = Notation()
PYTHON = Notation(quotes=('"', "'"), escapes="python")

_word_ends: dict[str, re.Pattern[str]] = {}
_string_ends: dict[str, Markers] = {}


def quoted(text: str) -> str:
    """The text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """The text as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def word_as_json(word: str) -> str | None:
    """A bare word as JSON: a number with all its digits, true, false, null; None if it is none of them."""
    if NUMBER.fullmatch(word):
        return word
    if word in _WORDS:
        return _WORDS[word]
    try:
        if re.fullmatch(r"[+-]?[\d_]+|[+-]?0[xXoObB][\da-fA-F_]+", word):
            digits = word.replace("_", "")
            return str(int(digits, 0)) if re.search(r"0[xXoObB]", word) else (digits.lstrip("+0") or "0")
        if re.fullmatch(r"[+-]?(\d[\d_]*\.?[\d_]*|\.\d+)([eE][+-]?\d+)?", word):
            return repr(float(word))
    except ValueError:
        return None
    return None


_VALUE, _VALUE_OR_END, _KEY_OR_END, _COLON, _NEXT = range(5)
_SPACES = " \t\r\n"


def value(source: Source, sink: Sink, notation: Notation = JSON) -> Wait:
    """Reads one value and hands on its JSON text."""
    stack: list[str] = []
    expect = _VALUE
    out: list[str] = []
    comma = ""
    yield from source.spaces()
    try:
        while True:
            if source.at >= len(source.text):
                if out:
                    sink("".join(out))
                    out.clear()
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
                # A comma before the closing bracket is the model's slip: it waits until its use is known.
                out.append(comma[1:] if char in "]})" else comma)
                comma = ""
            if expect == _NEXT:
                if char == ",":
                    source.skip(source.at + 1)
                    expect = _KEY_OR_END if stack[-1][0] == "{" else _VALUE_OR_END
                    comma = ","
                    continue
                expect = yield from _close(source, stack, char, out)
            elif expect == _COLON:
                if char not in ":=" or (char == "=" and notation is JSON):
                    raise Malformed(f"a key is followed by {char!r}")
                source.skip(source.at + 1)
                out.append(":")
                expect = _VALUE
            elif expect == _KEY_OR_END:
                if char == "}":
                    expect = yield from _close(source, stack, char, out)
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
                expect = yield from _close(source, stack, char, out)
            else:
                yield from _scalar(source, out, sink, notation, bool(stack))
                expect = _NEXT
            if len(stack) > MAX_DEPTH:
                raise Malformed("a value is nested too deeply")
            if not stack and expect == _NEXT:
                return
    finally:
        if out:
            sink("".join(out))


def _close(source: Source, stack: list[str], char: str, out: list[str]) -> Generator[None, None, int]:
    opener = stack.pop()
    if {"{": "}", "{{": "}", "[": "]", "(": ")"}[opener] != char:
        raise Malformed(f"{opener!r} is closed by {char!r}")
    source.skip(source.at + 1)
    if opener == "{{" and not (yield from source.spaced(("}",))):
        raise Malformed("a doubled brace is closed once")
    out.append("}" if char == "}" else "]")
    return _NEXT


def _key(source: Source, out: list[str], sink: Sink, notation: Notation) -> Wait:
    quote = yield from source.literal(notation.quotes)
    if quote:
        out.append('"')
        yield from _string(source, out, sink, notation, quote, None)
        out.append('"')
        return
    if not notation.bare_keys:
        raise Malformed(f"a key begins with {source.text[source.at]!r}")
    word = yield from _word(source, r"[\s:{}\[\],]")
    if not word:
        raise Malformed("a key is empty")
    out.append(quoted(word))


def _scalar(source: Source, out: list[str], sink: Sink, notation: Notation, nested: bool) -> Wait:
    quote = yield from source.literal(notation.quotes)
    if quote:
        out.append('"')
        yield from _string(source, out, sink, notation, quote, nested)
        out.append('"')
        return
    if notation.bare_strings:
        word = (yield from _word(source, r"[,{}\[\]]")).strip()
    else:
        word = yield from _word(source, r"[^\w.+-]")
    written = word_as_json(word)
    if written is None:
        if not notation.bare_strings or not word:
            source.give_back(word)
            raise Malformed(f"{word[:40]!r} is no value")
        written = quoted(word)
    out.append(written)


def _word(source: Source, end: str) -> Generator[None, None, str]:
    pattern = _word_ends.setdefault(end, re.compile(end))
    parts: list[str] = []
    while True:
        found = pattern.search(source.text, source.at)
        stop = len(source.text) if found is None else found.start()
        parts.append(source.text[source.at : stop])
        source.skip(stop)
        if found is not None or source.closed:
            return "".join(parts)
        if sum(map(len, parts)) > 4096:
            raise Malformed("a bare word does not end")
        yield


def _string(source: Source, out: list[str], sink: Sink, notation: Notation, quote: str, nested: bool | None) -> Wait:
    """The inside of a string, and its closing quote. ``nested`` is None for a key."""
    if len(quote) > 1:
        yield from _token_string(source, out, sink, quote)
        return
    python = notation.escapes == "python"
    stop = _JSON_STOP if quote == '"' else _PYTHON_STOP
    while True:
        text = source.text
        found = stop.search(text, source.at)
        end = len(text) if found is None else found.start()
        if end > source.at:
            out.append(text[source.at : end].replace('"', '\\"') if python else text[source.at : end])
            source.skip(end)
        if found is None:
            if source.closed:
                raise Cut("the text ended inside a string")
            if out:
                sink("".join(out))
                out.clear()
            yield
            continue
        char = found[0]
        if char == quote:
            if python and nested is not None:
                ends = yield from _ends_string(source, nested)
                if not ends:
                    source.skip(source.at + 1)
                    out.append(escaped(char))
                    continue
            source.skip(source.at + 1)
            return
        source.skip(source.at + 1)
        if char != "\\":
            out.append(escaped(char))
        elif python:
            out.append(escaped((yield from _python_escape(source))))
        else:
            out.append((yield from _json_escape(source)))


_PYTHON_STOP = re.compile(r"['\\\x00-\x1f]")
_AFTER_ARGUMENT = re.compile(
    r"\s*(?:(?P<sure>\)\s*[,\]<;]|\)[ \t]*\n|,\s*[A-Za-z_]\w{0,63}\s*=|,\s*\))|(?P<open>$|\)\s*$|,\s*$|,\s*[A-Za-z_]\w{0,63}\s*$))"
)
_AFTER_MEMBER = re.compile(r"\s*(?:(?P<sure>[\]}:)]|,\s*[\"'\[{(\w+\-\]}.])|(?P<open>$|,\s*$))")


def _ends_string(source: Source, nested: bool) -> Generator[None, None, bool]:
    """Does the quote here end the string? Models forget to escape quotes; what follows a true end tells."""
    pattern = _AFTER_MEMBER if nested else _AFTER_ARGUMENT
    while True:
        found = pattern.match(source.text, source.at + 1)
        if found is None:
            return False
        if found["sure"] is not None or source.closed or len(source.text) - source.at > 256:
            return True
        yield


def _token_string(source: Source, out: list[str], sink: Sink, quote: str) -> Wait:
    """A string between special tokens: nothing in it is an escape."""
    markers = _string_ends.setdefault(quote, Markers((quote,)))
    if out:
        sink("".join(out))
        out.clear()
    if not (yield from source.stream(markers, lambda part: sink(escaped(part)))):
        raise Cut("the text ended inside a string")


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


def string(source: Source, notation: Notation = JSON, most: int = 4096) -> Generator[None, None, str]:
    """Reads one short string and returns its value: a key, a name, an id."""
    parts: list[str] = []
    size = 0

    def note(part: str) -> None:
        nonlocal size
        parts.append(part)
        size += len(part)
        if size > most:
            raise Malformed("a name is too long")

    quote = yield from source.literal(notation.quotes)
    if not quote:
        raise Malformed("a string was expected")
    out: list[str] = []
    yield from _string(source, out, note, notation, quote, None)
    note("".join(out))
    return str(json.loads(f'"{"".join(parts)}"'))


def decoded_string(source: Source, arguments: Sink) -> Wait:
    """Reads a JSON string and hands on the JSON *in* it: arguments that a model wrote as a string."""
    held: list[str] = []
    inner = Source()
    steps = value(inner, arguments)
    done = False

    def sink(piece: str) -> None:
        nonlocal done
        inner.push(piece)
        if not done:
            done = next(steps, True) is True
        if done and inner.text[inner.at :].strip():
            raise Malformed("text behind the arguments")

    def note(part: str) -> None:
        held.append(part)
        text = "".join(held)
        cut = text.rfind("\\", max(0, len(text) - 12))
        safe = len(text) if cut < 0 else cut
        while cut > 0 and text[cut - 1] == "\\":
            cut -= 1
            safe = cut
        if safe >= 6 and text[safe - 6 : safe - 3].lower() in ("\\ud8", "\\ud9", "\\uda", "\\udb"):
            safe -= 6
        held[:] = [text[safe:]]
        if safe:
            sink(str(json.loads(f'"{text[:safe]}"')))

    if not (yield from source.literal(('"',))):
        raise Malformed("a string was expected")
    out: list[str] = []
    yield from _string(source, out, note, JSON, '"', None)
    rest = "".join(held) + "".join(out)
    if rest:
        sink(str(json.loads(f'"{rest}"')))
    inner.closed = True
    if not done and inner.text.strip():
        for _ in steps:
            break
