"""A circuit breaker: an upstream that keeps failing is left alone for a while, then tried with one request."""

from __future__ import annotations

from typing import Literal

from .settings import BreakerSettings


class Breaker:
    def __init__(self, rest: BreakerSettings) -> None:
        self.rest = rest
        self._failed = 0
        self._opened = 0.0
        self._trying = False

    def state(self, now: float) -> Literal["closed", "open", "half_open"]:
        if self._failed < self.rest.failures:
            return "closed"
        return "half_open" if now - self._opened >= self.rest.seconds else "open"

    def allows(self, now: float) -> bool:
        """May a request go out? Half open lets one through."""
        match self.state(now):
            case "closed":
                return True
            case "open":
                return False
        if self._trying:
            return False
        self._trying = True
        return True

    def wait(self, now: float) -> float:
        """Seconds until it is tried again."""
        return max(0.0, self._opened + self.rest.seconds - now)

    def succeeded(self) -> None:
        self._failed = 0
        self._trying = False

    def failed(self, now: float) -> None:
        self._failed += 1
        self._trying = False
        if self._failed >= self.rest.failures:
            self._opened = now

    def released(self) -> None:
        """The request ended without telling anything about the upstream."""
        self._trying = False
