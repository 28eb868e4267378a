"""Incremental JSON: reads one value of a literal notation and passes on its JSON text while it is being written.

The same code reads JSON, Python literals and object notations with bare keys: a ``Notation`` describes the differences. JSON is
passed on as it was written; everything else is converted to JSON on the way. It tolerates mistakes of models: control characters
and unknown escapes inside strings are escaped, ``True`` and ``None`` are understood, braces that a prompt template doubled
(``{{"a": 1}}``) count once. It stops directly after the value.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from .json_strings import JSON, Notation, escaped, inside_string, quoted, unescaped
from .scan import Malformed, Sink, Source, Wait

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
