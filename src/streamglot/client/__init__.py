"""The client library: calls upstreams from a program without a gateway, with the same routes, readers, retries and errors.

``Client`` works with ``async with`` and with plain ``with``. ``run_in_thread`` is for event loops that must not block.
"""

from .batch import Batch, BatchResult
from .client import Client, PlainClient
from .json_stream import JsonStream
from .stream import PlainStream, Stream
from .thread import Running, run_in_thread

__all__ = ["Batch", "BatchResult", "Client", "JsonStream", "PlainClient", "PlainStream", "Running", "Stream", "run_in_thread"]
