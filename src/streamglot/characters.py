"""Makes untrusted text harmless for its reader: at a terminal, in a page, in a table row."""

from __future__ import annotations

from typing import Final

_LINE_BREAKS: Final = {ord("\n"): "\n", ord("\t"): "\t"}
_CONTROLS: Final = {
    **{code: chr(0x2400 + code) for code in range(0x20)},  # the symbols for control characters
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    **dict.fromkeys((0x2028, 0x2029), "\n"),
    # controls of the writing direction
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C), "\ufffd"),
    **_LINE_BREAKS,
}


def neutral(text: str) -> str:
    """The text with every control character made visible: no escape sequence survives. Characters are replaced one by one, so
    the result does not depend on how a stream is split."""
    return text.translate(_CONTROLS)


def one_line(text: str) -> str:
    return " ".join(neutral(text).split())
