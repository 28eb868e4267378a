"""Lines to events."""

from __future__ import annotations

from typing import Any

import msgspec

from streamglot import Reader, UpstreamRefused, Usage
from streamglot.framing import Frame, NdJson

from .wire import DIALECT, REASONS, Line, line_decoder


class RelayReader(Reader):
    dialect = DIALECT
    framing = NdJson

    def framing_for(self, first: bytes) -> NdJson:
        return NdJson(self.limits)  # every line is an object: none is a whole body

    def read(self, frame: Frame) -> None:
        self._line(self.decode(line_decoder, frame.data))

    def whole(self, body: dict[str, Any]) -> None:
        self._line(msgspec.convert(body, Line))

    def _line(self, line: Line) -> None:
        if line.error is not None:
            raise UpstreamRefused(str(line.error.get("message") or "the server refused the request"))
        self.start(line.id)
        if line.think:
            self.blocks().reasoning(line.think)
        if line.say:
            self.blocks().text(line.say)
        if line.tool or line.args:
            self.blocks().call(None, line.call, line.tool, line.args)
        for call in line.calls:
            self.blocks().call(None, call.call, call.tool, call.args)
        if line.stop:
            self.blocks().finish(cut=line.stop == "full")
            if len(line.tokens) == 2:
                self.emit(Usage(line.tokens[0], line.tokens[1]))
            self.end(REASONS.get(line.stop, "other"), line.stop)
