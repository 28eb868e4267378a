"""A circuit breaker: an upstream that fails repeatedly gets no requests for a while, then one trial request."""

from __future__ import annotations

from typing import Literal

from .settings import BreakerSettings


class Breaker:
    def __init__(self, settings: BreakerSettings) -> None:
        self.settings = settings
        self._failed = 0
        self._opened = 0.0
        self._trying = False

    def state(self, now: float) -> Literal["closed", "open", "half_open"]:
        if self._failed < self.settings.failures:
            return "closed"
        return "half_open" if now - self._opened >= self.settings.seconds else "open"

    def allows(self, now: float) -> bool:
        """Whether a request may be sent. A half-open breaker allows one."""
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
        """Seconds until the next trial request."""
        return max(0.0, self._opened + self.settings.seconds - now)

    def succeeded(self) -> None:
        self._failed = 0
        self._trying = False

    def failed(self, now: float) -> None:
        self._failed += 1
        self._trying = False
        if self._failed >= self.settings.failures:
            self._opened = now

    def released(self) -> None:
        """The request ended without showing whether the upstream works."""
        self._trying = False
