"""From an upstream's bytes to events: the reader, and behind it the in-band parser where the model's text needs one."""

from __future__ import annotations

from ..dialects import dialect
from ..events import Event
from ..inband import find_format, inband
from ..messages import Request
from ..stages import PerChoice
from ..upstream import Upstream


class Pipeline:
    """``inband = "auto"`` trusts a server that says it parsed already: it starts no reasoning without its opening tag and
    looks for calls only where tools were declared. A format that is named is taken at its word."""

    def __init__(self, upstream: Upstream, model: str, request: Request) -> None:
        self._reader = dialect(upstream.dialect).reader(provider=upstream.name)
        self._box: PerChoice | None = None
        found = find_format(upstream.inband, model)
        if found is not find_format("none"):
            guessed = upstream.inband == "auto"
            self._box = PerChoice(
                lambda: inband(
                    found,
                    tools=request.tools or None,
                    starts_in_reasoning=False if guessed else None,
                    calls=bool(request.tools) or not guessed,
                )
            )

    def feed(self, chunk: bytes) -> list[Event]:
        events = self._reader.feed(chunk)
        return events if self._box is None else self._through(events, self._box)

    def close(self) -> list[Event]:
        events = self._reader.close()
        return events if self._box is None else [*self._through(events, self._box), *self._box.close()]

    def _through(self, events: list[Event], box: PerChoice) -> list[Event]:
        return [given for event in events for given in box.feed(event)]
