"""Batches: a large file is not held in memory, and a bad line stops no other."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from batch_durable.queued import line, queued
from store.turns import asynchronous
from streamglot.batch.durable.importer import CHUNK_BYTES

LINE_BYTES = 200_000
LINES = 240
"""48 MB in all: six times the bytes of one transaction."""


def _lines() -> Iterator[bytes]:
    for number in range(LINES):
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * LINE_BYTES}]}
        yield b"nonsense" if number % 60 == 7 else line(number, body=body)


@asynchronous
async def test_a_large_file_is_read_in_parts_and_bad_lines_are_set_apart(tmp_path: Path) -> None:
    """vllm#30268: the whole file was in memory. ray#59194: one bad row ended the job."""
    async with queued(f"sqlite:///{tmp_path}/batches.db", tmp_path, line_bytes=2 * LINE_BYTES) as one:
        batch = await one.add(_lines())
        claimed = await one.importer.claim()
        assert claimed is not None
        tracemalloc.start()
        try:
            await one.importer.run(claimed)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 3 * CHUNK_BYTES, "the file was held in memory"
        found = await one.now(batch)
        assert (found.status, found.total) == ("in_progress", LINES)
        assert [fault.line for fault in found.errors] == [8, 68, 128, 188]
