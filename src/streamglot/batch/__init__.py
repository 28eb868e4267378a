"""Batches of requests: in memory, durable in the store, and the runner that all kinds of batches share.

``collector`` decides which items are due, ``request_batch`` has the interfaces for threads and asyncio, ``runner`` runs many
items concurrently. ``durable`` has the batches that survive the process. docs/batches.md shows how they are used.
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
