"""Circuit breakers: what fails repeatedly gets no requests for a while, then one trial request."""

from __future__ import annotations

from typing import Final, Literal

from ...errors import StreamglotError
from ..settings import BreakerSettings

State = Literal["closed", "open", "half_open"]
UNREACHABLE: Final = "upstream_unreachable"
"""The code of a connection that could not be made: it says something about the upstream, and nothing about the model."""
FAILING_MODELS: Final = 1_000
"""Models of one upstream whose failures are counted, about 500 bytes each. Clients invent names. The model that failed first is
forgotten first."""


class Breaker:
    """One circuit. ``cause`` is the last failure."""

    def __init__(self, settings: BreakerSettings) -> None:
        self.settings = settings
        self.cause: StreamglotError | None = None
        self.opened = 0.0
        self._failed = 0
        self._trying = False

    def state(self, now: float) -> State:
        if self._failed < self.settings.failures:
            return "closed"
        return "half_open" if now - self.opened >= self.settings.seconds else "open"

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
        return max(0.0, self.opened + self.settings.seconds - now)

    def succeeded(self) -> None:
        self._failed = 0
        self._trying = False

    def failed(self, now: float, cause: StreamglotError) -> None:
        self.cause = cause
        self._failed += 1
        self._trying = False
        if self._failed >= self.settings.failures:
            self.opened = now

    def released(self) -> None:
        """The request ended without showing whether the upstream works."""
        self._trying = False


class Breakers:
    """The breakers of one upstream: one for its connections, and one for each model that failed lately. A model that fails does
    not block the others. Attempts of one request count once: report how the request ended."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._connections = Breaker(settings)
        self._models: dict[str, Breaker] = {}
        self._answered = 0.0

    def configure(self, settings: BreakerSettings) -> None:
        self._settings = self._connections.settings = settings
        for breaker in self._models.values():
            breaker.settings = settings

    def blocking(self, model: str, now: float) -> Breaker | None:
        """The breaker that allows no request for this model now; None if one may be sent."""
        if not self._connections.allows(now):
            return self._connections
        failing = self._models.get(model)
        if failing is None or failing.allows(now):
            return None
        self._connections.released()
        return failing

    def is_open(self, model: str, now: float) -> bool:
        """Whether other requests have opened a breaker for this model meanwhile."""
        failing = self._models.get(model)
        return self._connections.state(now) == "open" or (failing is not None and failing.state(now) == "open")

    def succeeded(self, model: str, now: float) -> None:
        self._answered = now
        self._connections.succeeded()
        self._models.pop(model, None)

    def failed(self, model: str, now: float, cause: StreamglotError) -> None:
        failing = self._models.get(model)
        if cause.code == UNREACHABLE:
            self._connections.failed(now, cause)
            if failing is not None:
                failing.released()
            return
        self._connections.succeeded()
        if failing is None:
            if len(self._models) >= FAILING_MODELS:
                del self._models[next(iter(self._models))]
            failing = self._models[model] = Breaker(self._settings)
        failing.failed(now, cause)

    def released(self, model: str) -> None:
        """The request ended without showing whether the upstream works."""
        self._connections.released()
        if model in self._models:
            self._models[model].released()

    def open_models(self, now: float) -> dict[str, Breaker]:
        """The models that get no requests now."""
        return {name: breaker for name, breaker in self._models.items() if breaker.state(now) == "open"}

    def state(self, now: float) -> State:
        """The state of the whole upstream: that of its connections, or ``open`` while models are blocked and no other has
        answered since."""
        state = self._connections.state(now)
        if state == "closed" and any(breaker.opened > self._answered for breaker in self.open_models(now).values()):
            return "open"
        return state

    def wait(self, now: float) -> float:
        """Seconds until the next trial request to an upstream whose state is ``open``."""
        if self._connections.state(now) == "open":
            return self._connections.wait(now)
        return min((breaker.wait(now) for breaker in self.open_models(now).values()), default=0.0)
