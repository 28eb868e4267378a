"""Many requests as one: batches in memory, and the runner that batches of every kind share.

``batcher.py`` decides what is due, ``request_batch.py`` has the shells for threads and asyncio, ``runner.py`` runs many items at
once. ``queue.py`` and ``worker.py`` are durable batches on the store's database. docs/batches.md shows how they are used.
"""

from .async_batcher import AsyncBatcher
from .batcher import Batcher
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
