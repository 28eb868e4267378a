"""Removes secrets from texts that others see. Upstreams repeat keys in their errors, and people paste them.

A JSON encoder may write any character of a secret as an escape ``\\uXXXX``, in upper or lower case; some always write ``+`` as
``\\u002B``. The escape has two backslashes in JSON inside a JSON string, such as the arguments of a tool call. The frames of AWS
event streams have checksums and may contain their payload as base64, so they have a mask of their own.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import SplitResult, quote, quote_plus, unquote, unquote_plus, urlsplit

from ..framing.aws_eventstream import MIN_BYTES, with_checksum
from ..json_types import JsonValue
from ..limits import DEFAULT_LIMITS

HIDDEN: Final = "••••"
MIN_SECRET_CHARS: Final = 6
"""Minimum characters of a secret. Shorter ones are placeholders such as "none", which occur in ordinary words."""
MIN_LIVE_CHARS: Final = 20
"""Minimum characters of a secret that is masked in answers. Keys of providers have 30 and more. Placeholders such as "ollama" and
short passwords are words that an answer may contain."""
PREFIX_CHARS: Final = 12
"""Characters of a secret's beginning that are hidden too, because a truncated message may end inside a secret."""
MAX_CHARS: Final = 2**16
"""Characters of all texts in one JSON value. The detail of a longer error is dropped."""
MAX_DEPTH: Final = 64
"""Maximum nesting of a value whose texts are searched."""
PUBLIC_QUERY: Final = frozenset(("alt", "api-version", "api_version", "version"))
"""URL parameters that are never secret. Any other may be."""
MIN_PATH_CHARS: Final = 16
"""Minimum characters of a secret in the path of a URL, without a separator between them. Words of paths are shorter."""
_RUN: Final = re.compile(f"[A-Za-z0-9]{{{MIN_PATH_CHARS},}}")
_SAME_KIND: Final = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
_LOOKS_LIKE_A_KEY: Final = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|csk|fw|nvapi|r8|ghp|gho|glpat|xox[abps])[-_][A-Za-z0-9_\-]{16,}\b"
    r"|\bAIza[A-Za-z0-9_\-]{30,}\b|\bAKIA[A-Z0-9]{16}\b|\beyJ[A-Za-z0-9_\-]{10,400}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]+"
)


