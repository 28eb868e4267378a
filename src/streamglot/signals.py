"""A wait that every signal ends. A signal interrupts a system call only if it arrives while the call blocks, in the same thread:
one that comes just before it, or to another thread, would be handled only when the call returns for another reason."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def woken_by_signals() -> Iterator[socket.socket]:
    """A socket that gets a byte from every handled signal, and from every child that ends. A caller checks what it waits for,
    then reads from the socket, then checks again."""
    woken, wake = socket.socketpair()
    with woken, wake:
        wake.setblocking(False)
        before = signal.signal(signal.SIGCHLD, lambda *_: None)  # a signal without a handler would write nothing
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, before)
