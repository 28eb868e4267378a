"""``streamglot setup``: a client's settings for this gateway, printed, or merged into its settings file."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...config import ServerConfig, load
from ...errors import ConfigError
from ...upstream.local import ALIAS, CONTEXT, NAME, context_tokens, runs_default
from ...upstream.settings import is_secret
from ...upstream.weights import CHOICE
from ..files import SETTINGS_BYTES, read_file
from ..output.terminal import neutral
from .changes import Change, NotMerged
from .merge import merged
from .recipes import RECIPES, Recipe, recipe

LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Listening addresses that no client can connect to, each with the loopback address to use instead."""


def run(client: str | None, address: str | None, model: str, key: str, write: bool) -> int:
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


def local_address(server: ServerConfig) -> str:
    """Returns the address under which clients on this machine reach a gateway with these settings."""
    return http_address(reachable_host(server.host), server.port)


def reachable_host(host: str) -> str:
    """Returns where clients on this machine connect to a gateway that listens on this host."""
    return LOOPBACK.get(host, host)


def http_address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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


def context_warning(client: str, model: str, environment: Mapping[str, str]) -> str:
    """Returns a warning if the context of the model is smaller than the agent's first request; empty if it fits or is unknown."""
    needed = RECIPES[client].first_tokens if client in RECIPES else 0
    known = context_tokens(environment) if model in (NAME, ALIAS) else 0
    if not known or known >= needed:
        return ""
    more = f"{CONTEXT}={2 ** (2 * needed - 1).bit_length()}"
    other = f"run other weights with {CHOICE}=path/to/model.gguf and {more}" if runs_default(environment) else f"set {more}"
    return (
        f"the first request of {client} has about {needed:,} tokens, but the model {model!r} has a context of {known:,}; "
        f"choose another model, or {other} where the gateway starts"
    )


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
    """Returns a changed setting as text. Secrets are shown as dots, so that no key appears on the terminal."""
    secret = is_secret(change.name.rpartition(".")[2])
    old, new = (neutral("••••" if secret and value else value) for value in (change.old, change.new))
    return f"{change.name}: {old} → {new}" if change.old else f"{change.name}: {new}"
