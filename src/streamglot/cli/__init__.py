"""The command line. ``main`` is what the installed script calls."""

from __future__ import annotations

import sys
from typing import Final

USAGE_ERROR: Final = 2
"""The exit status for wrong options or files, or a package that is not installed. ``exit_status.py`` needs packages to be loaded."""


def main() -> None:
    from .output.standard_streams import open_standard_streams

    open_standard_streams()
    arguments = sys.argv[1:]
    try:
        from .app import run
        from .exit_status import exit_status
    except ModuleNotFoundError as error:
        sys.exit(_without_packages(arguments, error))
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(exit_status(lambda: run(arguments)))


def _without_packages(arguments: list[str], error: ModuleNotFoundError) -> int:
    """Handles an installation without the packages of the command line: prints the version, or says what to install."""
    from .. import __version__
    from ..installation import missing_package

    if arguments == ["--version"]:
        from ..installation import version_lines

        print("\n".join(version_lines(__version__)))
        return 0
    missing = missing_package(error, "server" if arguments[:1] in (["serve"], ["launch"]) else "")
    if missing is None:
        raise error
    print(f"streamglot: the command line needs more packages: {missing.message}", file=sys.stderr)
    return USAGE_ERROR
