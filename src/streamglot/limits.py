"""The limits of the pure half: every buffer has one, with its unit and reason."""

from __future__ import annotations

from msgspec import Struct

from .errors import LimitExceeded

MAX_LINE_BYTES = 64 * 2**20
"""Bytes of one line. An inline image of 40 MB in base64 passes; an endless line does not fill the memory."""
MAX_EVENT_BYTES = 64 * 2**20
"""Bytes of all data lines of one event, for the same reason."""
MAX_EVENT_LINES = 100_000
"""Lines of one event: more are an attack."""
MAX_RESPONSE_BYTES = 2**30
"""Bytes of a whole response on the wire: some hundred times the longest answer of a model."""
MAX_BLOCK_CHARS = 64 * 2**20
"""Characters of one text, one reasoning block, or the arguments of one call, with its opaque state (signatures, encrypted reasoning).
Runaway reasoning has reached 2.5 GB elsewhere."""
MAX_BLOCKS = 20_000
"""Blocks of one response: ten times the largest number of parallel calls ever seen."""
MAX_CITATIONS = 20_000
"""Citations of one answer: a hundred times what an answer of a search engine has. Each one is kept with the provider's own form."""
MAX_CHOICES = 128
"""Answers to one request: the most that any provider allows."""
MAX_HELD_BLOCKS = 4096
"""Interleaved blocks that wait for the previous one to end."""
MAX_HELD_CHARS = 64 * 2**20
"""Characters of those waiting blocks together."""
MAX_EXTRA_BYTES = 128 * 2**20
"""Bytes of JSON that one response has besides its blocks: log probabilities, metadata, sources, results of the provider's tools. The
log probabilities of 50,000 tokens fit, each with 20 alternatives. In memory such data takes about five times as much."""
MAX_MEDIA_CHARS = 256 * 2**20
"""Characters of all media of one response, mostly base64: four of the largest that fit into a line."""


class Limits(Struct, frozen=True):
    """The limits of one stream. The error code of each is ``limit_`` and its name. docs/limits.md has the reasons.

    Bytes of a line (``line_bytes``), of an event (``event_bytes``, in ``event_lines`` lines) and of the whole response (``response_bytes``);
    characters of a block (``block_chars``); the number of ``blocks``, ``citations`` and ``choices``; blocks and characters that wait for another
    block to end (``held_blocks``, ``held_chars``); bytes beside the blocks (``extra_bytes``), and characters of media (``media_chars``)."""

    line_bytes: int = MAX_LINE_BYTES
    event_bytes: int = MAX_EVENT_BYTES
    event_lines: int = MAX_EVENT_LINES
    response_bytes: int = MAX_RESPONSE_BYTES
    block_chars: int = MAX_BLOCK_CHARS
    blocks: int = MAX_BLOCKS
    citations: int = MAX_CITATIONS
    choices: int = MAX_CHOICES
    held_blocks: int = MAX_HELD_BLOCKS
    held_chars: int = MAX_HELD_CHARS
    extra_bytes: int = MAX_EXTRA_BYTES
    media_chars: int = MAX_MEDIA_CHARS

    def exceeded(self, name: str) -> LimitExceeded:
        """The error about the limit of this name."""
        limit = getattr(self, name)
        return LimitExceeded(
            f"the upstream's stream exceeds the limit {name} = {limit}; raise it if such a large answer is intended",
            code=f"limit_{name}",
        )


DEFAULT_LIMITS = Limits()
