"""Writes calls by the grammar of a notation: every form that the grammar allows, and the mistakes that models make."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from streamglot.inband.engines import WrittenCall
from streamglot.inband.grammars import GRAMMARS
from streamglot.inband.parameters import json_type

_TOKEN = re.compile(r"""\s*(?:(?P<text>'[^']*'|"[^"]*")|(?P<word>\w+)|(?P<mark>[=;{}\[\]()|~/]))""")
QUOTES = {"gemma4": '<|"|>', "functiongemma": "<escape>"}
"""The tokens around strings in object notations."""
M3_TOKEN = "]<]minimax[>["

Choose = Callable[[int], int]
"""Takes a number of possibilities and chooses one."""


class Node(NamedTuple):
    """``kind``: text, word, row (a sequence), choice, maybe, slip, each."""

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()


class Grammar:
    """The rules of one notation, by name; ``first`` is the start symbol."""

    def __init__(self, source: str) -> None:
        self._tokens = list(self._cut(source))
        self._at = 0
        self.rules: dict[str, Node] = {}
        while self._at < len(self._tokens):
            name = self._take()
            assert self._take() == "="
            self.rules[name] = self._choice()
            assert self._take() == ";"
        self.first = next(iter(self.rules))

    @staticmethod
    def _cut(source: str) -> Iterator[str]:
        at = 0
        source = source.rstrip()
        while at < len(source):
            found = _TOKEN.match(source, at)
            assert found is not None, source[at:]
            at = found.end()
            yield found[0].strip() if found["text"] is None else found["text"]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _choice(self) -> Node:
        parts = [self._row()]
        while self._peek() == "|":
            self._take()
            parts.append(self._row())
        return parts[0] if len(parts) == 1 else Node("choice", "", tuple(parts))

    def _row(self) -> Node:
        parts = []
        while self._peek() not in ("|", ";", ")", "]", "}", "/", ""):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Node("row", "", tuple(parts))

    def _one(self) -> Node:
        token = self._take()
        if token[0] in "'\"":
            return Node("text", token[1:-1].replace("\\n", "\n"))
        if token == "~":
            return Node("slip", "", (self._one(),))
        if token in "([{":
            parts = [self._choice()]
            if token == "{" and self._peek() == "/":
                self._take()
                parts.append(self._choice())
            assert self._take() == {"(": ")", "[": "]", "{": "}"}[token]
            return parts[0] if token == "(" else Node("maybe" if token == "[" else "each", "", tuple(parts))
        return Node("word", token)


PARSED = {format: Grammar(source) for format, source in GRAMMARS.items()}


class Writer:
    """Writes calls by a grammar. ``choose`` decides wherever there is a choice; ``slip`` is the number of the one place
    where the text forgets what a model may forget, and ``slips`` counts these places."""

    def __init__(self, format: str, calls: list[WrittenCall], choose: Choose, slip: int = -1) -> None:
        self._format = format
        self._calls = calls
        self._choose = choose
        self._slip = slip
        self._grammar = PARSED[format]
        self._call = -1
        self._key = ""
        self.slips = 0

    def write(self) -> str:
        return self._written(self._grammar.rules[self._grammar.first])

    def _written(self, node: Node) -> str:
        if node.kind == "text":
            return node.text
        if node.kind == "row":
            return "".join(map(self._written, node.parts))
        if node.kind == "choice":
            return self._written(node.parts[self._choose(len(node.parts))])
        if node.kind == "maybe":
            return self._written(node.parts[0]) if self._choose(2) == 0 else ""
        if node.kind == "slip":
            self.slips += 1
            return "" if self.slips - 1 == self._slip else self._written(node.parts[0])
        if node.kind == "each":
            return self._each(node)
        if node.text in self._grammar.rules:
            return self._written(self._grammar.rules[node.text])
        return self._terminal(node.text)

    def _each(self, node: Node) -> str:
        between = node.parts[1] if len(node.parts) > 1 else Node("text")
        written = []
        if self._call < 0:
            for number in range(len(self._calls)):
                self._call = number
                written.append(self._written(node.parts[0]))
            self._call = -1
        else:
            for key in self._calls[self._call].members():
                self._key = key
                written.append(self._written(node.parts[0]))
        return "".join(part for number, piece in enumerate(written) for part in (self._written(between) if number else "", piece))

    def _terminal(self, word: str) -> str:
        if word == "ws":
            return ("", "\n", " ", "\n  ")[self._choose(4)]
        call = self._calls[self._call]
        if word in ("name", "id", "number"):
            return {"name": call.name, "id": call.call_id, "number": str(self._call + 1)}[word]
        members = call.members()
        if word in ("object", "encoded"):
            styles: list[dict[str, Any]] = [{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}]
            text = json.dumps(members, **styles[self._choose(4)])
            return text if word == "object" else json.dumps(text)
        value = members[self._key]
        match word:
            case "key":
                return self._key
            case "type":
                return json_type(value)
            case "string":
                return "true" if isinstance(value, str) else "false"
            case "text":
                return as_text(value)
            case "python":
                return as_python(value, self._choose)
            case "brace":
                return as_braces(value, QUOTES[self._format])
            case "tags":
                return as_tags(value)
        raise AssertionError(f"{word} is neither a rule nor a terminal")


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_python(value: Any, choose: Choose) -> str:
    """A literal of Python; strings in every way that Python has."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {as_python(part, choose)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(as_python(part, choose) for part in value) + "]"
    if not isinstance(value, str):
        return repr(value)
    style = choose(4)
    if style < 2:
        quote = "\"'"[style]
        text = value.replace("\\", "\\\\").replace(quote * 3, f"\\{quote}" * 3)
        text = f"{text[:-1]}\\{quote}" if text.endswith(quote) else text
        return quote * 3 + text + quote * 3
    middle = choose(len(value) + 1)
    gap = (" ", "\n  ", "")[choose(3 if middle else 2)]
    return repr(value) if style == 2 else repr(value[:middle]) + gap + repr(value[middle:])


def as_braces(value: Any, quote: str) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{as_braces(part, quote)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(as_braces(part, quote) for part in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)


def as_tags(value: Any) -> str:
    parts = value.items() if isinstance(value, dict) else (("item", part) for part in value) if isinstance(value, list) else ()
    if isinstance(value, (dict, list)):
        return "".join(f"{M3_TOKEN}<{key}>{as_tags(part)}{M3_TOKEN}</{key}>" for key, part in parts)
    return as_text(value)
