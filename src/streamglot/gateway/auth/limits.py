"""A slot for one request, within the limits of concurrent requests."""

from __future__ import annotations

from types import TracebackType

from ...upstream.routing.slots import ConcurrencyLimit
from .authenticator import Caller


class Slot:
    """An async context manager that holds one slot of the gateway and one of the caller's key."""

    __slots__ = ("_caller", "_limit")

    def __init__(self, limit: ConcurrencyLimit, caller: Caller | None) -> None:
        self._limit = limit
        self._caller = caller

    async def __aenter__(self) -> None:
        """Takes the slots. A waiting request already counts for its key, so that other requests of the key cannot overtake it."""
        if self._caller is not None:
            await self._caller.enter()
        if self._limit.take_now():
            return
        try:
            await self._limit.take()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._limit.give_back()
        self._leave()

    def _leave(self) -> None:
        if self._caller is not None:
            self._caller.leave()