def hide(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, and without anything that looks like a key."""
    escaped = "\\u00" in text
    for secret in secrets:
        if len(secret) >= MIN_SECRET_CHARS:
            text = _without(text, secret)
            if escaped:
                text = _without_escaped(text, secret)
    return _LOOKS_LIKE_A_KEY.sub(HIDDEN, text)


def hide_in(value: object, secrets: Iterable[str] = ()) -> JsonValue:
    """The same for all texts of a JSON value. None if the value is too large or nested too deep."""
    known = [secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS]
    room = MAX_CHARS

    def walk(inner: object, depth: int) -> JsonValue:
        nonlocal room
        if isinstance(inner, str):
            room -= len(inner)
            if room < 0:
                raise _TooLarge
            return hide(inner, known)
        if not isinstance(inner, (dict, list, tuple)):
            return inner
        if depth > MAX_DEPTH:
            raise _TooLarge
        if isinstance(inner, dict):
            return {walk(name, depth + 1): walk(element, depth + 1) for name, element in inner.items()}
        return [walk(element, depth + 1) for element in inner]

    try:
        return walk(value, 0)
    except _TooLarge:
        return None


class _TooLarge(Exception):
    """The value exceeds the limits of the search."""


def _without(text: str, secret: str) -> str:
    """The text with every occurrence of the secret, or of a long beginning of it, hidden."""
    beginning = secret[:PREFIX_CHARS]
    place = text.find(beginning)
    if place < 0:
        return text
    pieces, done = [], 0
    while place >= 0:
        end = place + len(beginning)
        while end < len(text) and end - place < len(secret) and text[end] == secret[end - place]:
            end += 1
        pieces += [text[done:place], HIDDEN]
        done = end
        place = text.find(beginning, done)
    return "".join([*pieces, text[done:]])


def _without_escaped(text: str, secret: str) -> str:
    """The same for the secret with escapes, as in the excerpt of an answer that is not understood."""
    data = text.encode("utf-8", "surrogatepass")
    for form in escaped_secrets((secret,), PREFIX_CHARS).forms:
        data = form.hidden(data, HIDDEN.encode())
    return data.decode("utf-8", "surrogatepass")


LINE_END: Final = 10
"""The last byte of most reads. No secret contains it."""
_RARE_FIRST: Final = b"QZXJKVYWUGHBFPNMDRLCOSEATIzqxjkvyw9786543210"
"""Bytes that are rare in answers as they are sent, the rarest first. All others are more frequent."""


def is_unmistakable(secret: str) -> bool:
    """Whether a text that contains this secret contains it for no other reason: it is long, and has letters and digits."""
    return len(secret) >= MIN_LIVE_CHARS and any(map(str.isdigit, secret)) and any(map(str.isalpha, secret))


class SecretMask:
    """A box from bytes to the same bytes with these secrets masked. A secret may be split over chunks, so bytes that may be the
    beginning of one are held back until the next chunk decides. A secret is masked as it is, as JSON writes it, and with any of
    its characters as an escape."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._known = _known(tuple(secrets))
        self._secrets = _forms(self._known)
        self.held = b""
        self.mark = _mark(self._secrets)
        """A byte that every secret has and other text seldom. A chunk without it and without ``ESCAPE`` that ends a line may be
        left out, if nothing is held back: that test costs a third of ``feed``."""

    def feed(self, chunk: bytes) -> bytes:
        data = self.held + chunk if self.held else chunk
        if data[-1:] == b"\n" or not self._secrets:  # no secret begins like this: a secret has no line end
            self.held = b""
            return self._replaced(data)
        cut = self._cut(data)
        self.held = data[cut:]
        return self._replaced(data[:cut])

    def close(self) -> bytes:
        held, self.held = self.held, b""
        return self._replaced(held)

    def _cut(self, data: bytes) -> int:
        """Where the bytes begin that must wait: at an incomplete secret, or at a complete one that reaches into it."""
        # An incomplete secret without the beginning of an escape is found as it is.
        escaped = self._escaped().forms if BACKSLASH in data and (BACKSLASH in data[-len(ESCAPE) :] or ESCAPE in data) else ()
        cut = len(data) - max(_overlap(data, secret) for secret in self._secrets)
        for one in escaped:
            cut = min(cut, len(data) - one.overlap(data))
        moved = cut < len(data)
        while moved:
            moved = False
            for secret in self._secrets:
                place = data.find(secret, max(0, cut - len(secret) + 1), cut + len(secret) - 1)
                if 0 <= place < cut:
                    cut, moved = place, True
            for one in escaped:
                place = one.around(data, cut)
                if place >= 0:
                    cut, moved = place, True
        return cut

    def _replaced(self, data: bytes) -> bytes:
        """The data with each complete secret replaced by as many bytes, because the framing of the bytes counts them."""
        for secret in self._secrets:
            if secret in data:
                data = data.replace(secret, b"*" * len(secret))
        if BACKSLASH in data and ESCAPE in data and self._known:
            data = self._escaped().masked(data)
        return data

    def _escaped(self) -> EscapedSecrets:
        return escaped_secrets(self._known, PREFIX_CHARS)


@lru_cache(maxsize=256)
def _known(secrets: tuple[str, ...]) -> tuple[str, ...]:
    """The secrets that are long enough, each once. The cache is for the secrets of upstreams, which each request needs."""
    return tuple(dict.fromkeys(secret.strip() for secret in secrets if len(secret.strip()) >= MIN_SECRET_CHARS))


@lru_cache(maxsize=256)
def _forms(secrets: tuple[str, ...]) -> tuple[bytes, ...]:
    """The bytes to search for, the longest first."""
    written = {form for secret in secrets for form in (secret, json.dumps(secret)[1:-1])}
    forms = written | {form.replace("/", "\\/") for form in written}  # some servers escape the slash too
    return tuple(sorted((form.encode() for form in forms if "\n" not in form), key=len, reverse=True))


@lru_cache(maxsize=256)
def _mark(secrets: tuple[bytes, ...]) -> int:
    """The rarest byte that is in all of these; a line end, which ends every chunk, if they have none in common."""
    common = set.intersection(*map(set, secrets)) if secrets else set()
    return min(common, key=_by_rarity, default=LINE_END)


def _by_rarity(byte: int) -> int:
    place = _RARE_FIRST.find(byte)
    return place if place >= 0 else len(_RARE_FIRST)


def _overlap(data: bytes, secret: bytes) -> int:
    """How many bytes at the end of the data are an incomplete beginning of the secret."""
    end = data[-len(secret) + 1 :]
    place = end.find(secret[0])
    while place >= 0:
        if secret.startswith(end[place:]):
            return len(end) - place
        place = end.find(secret[0], place + 1)
    return 0


# --- URLs


def shown_url(url: str) -> str:
    """The URL without its secrets: user, password, the values of parameters, and parts of the path that look random."""
    split = _split(url)
    if split is None or (split.scheme != "file" and "://" not in url and "@" in split.path):
        address = url.partition("?")[0]
        before, at, behind = address.rpartition("@")
        scheme, mark, _ = before.partition("://")
        return f"{scheme + mark if mark else ''}{HIDDEN}@{behind}" if at else behind
    user_info, _, host = split.netloc.rpartition("@")
    path = split.path
    if split.scheme in ("http", "https"):
        path = "/".join(HIDDEN if looks_random(unquote(part)) else part for part in path.split("/"))
    if not user_info and not split.query and path == split.path:
        return url
    query = "&".join(map(_shown_parameter, split.query.split("&"))) if split.query else ""
    shown = f"{HIDDEN}@{host}" if user_info else host
    return f"{split.scheme}://{shown}{path}{f'?{query}' if query else ''}"


def secrets_in_url(url: str, *, is_secret_part: Callable[[str], bool] | None = None) -> Iterator[str]:
    """The secrets of a URL: user, password, parameter values, and parts of the path that look random, both as written and as
    sent. ``is_secret_part``: another rule for the parts of the path."""
    is_secret_part = is_secret_part or looks_random
    split = _split(url)
    if split is None:
        yield url.rpartition("@")[0].partition("://")[2]
        return
    user_info = split.netloc.rpartition("@")[0]
    if user_info:
        user, _, password = user_info.partition(":")
        yield user_info
        yield basic_authorization(url).partition(" ")[2]
        for part in (password, user):
            yield part
            yield unquote(part)
    if split.scheme in ("http", "https"):
        for part in split.path.split("/"):
            if is_secret_part(unquote(part)):
                yield from (part, unquote(part))
    for parameter in split.query.split("&"):
        name, mark, written = parameter.partition("=")
        if not mark:
            yield name  # a value without a name
        elif unquote_plus(name) not in PUBLIC_QUERY:
            value = unquote_plus(written)
            yield from (written, value, quote(value), quote(value, safe=""), quote_plus(value))


def looks_random(part: str) -> bool:
    """Whether a part of a path looks like a key and not like a name: it has the prefix of a key, or a run of letters and digits
    that is hexadecimal or often changes between capitals, small letters and digits: at four of ten characters, or at three if
    its letters are all small or all capitals, because names in camel case change more often. Separators end a run, so
    ``my-deployment-2024-08-06`` and a UUID are names."""
    for run in _RUN.findall(part):
        if any(map(str.isdigit, run)) and any(map(str.isalpha, run)):
            changes = len(_SAME_KIND.findall(run)) - 1
            enough = 3 if run in (run.lower(), run.upper()) else 4
            if 10 * changes >= enough * (len(run) - 1):
                return True
    return has_form_of_key(part)


def has_form_of_key(part: str) -> bool:
    """Whether a part of a path is certainly no name: it has the prefix of a key, or a long hexadecimal run. Only such parts are
    masked in answers, where names of models and projects must stay."""
    runs = (run for run in _RUN.findall(part) if not run.isdigit() and not run.isalpha())
    return any(not run.lower().strip("0123456789abcdef") for run in runs) or _LOOKS_LIKE_A_KEY.search(part) is not None


def basic_authorization(url: str) -> str:
    """The ``authorization`` header for the user and password in a URL; empty if there are none."""
    split = _split(url)
    user_info = split.netloc.rpartition("@")[0] if split is not None else ""
    if not user_info:
        return ""
    user, _, password = user_info.partition(":")
    return f"Basic {base64.b64encode(f'{unquote(user)}:{unquote(password)}'.encode()).decode()}"


def _shown_parameter(parameter: str) -> str:
    name, mark, value = parameter.partition("=")
    if not mark:
        return HIDDEN  # a value without a name
    return f"{name}={value if unquote_plus(name) in PUBLIC_QUERY else HIDDEN}"


def _split(url: str) -> SplitResult | None:
    """The parsed URL; None if it cannot be parsed, as with a slash in its password."""
    try:
        split = urlsplit(url)
        _ = split.port
    except ValueError:
        return None
    return split


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


MEDIA_TYPE: Final = "application/vnd.amazon.eventstream"
_LENGTH: Final = struct.Struct(">I")
_CHECKSUM_BYTES: Final = 4
_MAX_BYTES: Final = DEFAULT_LIMITS.event_bytes
"""Bytes of a frame that is held until it is complete: as many as the reader of the frames accepts."""
_BASE64: Final = re.compile(rb'"bytes"\s*:\s*"([A-Za-z0-9+/]*={0,2})')


def mask_for(secrets: Iterable[str], headers: Mapping[str, str]) -> SecretMask:
    """The mask for an answer with these headers."""
    return (FrameMask if headers.get("content-type", "").lower().startswith(MEDIA_TYPE) else SecretMask)(secrets)


class FrameMask(SecretMask):
    """A box from the bytes of an AWS event stream to the same frames with these secrets masked. A frame is returned once it is
    complete, because its checksum is at its end. Bytes that are not frames are masked as other text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__(secrets)
        self._text_mark, self.mark = self.mark, 0  # the first byte of every frame that is shorter than 16 MiB
        self._framed = bool(self._secrets)
        self._frames = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        if not self._framed:
            return super().feed(chunk)
        self._frames += chunk
        done: list[bytes] = []
        place = 0
        while len(self._frames) - place >= _LENGTH.size:
            [size] = _LENGTH.unpack_from(self._frames, place)
            if not MIN_BYTES <= size <= _MAX_BYTES:  # the reader of the frames reports it
                self._framed, self.mark = False, self._text_mark
                rest = bytes(self._frames[place:])
                self._frames.clear()
                self.held = b""
                return b"".join(done) + super().feed(rest)
            if len(self._frames) - place < size:
                break
            done.append(self._masked(bytes(self._frames[place : place + size])))
            place += size
        del self._frames[:place]
        self.held = bytes(self._frames[:1])  # tells the owner that bytes are held back
        return b"".join(done)

    def close(self) -> bytes:
        if not self._framed:
            return super().close()
        rest = self._without(bytes(self._frames))
        self._frames.clear()
        self.held = b""
        return rest

    def _masked(self, frame: bytes) -> bytes:
        masked = self._without(frame)
        if masked == frame:
            return frame
        if with_checksum(frame[:-_CHECKSUM_BYTES]) == frame:  # a wrong checksum stays wrong
            masked = with_checksum(masked[:-_CHECKSUM_BYTES])
        return masked

    def _without(self, data: bytes) -> bytes:
        data = self._replaced(data)
        found = _BASE64.search(data)
        if found is not None:
            start, end = found.span(1)
            end -= (end - start) % 4  # a frame that was cut may end inside a group
            inner = b64decode(data[start:end])
            masked = self._replaced(inner)
            if masked != inner:
                data = data[:start] + b64encode(masked) + data[end:]
        return data
