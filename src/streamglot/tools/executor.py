"""Runs tools for the loop: finds them, asks for approval, and limits what they return."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from ..json_types import JsonObject, JsonValue
from .history import MixedTurns
from .questions import Offer
from .registry import ToolRegistry, by_model_name
from .settings import ToolLimits
from .tool import Tool, ToolError, ToolOutput

KEPT_CHARS: Final = 4 * 2**20
"""Characters of a result that the store keeps. Longer results are cut: they would fill its queue."""

APPROVAL_SECONDS: Final = 600.0
"""Seconds that a person has to approve a call. After that the call is refused."""

Approve = Callable[[Tool, Mapping[str, JsonValue]], Awaitable[bool]]


class ToolExecutor:
    """Lists and runs tools. If ``approve`` is given, it is asked before each call."""

    clock = staticmethod(time.monotonic)

    def __init__(self, registry: ToolRegistry, limits: ToolLimits | None = None, approve: Approve | None = None) -> None:
        self.registry = registry
        self.limits = limits or registry.config.limits
        self.approve = approve
        self.mixed = MixedTurns()
        self._running = 0
        self._used_at = self.clock()

    def idle_seconds(self, now: float) -> float:
        """How long no tool has been listed or run; 0 while one runs."""
        return 0.0 if self._running else now - self._used_at

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._used_at = self.clock()

    @property
    def approval_seconds(self) -> float:
        """Seconds that a person may take to approve a call. They do not count as time of the call."""
        return APPROVAL_SECONDS if self.approve is not None else 0.0

    async def offer(self, patterns: Sequence[str]) -> Offer:
        hosted = self.registry.config.hosted
        with self._in_use():
            tools, faults = await self.registry.select(patterns)
        return Offer(by_model_name(tools), faults, dict(hosted))

    async def run(self, tool: Tool, arguments: JsonObject) -> ToolOutput:
        with self._in_use():
            return await self._run(tool, arguments)

    async def _run(self, tool: Tool, arguments: JsonObject) -> ToolOutput:
        if self.approve is not None and not await self.approve(tool, arguments):
            raise ToolError(f"The user does not allow this call of {tool.name!r}. Go on without it.")
        try:
            async with asyncio.timeout(self.limits.seconds if self.approve is not None else None):
                output = await tool.run(arguments)
        except TimeoutError:
            if self.approve is None:
                raise
            raise ToolError(f"The tool {tool.name!r} did not finish within {self.limits.seconds:g} s and was stopped.") from None
        if len(output.text) > KEPT_CHARS:
            output.text = f"{output.text[:KEPT_CHARS]}\n[cut here: the result has {len(output.text)} characters]"
        return output
