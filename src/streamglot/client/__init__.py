"""Asking upstreams from a program, without a gateway: the same routes, readers, retries and errors.

``Client`` is for ``async with`` and for plain ``with``; ``run_in_thread`` is for loops that must not wait.
"""

from .batch import Batch, BatchResult
from .client import Client
from .json_stream import JsonStream
from .stream import Stream
from .thread import Running, run_in_thread

__all__ = ["Batch", "BatchResult", "Client", "JsonStream", "Running", "Stream", "run_in_thread"]
