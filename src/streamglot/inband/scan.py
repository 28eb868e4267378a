"""Finds markers in a streamed text, and holds back only what may still become one.

A parser here is a generator: it reads from a ``Source`` and yields when it needs more text, so a grammar is written in the order
in which it is read, and the text may be split anywhere. ``rewind`` returns what was read since ``record``: so text that only
looked like a call becomes text again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache

Wait = Generator[None, None, None]
Sink = Callable[[str], None]

NAME_CHARS = 512
"""Maximum characters of a name, a key or a header."""

MAX_TRAIL_CHARS = 2**20
"""Characters that may be read without a result (an uncertain call, a value that must be complete). Beyond this they are text."""
MAX_HELD_CHARS = MAX_TRAIL_CHARS // 2
"""Characters of a call that is held because it may be quoted. It is read once more if it is not, so it must fit into a trail."""
MAX_SPACE_CHARS = 4096
"""Characters of white space that are skipped to find the word after it."""

SPECIAL_TOKENS = (
    "<bos>", "<eos>", "<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|end_of_text|>", "<|begin_of_text|>",
    "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<|eom_id|>", "<end_of_turn>", "<|end_of_role|>",
    "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<BOS_TOKEN>", "<EOS_TOKEN>",
)  # fmt: skip
"""Tokens that a server should have removed. Inside a notation they count as white space; in the text they are dropped where
they can be structure."""

END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom|>", "<|endoftext|>", "</s>", "<end_of_turn>")
"""Tokens that end an answer. At its end they are removed for every model."""

_TOKENS = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
_LONGEST_TOKEN = max(map(len, SPECIAL_TOKENS))
_SPACE = re.compile(r"\s*")


def nowhere(_: str) -> None:
    """A sink for text that is only read."""


class Malformed(Exception):
    """The text is not in this notation: what was read is text. ``rest`` is text that was read and not delivered, if a reader
    knows it better than the record of the source."""

    rest: str | None = None


class Unfinished(Malformed):
    """The text ended inside the notation."""


class Unrelated(Malformed):
    """Only the opener is text; a closer that follows does not belong to it."""


class Markers:
    """A set of markers: finds the next one, and whether the end of the text may be the beginning of one. ``folded``: those of them
    that count in any case; they are in lower case and begin with a bracket."""

    __slots__ = ("first", "folded", "longest", "pattern", "words")

    def __init__(self, words: Iterable[str], folded: Iterable[str] = ()) -> None:
        self.words = tuple(sorted(set(words), key=lambda word: (-len(word), word)))
        self.folded = tuple(folded)
        self.longest = max(map(len, self.words), default=0)
        forms = (f"(?i:{re.escape(word)})" if word in self.folded else re.escape(word) for word in self.words)
        self.pattern = re.compile("|".join(forms) or r"(?!)")
        heads = "".join(sorted({re.escape(word[0]) for word in self.words}))
        self.first = re.compile(f"[{heads}]" if heads else r"(?!)")

    def tail(self, text: str, position: int) -> int:
        """The position from which the text may become a marker; its length if it cannot."""
        size = len(text)
        for found in self.first.finditer(text, max(position, size - self.longest + 1)):
            rest = text[found.start() :]
            for word in self.words:
                if word.startswith(rest):
                    return found.start()
            if self.folded and any(word.startswith(rest.lower()) for word in self.folded):
                return found.start()
        return size

    def undecided(self, text: str, position: int) -> bool:
        """Whether the marker at this position could still become a longer one."""
        left = len(text) - position
        if left >= self.longest:
            return False
        rest = text[position:]
        return any(len(word) > left and word.startswith(rest) for word in self.words)


@lru_cache(maxsize=1024)
def markers_of(words: tuple[str, ...], folded: tuple[str, ...] = ()) -> Markers:
    """The set of these markers. Streams with the same format and tools share it."""
    return Markers(words, folded)


class Source:
    """The text that has arrived and was not read yet."""

    __slots__ = ("at", "closed", "cut", "half_word", "text", "trail", "trail_limit", "trail_size")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.closed = False
        self.cut = False
        """The model was stopped, or the stream broke: what is open at the end is incomplete."""
        self.half_word = ""
        """The beginning of an expected word with which the text ended."""
        self.trail: list[str] | None = None
        self.trail_size = 0
        self.trail_limit = MAX_TRAIL_CHARS

    @property
    def at_end(self) -> bool:
        """Whether the text has ended, and nothing of it is left except the beginning of a word that was expected here."""
        left = self.text[self.at :]
        return self.closed and (not left or (self.half_word != "" and left.lstrip() == self.half_word))

    def push(self, piece: str) -> None:
        self.text = self.text[self.at :] + piece if self.at < len(self.text) else piece
        self.at = 0

    def skip(self, position: int) -> None:
        """Marks everything before this position as read."""
        if self.trail is not None and position > self.at:
            self.trail.append(self.text[self.at : position])
            self.trail_size += position - self.at
            if self.trail_size > self.trail_limit:
                self.at = position
                raise Malformed("too much was read without a result")
        self.at = position

    def record(self, seed: str = "", whole: bool = False) -> None:
        """Begins to record what is read. ``whole``: up to the end, across checkpoints."""
        self.trail = [seed]
        self.trail_size = len(seed)
        self.trail_limit = MAX_HELD_CHARS if whole else MAX_TRAIL_CHARS

    def checkpoint(self) -> None:
        """Makes everything that was read so far final."""
        if self.trail and self.trail_limit == MAX_TRAIL_CHARS:
            self.trail.clear()
            self.trail_size = 0

    def rewind(self) -> str:
        """Stops recording and returns the recorded text."""
        trail = "".join(self.trail or ())
        self.trail = None
        return trail

    def give_back(self, text: str) -> None:
        """Puts text that was read back in front of the rest."""
        self.text = text + self.text[self.at :]
        self.at = 0
        left = len(text)
        while self.trail and left > 0:
            last = self.trail.pop()
            self.trail_size -= len(last)
            if len(last) > left:
                self.trail.append(last[: len(last) - left])
                self.trail_size += len(last) - left
            left -= len(last)

    # --- steps of a grammar

    def more(self) -> Wait:
        """Waits for text; raises Unfinished if none will come."""
        while self.at >= len(self.text):
            if self.closed:
                raise Unfinished("the text ended")
            yield

    def peek(self) -> Generator[None, None, str]:
        """The next character, "" at the end of the text."""
        while self.at >= len(self.text):
            if self.closed:
                return ""
            yield
        return self.text[self.at]

    def _blank(self) -> tuple[int, bool]:
        """Where white space and special tokens end, and whether a special token may still begin there."""
        text, end = self.text, self.at
        while True:
            found = _SPACE.match(text, end)
            end = found.end() if found is not None else end
            if not text.startswith("<", end):
                return end, False
            token = next((word for word in SPECIAL_TOKENS if text.startswith(word, end)), "")
            if not token:
                break
            end += len(token)
        rest = text[end : end + _LONGEST_TOKEN]
        return end, not self.closed and any(len(word) > len(rest) and word.startswith(rest) for word in SPECIAL_TOKENS)

    def spaces(self) -> Generator[None, None, str]:
        """Skips white space; returns the next character, "" at the end of the text."""
        while True:
            end, undecided = self._blank()
            if end > self.at:
                self.skip(end)
            if self.at < len(self.text) and not undecided:
                return self.text[self.at]
            if self.closed:
                return ""
            yield

    def run(self, char: str) -> Generator[None, None, int]:
        """Reads repetitions of this character and returns their number."""
        size = 0
        while True:
            end = self.at
            while self.text.startswith(char, end):
                end += 1
            size += end - self.at
            self.skip(end)
            if end < len(self.text) or self.closed:
                return size
            yield

    def literal(self, words: Iterable[str]) -> Generator[None, None, str]:
        """Reads the longest of these words that the text continues with; returns "" if there is none."""
        while True:
            rest = len(self.text) - self.at
            best = ""
            pending = False
            for word in words:
                if self.text.startswith(word, self.at):
                    if len(word) > len(best):
                        best = word
                elif len(word) > rest and word.startswith(self.text[self.at :]):
                    pending = True
            if not pending or self.closed:
                if pending:
                    self.half_word = self.text[self.at :]
                if best:
                    self.skip(self.at + len(best))
                return best
            yield

    def spaced(self, words: Iterable[str]) -> Generator[None, None, str]:
        """Reads one of these words after white space. The white space is read only together with the word."""
        return (yield from self.behind_space(words))[1]

    def behind_space(self, words: Iterable[str]) -> Generator[None, None, tuple[str, str]]:
        """The same, with the white space before the word."""
        words = tuple(words)
        while True:
            start, undecided = self._blank()
            rest = self.text[start : start + NAME_CHARS]
            if start - self.at > MAX_SPACE_CHARS:
                return "", ""
            best = ""
            pending = undecided or not rest
            for word in words:
                if rest.startswith(word):
                    if len(word) > len(best):
                        best = word
                elif len(word) > len(rest) and word.startswith(rest):
                    pending = True
            if not pending or self.closed:
                if pending:
                    self.half_word = rest
                if not best:
                    return "", ""
                space = self.text[self.at : start]
                self.skip(start + len(best))
                return space, best
            yield

    def ahead(self, words: Iterable[str], or_end: bool = True) -> Generator[None, None, bool]:
        """Whether one of these words or (``or_end``) the end of the text follows, after white space. Reads nothing."""
        words = tuple(words)
        while True:
            start, undecided = self._blank()
            rest = self.text[start : start + NAME_CHARS]
            if start - self.at > MAX_SPACE_CHARS:
                return False
            if rest.startswith(words) or (or_end and not rest and self.closed):
                return True
            if self.closed or (rest and not undecided and not any(word.startswith(rest) for word in words)):
                return False
            yield

    def follows(self, words: tuple[str, ...]) -> Generator[None, None, bool]:
        """Whether the text continues with one of these words. Reads nothing."""
        while True:
            rest = self.text[self.at : self.at + NAME_CHARS]
            if rest.startswith(words):
                return True
            if self.closed or not any(word.startswith(rest) for word in words):
                return False
            yield

    def upto(
        self, markers: Markers, max_chars: int = NAME_CHARS, *, or_end: bool = False
    ) -> Generator[None, None, tuple[str, str]]:
        """Reads the text up to the next marker, and the marker; returns both. Raises Malformed if it is too long or there is no
        marker. ``or_end``: the end of the text counts as a marker, unless the model was stopped; it is returned as "".
        Special tokens in the text are left out."""
        parts: list[str] = []
        size = 0

        def note(part: str) -> None:
            nonlocal size
            parts.append(part)
            size += len(part)
            if size > max_chars:
                raise Malformed(f"no {markers.words[0]!r} within {max_chars} characters")

        marker = yield from self.stream(markers, note)
        if not marker and (self.cut or not or_end):
            raise Unfinished(f"the text ended before {markers.words[0]!r}")
        return _TOKENS.sub("", "".join(parts)), marker

    def stream(self, markers: Markers, sink: Sink) -> Generator[None, None, str]:
        """Passes on the text as it arrives, up to the next marker, which is read and returned; "" at the end of the text."""
        pattern = markers.pattern
        while True:
            text, at = self.text, self.at
            found = pattern.search(text, at)
            if found is not None and (self.closed or not markers.undecided(text, found.start())):
                if found.start() > at:
                    self.skip(found.start())
                    sink(text[at : found.start()])
                self.skip(found.end())
                return found[0]
            if self.closed:
                end = len(text)
            else:
                end = markers.tail(text, at) if found is None else found.start()
            if end > at:
                self.skip(end)
                sink(text[at:end])
            if self.closed:
                return ""
            yield
