"""Rich's console, with the program's own rule for readers that go away."""

from __future__ import annotations

import errno

import rich.console


class Console(rich.console.Console):
    def on_broken_pipe(self) -> None:
        """Rich would exit here, with a status of its own."""
        raise BrokenPipeError(errno.EPIPE, "the reader of the output went away")
