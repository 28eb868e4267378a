"""``streamglot setup``: a client's settings for this gateway, printed, or merged into its settings file."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from ...config import load
from ...errors import ConfigError
from ...upstream.settings import is_secret
from ..address import local_address
from ..options import (
    SETTINGS_BYTES,
    Command,
    read_file,
    text,
)
from ..output.terminal import neutral
from ..setup.merge import Change, NotMerged, merged
from ..setup.recipes import RECIPES, Recipe, context_warning, recipe


@click.command(
    cls=Command,
    examples=(
        "streamglot setup                     # list the clients",
        "streamglot setup claude-code         # print the settings",
        "streamglot setup codex -m gpt-5 --write",
    ),
)
@click.argument("client", type=text, required=False)
@click.option("--address", type=text, help="The address of the gateway. Default: that of the configuration, on this machine.")
@click.option("-m", "--model", type=text, default="local", show_default=True, help="The model to use.")
@click.option("--key", type=text, default="streamglot", help="The key for the gateway, if it requires one.")
@click.option("--write", is_flag=True, help="Merge the settings into the client's settings file; other settings stay.")
def setup(client: str | None, address: str | None, model: str, key: str, write: bool) -> int:
    """Print or write the settings with which a client uses the gateway.

    CLIENT is the name of a program. Without CLIENT, all known programs are listed.
    """
    if client is None:
        for name, known in RECIPES.items():
            print(f"{name:12} {known.file}".rstrip())
        return 0
    made = recipe(client, address or local_address(load(None).config.server), model, key)
    warning = context_warning(client, model, os.environ)
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    if write:
        return _write(client, made)
    print(f"# {made.how}", file=sys.stderr)
    print(made.text, end="")
    return 0


def _write(client: str, made: Recipe) -> int:
    if not made.file:
        raise ConfigError(f"{client} has no settings file of its own: paste what `streamglot setup {client}` shows {made.how}")
    path = Path(made.file).expanduser()
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} cannot be written: {'Is a directory' if path.is_dir() else 'it is not a regular file'}")
    try:
        old = read_file(path, SETTINGS_BYTES, "the settings file").decode() if path.exists() else ""
        lines_end = "\r\n" if "\r\n" in old else "\n"
        text, changes = merged(made.form, old.replace("\r\n", "\n"), made.text)
        if not changes:
            print(f"{path} has these settings already")
            _tell_what_is_left(made)
            return 0
        backup = _replaced(path, text.replace("\n", lines_end))
    except (UnicodeDecodeError, NotMerged) as error:
        why = "it is not in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise ConfigError(
            f"{path} is not changed: {why}; repair the file, or add by hand the settings that `streamglot setup {client}` shows"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
    print(f"written: {path}")
    for change in changes:
        print(f"  {_shown(change)}")
    if backup is not None:
        print(f"backup of the old file: {backup}")
    _tell_what_is_left(made)
    return 0


def _tell_what_is_left(made: Recipe) -> None:
    if made.then:
        print(f"then: {made.then}")


def _replaced(path: Path, text: str) -> Path | None:
    """Replaces the file atomically, through links and with its old permissions. Returns the path of a copy of the old file."""
    place = path.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    backup = _backup(place) if place.exists() else None
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", dir=place.parent, delete=False) as file:
        try:
            file.write(text)
            file.close()
            if backup is not None:
                shutil.copymode(place, file.name)
            os.replace(file.name, place)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    return backup


def _backup(place: Path) -> Path:
    number = 1
    while (copy := place.with_name(f"{place.name}.before-streamglot-{number}")).exists():
        number += 1
    shutil.copy2(place, copy)
    return copy


def _shown(change: Change) -> str:
    """A changed setting as text. Secrets are shown as dots, so that no key appears on the terminal."""
    secret = is_secret(change.name.rpartition(".")[2])
    old, new = (neutral("••••" if secret and value else value) for value in (change.old, change.new))
    return f"{change.name}: {old} → {new}" if change.old else f"{change.name}: {new}"
