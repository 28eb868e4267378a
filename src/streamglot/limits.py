"""How much may wait, and how much may come: every buffer of the pure half has its limit here, with its reason."""

from __future__ import annotations

from msgspec import Struct

from .errors import LimitExceeded

MAX_LINE_BYTES = 64 * 2**20
"""One line. An inline image of 40 MB in base64 still passes; a line without an end does not fill the memory."""
MAX_EVENT_BYTES = 64 * 2**20
"""All data lines of one event together, for the same reason."""
MAX_EVENT_LINES = 100_000
"""Lines of one event: more is an attack, not an answer."""
MAX_RESPONSE_BYTES = 2**30
"""A whole response on the wire: some hundred times the longest answer that a model can write."""
MAX_BLOCK_CHARS = 64 * 2**20
"""One text, one chain of thought, the arguments of one call. Reasoning that ran away has reached 2.5 GB elsewhere."""
MAX_BLOCKS = 20_000
"""Blocks of one response: ten times the most parallel calls that were ever seen asked for."""
MAX_CHOICES = 128
"""Answers to one request: the most that any provider lets a client ask for."""
MAX_HELD_BLOCKS = 4096
"""Interleaved blocks that wait for the one before them to end."""
MAX_HELD_CHARS = 64 * 2**20
"""What those blocks hold together."""


class Limits(Struct, frozen=True):
    """The limits of one stream. Each has an error code of its own: ``limit_`` and its name."""

    line_bytes: int = MAX_LINE_BYTES
    event_bytes: int = MAX_EVENT_BYTES
    event_lines: int = MAX_EVENT_LINES
    response_bytes: int = MAX_RESPONSE_BYTES
    block_chars: int = MAX_BLOCK_CHARS
    blocks: int = MAX_BLOCKS
    choices: int = MAX_CHOICES
    held_blocks: int = MAX_HELD_BLOCKS
    held_chars: int = MAX_HELD_CHARS

    def exceeded(self, name: str) -> LimitExceeded:
        most = getattr(self, name)
        return LimitExceeded(
            f"the upstream's stream passes the limit {name} = {most}; raise it if an answer of that size is meant",
            code=f"limit_{name}",
        )


DEFAULT_LIMITS = Limits()
