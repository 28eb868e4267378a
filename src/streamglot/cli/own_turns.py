"""The recorder of the command line's own turns."""

from __future__ import annotations

import getpass
import os
import sys
from typing import Final

from ..callers import COMMAND_LINE
from ..config import DISABLED, LoadedConfig
from ..engine.background_recorder import BackgroundRecorder
from ..errors import ConfigError
from .exit_status import INTERRUPTED
from .output.terminal import print_error, well_formed

DIALECT: Final = "cli"


def this_user() -> str:
    """Returns the caller name for this user's turns, because several users may share a database."""
    try:
        return f"{COMMAND_LINE}{getpass.getuser()}"
    except (OSError, KeyError):  # the system has no name for this user id
        return f"{COMMAND_LINE}{os.getuid()}"


def this_directory() -> str:
    """Returns the working directory; empty if it was removed."""
    try:
        return well_formed(os.getcwd())
    except OSError:
        return ""


def here() -> str:
    """Returns the directory for ``--here``."""
    directory = this_directory()
    if not directory:
        raise ConfigError("--here needs a working directory, but this one was removed; change to another one")
    return directory


class _CommandLineRecorder(BackgroundRecorder):
    def _abandon(self) -> None:
        sys.stdout.flush()
        os._exit(INTERRUPTED)  # a normal exit would wait for the threads of an unresponsive database


def turn_recorder(loaded: LoadedConfig, *, enabled: bool) -> BackgroundRecorder:
    def warn(failure: str) -> None:
        print_error(f"this turn was not stored: {failure} (to store nothing, use --no-log or store.url = {DISABLED!r})")

    return _CommandLineRecorder(
        loaded, caller=this_user(), directory=this_directory(), dialect=DIALECT, warn=warn, enabled=enabled
    )
