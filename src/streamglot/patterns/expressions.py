"""Expressions compiled with re2: the search for matches, and the search for the place from which to hold.

re2 is linear in the text for every expression. Matches are leftmost-longest, so a match does not depend on the order of
alternatives and, once no longer one is possible, does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError, excerpt
from .prefixes import prefixes
from .syntax import Expression, parse, write

if TYPE_CHECKING:
    from types import ModuleType

MAX_PROGRAM: Final = 20_000
"""Instructions of one compiled pattern. Counted repeats such as ``{1,500}`` multiply them, and with them the time per
character."""
MEMORY_BYTES: Final = 32 * 2**20
"""What re2 may use for the automaton of one expression before it falls back to a slower, still linear one."""


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


class Search:
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
def compiled(expression: str) -> Search:
    """The search for one pattern, compiled once."""
    return Search([parse(expression)])


@lru_cache(512)
def compiled_union(expressions: tuple[str, ...]) -> Search | None:
    """One search for all of these that have no lookbehind; None if there is none."""
    plain = [tree for tree in map(parse, expressions) if tree.before is None]
    return Search(plain) if plain else None


@lru_cache(4096)
def _plain(expression: str) -> Any:  # Any: as for ``_compiled``
    parse(expression, may_be_empty=True)  # its error messages say more than those of re2
    return _compiled(expression.replace("\\Z", "\\z"))


def occurs(expression: str, text: str) -> bool:
    """Whether the expression matches somewhere in a complete text."""
    return _plain(expression).search(text.encode("utf-8", "surrogatepass")) is not None
