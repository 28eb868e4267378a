"""How the clients of Valkey connect. This module needs the package valkey."""

from __future__ import annotations

from valkey import exceptions
from valkey.asyncio.retry import Retry
from valkey.backoff import NoBackoff

CONNECT_ERRORS = (exceptions.ConnectionError, exceptions.TimeoutError, TimeoutError)
"""The client raises Python's own TimeoutError for a connection that takes too long."""


def connect_retry() -> Retry:
    """Connects once more: if this process stood still, the time was over before it could see the connection. Commands are not
    repeated."""
    return Retry(NoBackoff(), 1, supported_errors=CONNECT_ERRORS)  # type: ignore[arg-type]  # it is passed on to an except clause
