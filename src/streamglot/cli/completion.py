"""Shell completion: the script of each shell, printed or installed, and the words that options and arguments offer.

The functions that offer ids and names read the configuration and the store only when a shell asks. They offer nothing if these
cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..errors import StreamglotError

if TYPE_CHECKING:
    from .store import StoreView

F = TypeVar("F", bound=Callable[..., object])

PROGRAM: Final = "streamglot"
VARIABLE: Final = "_STREAMGLOT_COMPLETE"
"""The variable with which a shell's script requests completions."""
SHELLS: Final = ("bash", "zsh", "fish")
AUTO: Final = "auto"
"""The shell that the variable SHELL names."""
_ZSH_START: Final = "autoload -Uz compinit\n(( $+functions[compdef] )) || compinit\n"
"""Switches on the completion system of zsh, which is off by default."""


def requested(commands: click.Command, arguments: Sequence[str]) -> int | None:
    """Answers a shell's request for completions. Returns the exit status; None if this is not such a request."""
    instruction = os.environ.get(VARIABLE, "")
    if not instruction or arguments:
        return None
    from click.shell_completion import shell_complete

    return shell_complete(commands, {}, PROGRAM, VARIABLE, instruction)


def script(shell: str) -> str:
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None, shell
    start = _ZSH_START if shell == "zsh" else ""
    return start + completion(click.Command(PROGRAM), {}, PROGRAM, VARIABLE).source()


def install(shell: str) -> Path:
    """Writes the script to the place where the shell looks for it. A new shell uses it."""
    home = Path.home()
    if shell == "fish":
        target = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions" / f"{PROGRAM}.fish"
    else:
        target = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / PROGRAM / f"completion.{shell}"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(script(shell))
    if shell != "fish":
        _source_from(home / f".{shell}rc", target)
    return target


def _source_from(startup: Path, target: Path) -> None:
    """Adds one line to the shell's startup file, unless it is there."""
    line = f"source '{target}'"
    text = startup.read_text(errors="surrogateescape") if startup.exists() else ""
    if line not in text.splitlines():
        gap = "\n" if text and not text.endswith("\n") else ""
        with startup.open("a") as file:
            file.write(f"{gap}{line}\n")


def _shell(name: str) -> str:
    if name != AUTO:
        return name
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise click.UsageError(f"there is no completion for the shell {shell!r}; name one of: {', '.join(SHELLS)}")
    return shell


def _show(context: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None:
        print(script(_shell(name)), end="")
        context.exit()


def _install(context: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None:
        shell = _shell(name)
        print(f"completion for {shell} is written to {install(shell)}; start a new shell to use it")
        context.exit()


def options(function: F) -> F:
    """The two options of the program that concern completion."""
    settings: dict[str, Any] = {  # Any: arguments of click.option
        "type": click.Choice([AUTO, *SHELLS]),
        "is_flag": False,
        "flag_value": AUTO,
        "metavar": "[SHELL]",
        "expose_value": False,
        "is_eager": True,
    }
    install = click.option("--install-completion", callback=_install, help="Install completion for the shell.", **settings)
    show = click.option("--show-completion", callback=_show, help="Print the completion script for the shell.", **settings)
    return install(show(function))


MAX_VALUES: Final = 50
"""The number of conversations and turns that are offered: more do not fit on a screen."""


def models(incomplete: str) -> list[str]:
    """The models that are known without a request to any upstream."""
    from ..config import load
    from ..upstream.local import ALIAS, NAME

    try:
        named = [model for upstream in load().config.upstreams.values() for model in upstream.listed]
    except StreamglotError:
        named = []
    return [name for name in (NAME, ALIAS, "replay", *named) if name.startswith(incomplete)]


def sessions(incomplete: str) -> list[tuple[str, str]]:
    async def work(view: StoreView) -> list[tuple[str, str]]:
        return [(session.id, session.title) for session in await view.queries.sessions(limit=MAX_VALUES)]

    return _offered(incomplete, work)


def turns(incomplete: str) -> list[tuple[str, str]]:
    async def work(view: StoreView) -> list[tuple[str, str]]:
        return [(turn.id, turn.title) for turn in await view.queries.turns()]

    return _offered(incomplete, work)


def keys(incomplete: str) -> list[tuple[str, str]]:
    async def work(view: StoreView) -> list[tuple[str, str]]:
        return [(key.name, key.shown) for key in await view.keys.all()]

    return _offered(incomplete, work)


def endings(incomplete: str) -> list[str]:
    from ..store import ENDINGS
    from .store import STILL_RUNNING

    return [name for name in (*ENDINGS, STILL_RUNNING) if name.startswith(incomplete)]


def dialects(incomplete: str) -> list[str]:
    from ..dialects import DIALECTS

    return [name for name in DIALECTS if name.startswith(incomplete)]


def _offered(incomplete: str, work: Callable[[StoreView], Awaitable[list[tuple[str, str]]]]) -> list[tuple[str, str]]:
    from .output.table import one_line
    from .store import reading

    try:
        return [(name, one_line(about)) for name, about in reading(work) if name.startswith(incomplete)]
    except (StreamglotError, ImportError, OSError):
        return []
