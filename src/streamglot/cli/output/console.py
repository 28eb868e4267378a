"""Rich's console with our own handling of closed pipes."""

from __future__ import annotations

import errno

import rich.console


class Console(rich.console.Console):
    def on_broken_pipe(self) -> None:
        """Raises the error. Rich itself would exit here with its own status."""
        raise BrokenPipeError(errno.EPIPE, "the reader of the output closed the pipe")
