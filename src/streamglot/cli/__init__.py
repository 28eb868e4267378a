"""The command line. ``main`` is what the installed script calls."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        import typer  # noqa: F401  # asked for here, so that the core alone says what is missing
    except ModuleNotFoundError:
        sys.exit("the command line needs more packages: pip install 'streamglot[cli]'")
    try:
        from .app import app

        app()
    except KeyboardInterrupt:  # before or after the command itself
        sys.exit(130)
