"""Regular expressions over streams: parsed, the prefixes of their matches derived, compiled with RE2.

An expression in RE2's syntax is parsed into a tree for one purpose: ``prefixes`` derives from it the expression of every text that
can still grow into a match. Flags are resolved by the parser, so each atom is written with its own flags and expressions can be
joined without changing each other. Expressions that RE2 cannot match, or that have no meaning in a stream, are refused with the
reason.

RE2 is linear in the text for every expression. Matches are leftmost-longest, so a match does not depend on the order of
alternatives and, once no longer one is possible, does not change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from msgspec import Struct

from ..errors import ConfigError, excerpt

if TYPE_CHECKING:
    from types import ModuleType

MAX_PATTERN_CHARS: Final = 2000
"""Characters of one expression. Longer expressions are generated; a word list is faster."""
MAX_REPEAT: Final = 1000
"""The highest count in ``{n,m}`` that RE2 accepts."""
MAX_PROGRAM: Final = 20_000
"""Instructions of one compiled pattern. Counted repeats such as ``{1,500}`` multiply them, and with them the time per
character."""
MEMORY_BYTES: Final = 32 * 2**20
"""What RE2 may use for the automaton of one expression before it falls back to a slower, still linear one."""


class Atom(Struct, frozen=True):
    """An expression that consumes exactly one character."""

    written: str


class Assertion(Struct, frozen=True):
    """An expression that consumes nothing and depends on the characters around it."""

    written: str


class Concatenation(Struct, frozen=True):
    items: tuple[Node, ...]


class Alternation(Struct, frozen=True):
    options: tuple[Node, ...]


class Repeat(Struct, frozen=True):
    """``maximum`` is None for a repeat without an upper bound."""

    item: Node
    minimum: int
    maximum: int | None


Node: TypeAlias = Atom | Assertion | Concatenation | Alternation | Repeat


class Expression(Struct, frozen=True):
    """``before`` is the content of a positive lookbehind at the start, ``width`` the number of characters it looks at."""

    body: Node
    before: Node | None = None
    width: int = 0


def parse(pattern: str, *, whole: bool = False) -> Expression:
    """The tree of this expression; ConfigError with the reason if it cannot be matched in a stream. A pattern that is only
    tested on ``whole`` texts may match the empty one, and its repeats may be lazy: they match in the same texts."""
    tree = _Parser(pattern, whole).expression()
    if nullable(tree.body) and not whole:
        raise _refused(pattern, "it matches the empty text, which is everywhere; make one part of it obligatory")
    return tree


def write(node: Node) -> str:
    """The tree as an expression that can be part of any other expression."""
    match node:
        case Atom() | Assertion():
            return node.written
        case Concatenation():
            return "".join(write(item) for item in node.items)
        case Alternation():
            return f"(?:{'|'.join(write(option) for option in node.options)})"
        case Repeat():
            return f"(?:{write(node.item)}){{{node.minimum},{'' if node.maximum is None else node.maximum}}}"


def nullable(node: Node) -> bool:
    """Whether the tree matches the empty text."""
    match node:
        case Atom():
            return False
        case Assertion():
            return True
        case Concatenation():
            return all(nullable(item) for item in node.items)
        case Alternation():
            return any(nullable(option) for option in node.options)
        case Repeat():
            return node.minimum == 0 or nullable(node.item)


def fixed_width(node: Node) -> int | None:
    """The number of characters that every match has; None if matches differ in length."""
    match node:
        case Atom():
            return 1
        case Assertion():
            return 0
        case Concatenation():
            widths = [fixed_width(item) for item in node.items]
            return None if None in widths else sum(width for width in widths if width is not None)
        case Alternation():
            options = {fixed_width(option) for option in node.options}
            return options.pop() if len(options) == 1 else None
        case Repeat():
            width = fixed_width(node.item)
            return width * node.minimum if width is not None and node.minimum == node.maximum else None


_LOOK_AROUND: Final = {
    "(?=": "a lookahead would have to wait for text that may never come; match the text itself, and let the policy decide",
    "(?!": "a negative lookahead would have to wait for text that may never come; list what may follow instead",
    "(?<!": "a negative lookbehind is not supported; begin the pattern with `\\b` or with the characters that may precede",
    "(?P=": "a backreference cannot be matched in linear time; write the repeated part out",
    "(?(": "a conditional group refers back to another group, which cannot be matched in linear time",
    "(?>": "an atomic group is not supported; repeats never backtrack here, so a plain group `(?:` does the same",
}
_NAMED_GROUP: Final = re.compile(r"\(\?P?<\w+>")
_FLAGS: Final = re.compile(r"\(\?([imsUx]*)(?:-([imsUx]+))?([:)])")
_COUNT: Final = re.compile(r"\{(\d+)(,?)(\d*)\}")
_QUOTATION: Final = re.compile(r"\\Q(.*?)(?:\\E|$)|\\.", re.DOTALL)
_CLASS_ESCAPES: Final = "dDwWsS"
_LETTER_ESCAPES: Final = "aftnrv"


def _unquoted(found: re.Match[str]) -> str:
    """A quotation as escaped characters; any other escape as it is."""
    return found[0] if found[1] is None else "".join(f"\\x{{{ord(char):x}}}" for char in found[1])


def _refused(pattern: str, reason: str) -> ConfigError:
    return ConfigError(f"the pattern {excerpt(pattern)} cannot be used in a stream: {reason}")


class _Parser:
    def __init__(self, pattern: str, whole: bool) -> None:
        self.whole = whole
        self.pattern = _QUOTATION.sub(_unquoted, pattern)
        self.at = 0
        self.flags = frozenset[str]()
        if len(pattern) > MAX_PATTERN_CHARS:
            self.refuse(f"it has {len(pattern)} characters, and the maximum is {MAX_PATTERN_CHARS}; use a word list (`words`)")

    def refuse(self, reason: str) -> NoReturn:
        raise _refused(self.pattern, reason)

    def expression(self) -> Expression:
        before, width = None, 0
        if self.pattern.startswith("(?<=", self.at):
            self.at += 4
            before = self.alternation()
            self.expect_end_of_group()
            found = fixed_width(before)
            if found is None:
                self.refuse("its lookbehind has no fixed length; write one lookbehind for each length, in patterns of their own")
            width = found
        body = self.alternation() if before is None else self.sequence()
        if before is not None and self.pattern.startswith("|", self.at):
            self.refuse("its lookbehind belongs to the first alternative only; put the alternatives in a group `(?:…|…)`")
        if self.at < len(self.pattern):
            self.refuse(f"there is a `)` without its `(` at character {self.at}")
        return Expression(body, before, width)

    def alternation(self) -> Node:
        options = [self.sequence()]
        while self.pattern.startswith("|", self.at):
            self.at += 1
            options.append(self.sequence())
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def sequence(self) -> Node:
        items: list[Node] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            item = self.item()
            if item is not None:
                items.append(self.repeated(item))
        return items[0] if len(items) == 1 else Concatenation(tuple(items))

    def item(self) -> Node | None:
        """One atom, assertion or group; None for flags, which have no content."""
        char = self.pattern[self.at]
        match char:
            case "(":
                return self.group()
            case "[":
                return self.character_class()
            case "\\":
                return self.escape()
            case ".":
                self.at += 1
                return Atom("(?s:.)" if "s" in self.flags else ".")
            case "^" | "$":
                self.at += 1
                if "m" in self.flags:
                    return Assertion(f"(?m:{char})")
                return Assertion(r"\A" if char == "^" else r"\z")
            case "*" | "+" | "?":
                self.refuse(f"there is nothing to repeat before the `{char}` at character {self.at}")
            case _:
                self.at += 1
        return self.literal(char)

    def literal(self, char: str) -> Atom:
        written = char if char.isalnum() or ord(char) > 127 else f"\\x{{{ord(char):x}}}"
        return Atom(f"(?i:{written})" if "i" in self.flags and char.isalpha() else written)

    def group(self) -> Node | None:
        for opening, reason in _LOOK_AROUND.items():
            if self.pattern.startswith(opening, self.at):
                self.refuse(reason)
        if self.pattern.startswith("(?<=", self.at):
            self.refuse("a lookbehind is supported at the very start of a pattern only")
        outer = self.flags
        named = _NAMED_GROUP.match(self.pattern, self.at)
        flags = _FLAGS.match(self.pattern, self.at)
        if named:
            self.at = named.end()
        elif flags:
            self.at = flags.end()
            on, off, end = flags.groups()
            for flag, reason in (("x", "verbose mode"), ("U", "ungreedy mode")):
                if flag in on:
                    self.refuse(f"{reason} (`(?{flag})`) is not supported")
            self.flags = (self.flags | set(on)) - set(off or "")
            if end == ")":  # the flags hold until the end of the group around them
                return None
        elif self.pattern.startswith("(?", self.at):
            self.refuse(f"it has a group of an unknown kind at character {self.at}")
        else:
            self.at += 1
        inside = self.alternation()
        self.expect_end_of_group()
        self.flags = outer
        return inside

    def expect_end_of_group(self) -> None:
        if not self.pattern.startswith(")", self.at):
            self.refuse("a `(` has no `)`")
        self.at += 1

    def character_class(self) -> Atom:
        begin = self.at
        self.at += 1
        if self.pattern.startswith("^", self.at):
            self.at += 1
        first = self.at
        while True:
            if self.at >= len(self.pattern):
                self.refuse(f"the `[` at character {begin} has no `]`")
            if self.pattern[self.at] == "]" and self.at > first:
                break
            if self.pattern.startswith("[:", self.at) and ":]" in self.pattern[self.at :]:
                self.at = self.pattern.index(":]", self.at) + 2
            else:
                self.at += 2 if self.pattern[self.at] == "\\" else 1
        self.at += 1
        written = self.pattern[begin : self.at]
        return Atom(f"(?i:{written})" if "i" in self.flags else written)

    def escape(self) -> Node:
        letter = self.pattern[self.at + 1 : self.at + 2]
        begin = self.at
        self.at += 2
        if letter == "":
            self.refuse("it ends with a backslash")
        if letter in "bBAzZ":
            return Assertion(r"\z" if letter == "Z" else f"\\{letter}")
        if letter in _CLASS_ESCAPES or letter in _LETTER_ESCAPES:
            return Atom(f"\\{letter}")
        if letter in "xuU":
            return self.code_point(letter)
        if letter in "pP":
            found = re.compile(r"\\[pP](\{\^?\w+\}|\w)").match(self.pattern, begin)
            if not found:
                self.refuse(f"`\\{letter}` at character {begin} names no class of characters")
            self.at = found.end()
            return Atom(found[0])
        if letter.isdigit():
            if letter != "0":
                self.refuse("a backreference cannot be matched in linear time; write the repeated part out")
            self.refuse("an octal escape is not supported; write it as `\\x{…}`")
        if letter.isalpha():
            self.refuse(f"the escape `\\{letter}` is not supported")
        return self.literal(letter)

    def code_point(self, letter: str) -> Atom:
        shape = {"x": r"\{([0-9A-Fa-f]{1,6})\}|([0-9A-Fa-f]{2})", "u": r"([0-9A-Fa-f]{4})", "U": r"([0-9A-Fa-f]{8})"}[letter]
        found = re.compile(shape).match(self.pattern, self.at)
        if not found or int(found[found.lastindex or 0], 16) > 0x10FFFF:
            self.refuse(f"`\\{letter}` at character {self.at - 2} names no character")
        self.at = found.end()
        return self.literal(chr(int(found[found.lastindex or 0], 16)))

    def repeated(self, item: Node) -> Node:
        while self.at < len(self.pattern):
            sign = self.pattern[self.at]
            count = _COUNT.match(self.pattern, self.at)
            if count:
                minimum = int(count[1])
                maximum = int(count[3]) if count[3] else None if count[2] else minimum
                self.at = count.end()
            elif sign in "*+?":
                minimum, maximum = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
                self.at += 1
            else:
                break
            if max(minimum, maximum or 0) > MAX_REPEAT or (maximum is not None and maximum < minimum):
                self.refuse(f"a repeat counts from {minimum} to {maximum}; counts must rise and end at {MAX_REPEAT} at most")
            following = self.pattern[self.at : self.at + 1]
            if following == "?" and self.whole:
                self.at += 1
            elif following == "?":
                self.refuse("a lazy repeat has no meaning here, because the longest match counts; use a class such as `[^<]*`")
            if following == "+":
                self.refuse("a possessive repeat is not supported; repeats never backtrack here, so a plain one does the same")
            item = Repeat(item, minimum, maximum)
        return item


# --- the prefixes of matches


# Theory. Let ``L`` be the matches of a pattern. A scanner that has seen the text ``t`` must hold the part of ``t`` that begins at
# the leftmost place from which the rest of ``t`` is a proper prefix of a member of ``L``: what begins earlier can no longer
# become a match, or a longer one. ``prefixes`` writes an expression for exactly these proper prefixes (the empty one among them):
#
#     P(atom)       = empty
#     P(assertion)  = empty                 it depends on the next character, so its place counts as undecided
#     P(X Y)        = P(X) | X P(Y)
#     P(X | Y)      = P(X) | P(Y)
#     P(X{n,m})     = X{0,m-1} P(X)
#
# An assertion at the very end therefore makes a whole match count as undecided until the next character or the end of the text.
# The size of the result is that of the pattern times its depth of nesting.


def prefixes(node: Node) -> str:
    """The expression of all proper prefixes of the matches of this tree, with the empty prefix."""
    match node:
        case Atom() | Assertion():
            return ""
        case Concatenation():
            return _of_sequence(node.items)
        case Alternation():
            return f"(?:{'|'.join(prefixes(option) for option in node.options)})"
        case Repeat():
            if node.maximum == 0:
                return ""
            inside = prefixes(node.item)
            last = "" if node.maximum is None else str(node.maximum - 1)
            return inside if last == "0" else f"(?:{write(node.item)}){{0,{last}}}{inside}"


def _of_sequence(items: tuple[Node, ...]) -> str:
    """From the last item to the first, so that the depth of Python's stack does not depend on the length."""
    rest = ""
    for position, item in enumerate(reversed(items)):
        own = prefixes(item)
        if position == 0:
            rest = own
        elif own:
            rest = f"(?:{own}|{write(item)}{rest})"
        else:
            rest = f"(?:{write(item)}{rest})?"
    return rest


