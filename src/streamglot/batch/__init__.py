"""Batches of requests: in memory, durable in the store, and the runner that all kinds of batches share.

``batcher.py`` decides which items are due, ``request_batch.py`` has the interfaces for threads and asyncio, ``runner.py`` runs
many items concurrently. ``queue.py`` and ``worker.py`` are durable batches on the store's database. docs/batches.md shows how
they are used.
"""

from .collector import AsyncBatcher, Batcher
from .request_batch import AsyncRequestBatch, HybridBatcher, RequestBatch, SizeBasedBatcher, TimeBasedBatcher
from .runner import RetryPolicy
from .streaming import stream_with_batching

__all__ = [
    "AsyncBatcher",
    "AsyncRequestBatch",
    "Batcher",
    "HybridBatcher",
    "RequestBatch",
    "RetryPolicy",
    "SizeBasedBatcher",
    "TimeBasedBatcher",
    "stream_with_batching",
]
