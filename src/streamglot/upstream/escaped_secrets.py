r"""Finds secrets that are written with JSON's ``\uXXXX`` escapes.

A JSON encoder may write any character as an escape, in upper or lower case; some always write ``+`` as ``\u002B``. The escape
has two backslashes in JSON inside a JSON string, such as the arguments of a tool call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

ESCAPE: Final = b"\\u00"
"""Every secret that is found here contains it, because keys and headers have no characters beyond U+00FF. A text without it need
not be searched."""
BACKSLASH: Final = ESCAPE[0]
"""The search for one byte is much faster, so it comes first."""
MAX_BACKSLASHES: Final = 2
"""Backslashes of one escape: one in a JSON string, two in JSON inside a JSON string."""
MAX_ESCAPED_CHARS: Final = 200
"""Characters of a secret's beginning that are searched for. Compiling more takes long, and a client may choose the key that is
passed on. The longest keys of providers have 170; without its beginning, a longer token is of no use."""
_TOKEN: Final = re.compile(rb"(\\\\?u)00[0-9A-Fa-f]{2}|.", re.DOTALL)


class _Character:
    """One character of a secret: its bytes where it is not escaped, and its escapes in lower case."""

    def __init__(self, character: str, plain: bytes) -> None:
        self.plain = plain
        self._escapes: list[bytes] = []
        self.pattern = re.escape(plain)
        if ord(character) <= 0xFF:
            code = b"u%04x" % ord(character)
            self._escapes = [b"\\" * count + code for count in range(1, MAX_BACKSLASHES + 1)]
            either_case = b"".join(b"[%c%c]" % (digit, digit - 32) if digit >= ord("a") else b"%c" % digit for digit in code[1:])
            self.pattern = rb"(?:%s|\\\\?u%s)" % (self.pattern, either_case)
        self.size = max(map(len, (plain, *self._escapes)))

    def ends(self, data: bytes, place: int) -> list[int]:
        """Where the character ends if it begins at this place; beyond the end of the data if it is incomplete."""
        found = []
        for spelling in (self.plain, *self._escapes):
            piece = data[place : place + len(spelling)]
            if spelling.startswith(piece if spelling is self.plain else piece.lower()):
                found.append(place + len(spelling))
        return found


class EscapedSecret:
    """A secret of which each character is written as itself or as an escape. ``spelled`` has each character, and its bytes where
    it is not escaped."""

    def __init__(self, spelled: Iterable[tuple[str, bytes]], least: int) -> None:
        """``least`` is how many characters of its beginning are hidden too, if a message ends inside the secret."""
        self._characters = [_Character(character, plain) for character, plain in spelled]
        self._least = least
        self.pattern = b"".join(character.pattern for character in self._characters)
        self._whole = re.compile(self.pattern)
        self._beginning = re.compile(b"".join(character.pattern for character in self._characters[:least]))
        self._starts = re.compile(b"[%s]" % re.escape(self._characters[0].plain[:1] + b"\\"))
        self.size = sum(character.size for character in self._characters)
        """Bytes of the longest way to write the secret. A mask holds back fewer for it."""

    def hidden(self, data: bytes, dots: bytes) -> bytes:
        """The data with each occurrence, or a long beginning of one, replaced by dots."""
        pieces, done = [], 0
        while (found := self._beginning.search(data, done)) is not None:
            end = found.end()
            for character in self._characters[self._least :]:
                ends = [one for one in character.ends(data, end) if one <= len(data)]
                if not ends:
                    break
                end = max(ends)
            pieces += [data[done : found.start()], dots]
            done = end
        return b"".join([*pieces, data[done:]])

    def around(self, data: bytes, cut: int) -> int:
        """Where an occurrence begins that reaches over this place; -1 if there is none."""
        found = self._whole.search(data, max(0, cut - self.size + 1))
        while found is not None and found.start() < cut:
            if found.end() > cut:
                return found.start()
            found = self._whole.search(data, found.start() + 1)
        return -1

    def overlap(self, data: bytes) -> int:
        """How many bytes at the end of the data are an incomplete beginning of the secret."""
        end = data[-self.size + 1 :]
        for start in self._starts.finditer(end):
            if self._is_incomplete(end, start.start()):
                return len(end) - start.start()
        return 0

    def _is_incomplete(self, data: bytes, start: int) -> bool:
        """Whether the data from here on is a beginning of the secret. There are several places at a time if the secret itself
        contains backslashes."""
        places = {start}
        for character in self._characters:
            if len(data) in places:
                return True
            places = {end for place in places for end in character.ends(data, place)}
            if any(place > len(data) for place in places):
                return True
            if not places:
                return False
        return False


class EscapedSecrets:
    """Several secrets, each in the forms in which JSON is written: with its short escapes or without, and with an escaped slash
    or without. ``least`` is as in ``EscapedSecret``."""

    def __init__(self, secrets: Iterable[str], least: int) -> None:
        found: dict[bytes, list[tuple[str, bytes]]] = {}
        for secret in (whole[:MAX_ESCAPED_CHARS] for whole in secrets):
            for written in (list(secret), [json.dumps(character)[1:-1] for character in secret]):
                for slash in ("/", "\\/"):
                    form = [slash if one == "/" else one for one in written]
                    if "\n" not in form:
                        found["".join(form).encode()] = [(one, text.encode()) for one, text in zip(secret, form, strict=True)]
        self.forms = [EscapedSecret(found[form], least) for form in sorted(found, key=len, reverse=True)]
        self._any = re.compile(b"|".join(form.pattern for form in self.forms))

    def masked(self, data: bytes) -> bytes:
        """The data with each occurrence replaced by as many bytes, which are valid JSON after any number of backslashes: an
        escape becomes the escape of a star. One search finds all forms, because a second one would search those escapes too."""
        return self._any.sub(lambda found: _TOKEN.sub(_star, found[0]), data)


def _star(token: re.Match[bytes]) -> bytes:
    return token[1] + b"002a" if token[1] else b"*"


@lru_cache(maxsize=256)
def escaped_secrets(secrets: tuple[str, ...], least: int) -> EscapedSecrets:
    """The cache is for the secrets of upstreams, because compiling is slow."""
    return EscapedSecrets(secrets, least)