# --- compiled


@lru_cache(1)
def engine() -> ModuleType:
    try:
        import re2  # type: ignore[import-untyped]  # re2 has no type information
    except ModuleNotFoundError:
        raise ConfigError("patterns need RE2: pip install 'streamglot[policies]'") from None
    found: ModuleType = re2
    return found


def _compiled(expression: str, *, groups: bool = False) -> Any:  # Any: an expression of re2, which has no type information
    re2 = engine()
    options = re2.Options()
    options.longest_match = True
    options.never_capture = not groups
    options.log_errors = False
    options.max_mem = MEMORY_BYTES
    try:
        return re2.compile(expression.encode("utf-8", "surrogatepass"), options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        shown = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ConfigError(f"RE2 refuses the expression {excerpt(expression)}: {shown}") from None


class PatternSearch:
    """One pattern, or several at once, over UTF-8 bytes. ``width`` characters before a match must be kept for its lookbehind."""

    __slots__ = ("_group", "_hold", "_match", "_starts", "width")

    def __init__(self, expressions: Sequence[Expression]) -> None:
        first = expressions[0]
        self.width = first.width
        self._group = 0
        self._starts: frozenset[int] | None = None
        found = "|".join(f"(?:{write(expression.body)})" for expression in expressions)
        held = "|".join(f"(?:{prefixes(expression.body)})" for expression in expressions)
        if first.before is not None:  # the caller gives such a pattern a search of its own
            self._group = 1
            found, held = f"{write(first.before)}({found})", f"{write(first.before)}({held})"
        self._match = _compiled(found, groups=bool(self._group))
        self._hold = _compiled(f"(?:{held})\\z", groups=bool(self._group))
        for program in (self._match, self._hold):
            if len(expressions) == 1 and program.programsize > MAX_PROGRAM:
                raise ConfigError(
                    f"the pattern compiles to {program.programsize} instructions, and the maximum is {MAX_PROGRAM}; "
                    "replace counted repeats such as {1,500} by `+`"
                )

    def find(self, buffer: bytes, start: int) -> tuple[int, int] | None:
        """The leftmost-longest match at or after ``start``."""
        found = self._match.search(buffer, self._begin(buffer, start))
        return None if found is None else found.span(self._group)

    def end_at(self, buffer: bytes, start: int) -> int | None:
        """The end of the longest match that begins at ``start`` exactly."""
        if self.width:
            found = self.find(buffer, start)
            return found[1] if found is not None and found[0] == start else None
        found = self._match.match(buffer, start)
        return None if found is None else found.end()

    def starts(self) -> frozenset[int]:
        """The ASCII characters with which a match can begin, in any context."""
        if self._starts is None:
            self._starts = frozenset(range(128)) if self.width else frozenset(filter(self._may_start_with, range(128)))
        return self._starts

    def _may_start_with(self, code: int) -> bool:
        for before in (b"", b"a", b" ", b"\n"):
            buffer = before + bytes([code])
            if self.hold(buffer, len(before)) == len(before) or self.find(buffer, len(before)) is not None:
                return True
        return False

    def hold(self, buffer: bytes, start: int) -> int:
        """The leftmost place at or after ``start`` from which the rest of the buffer can still grow into a match."""
        found = self._hold.search(buffer, self._begin(buffer, start))
        return len(buffer) if found is None else found.start(self._group)

    def _begin(self, buffer: bytes, start: int) -> int:
        """Where a match whose text begins at ``start`` begins together with its lookbehind."""
        if not self.width:
            return start
        before = buffer[:start].decode("utf-8", "surrogatepass")
        return start - len(before[-self.width :].encode("utf-8", "surrogatepass"))


@lru_cache(4096)
def compiled(expression: str) -> PatternSearch:
    """The search for one pattern, compiled once."""
    return PatternSearch([parse(expression)])


@lru_cache(512)
def compiled_union(expressions: tuple[str, ...]) -> PatternSearch | None:
    """One search for all of these that have no lookbehind; None if there is none."""
    plain = [tree for tree in map(parse, expressions) if tree.before is None]
    return PatternSearch(plain) if plain else None


@lru_cache(4096)
def _plain(expression: str) -> Any:  # Any: as for ``_compiled``
    tree = parse(expression, whole=True)  # its error messages say more than those of RE2, and it knows more notations
    program = _compiled("".join(f"(?:{write(node)})" for node in (tree.before, tree.body) if node is not None))
    if program.programsize > MAX_PROGRAM:
        raise ConfigError(
            f"the pattern {excerpt(expression)} compiles to {program.programsize} instructions; {MAX_PROGRAM} are allowed"
        )
    return program


def occurs(expression: str, text: str) -> bool:
    """Whether the expression matches somewhere in a complete text."""
    return _plain(expression).search(text.encode("utf-8", "surrogatepass")) is not None
