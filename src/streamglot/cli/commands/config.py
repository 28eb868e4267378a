"""``streamglot config``: shows the configuration, checks and edits its file, and prints its schema."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from ...config import FILE_NAME, Config, load
from ...config import shown as shown_settings
from ...config.reference import schema_text
from ...engine.content_log import ContentLog
from ...engine.upstreams import UpstreamPool
from ...errors import ConfigError
from ..options import (
    CONFIG_FILE,
    FILE,
    group,
)
from ..output.terminal import neutral

START = """\
# The configuration of streamglot. `streamglot config show` lists every setting with its value.

[server]
# port = 8484
# default_model = "local"

# [upstreams.mine]
# dialect = "openai_chat"
# base_url = "https://example.com/v1"
# key_env = "MY_KEY"
# models = ["*"]
"""


config = group("Show the configuration with the origin of each value, check or edit its file, print its schema.")


@config.command("show", examples=("streamglot config show", "streamglot config show --config gateway.toml"))
@CONFIG_FILE
def config_show(config: Path | None) -> int:
    """Print every setting with its value and the origin of the value. Secrets are shown as dots."""
    for place, value, origin in shown_settings(load(config)):
        print(neutral(f"{place} = {value}  # {origin}"))
    return 0


@config.command("edit", examples=("streamglot config edit", "EDITOR=nano streamglot config edit"))
@CONFIG_FILE
def config_edit(config: Path | None) -> int:
    """Open the configuration file in $EDITOR, and check it afterwards."""
    path = config or load().path or _usual_place()
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(START)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
    editor = (
        os.environ.get("VISUAL") or os.environ.get("EDITOR") or next((name for name in ("nano", "vi") if shutil.which(name)), "")
    )
    if not editor:
        raise ConfigError(f"no editor was found: set EDITOR, or edit {path} by hand")
    try:
        status = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    except OSError as error:
        raise ConfigError(
            f"the editor {editor!r} cannot be started: {error.strerror or error}; set EDITOR to another one"
        ) from None
    if status:
        raise ConfigError(f"the editor {editor!r} ended with status {status}")
    load(path)
    print(f"{path} is valid")
    return 0


def _usual_place() -> Path:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    return home / "streamglot" / FILE_NAME


@config.command("check", examples=("streamglot config check", "streamglot config check gateway.toml"))
@click.argument("file", type=FILE, required=False)
def config_check(file: Path | None) -> int:
    """Check a configuration file: settings, routes, policies, tools. Nothing is started.

    FILE is the one that `streamglot serve` would read, if it is left out. The status is 2 if something is wrong.
    """
    # It builds what the gateway builds of the file: routes, policies, stages, tools. It starts nothing and sends no request.
    loaded = load(file)
    if loaded.path is None:
        raise ConfigError("there is no configuration file to check: name one, or make one with `streamglot config edit`")
    settings = loaded.config
    pool = UpstreamPool(loaded, discover=False)
    pool.configure(loaded)
    ContentLog(settings.server.redact)
    for warning in _warnings(settings, os.environ):
        print(neutral(f"warning: {warning}"))
    counts = (
        (len(settings.upstreams), "upstream"),
        (len(settings.routes), "route"),
        (len(settings.policies), "policy"),
        (len(settings.server.keys), "key"),
    )
    print(neutral(f"{loaded.path} is in order: {', '.join(_counted(count, what) for count, what in counts)}"))
    return 0


def _warnings(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    """Settings that are valid, but perhaps not what the author means."""
    for name, upstream in config.upstreams.items():
        if upstream.key_env and not upstream.key:
            yield f"upstreams.{name}.key_env: the variable {upstream.key_env} is not set, so no key is sent; set it"
        if upstream.key and not upstream.key_env:
            yield f"upstreams.{name}.key: the key is written in the file; name a variable with key_env instead"
    for key in config.server.keys:
        if key.key_env and not environment.get(key.key_env):
            yield f"server.keys: the variable {key.key_env} of the key {key.name!r} is not set; set it where the gateway starts, which refuses to start without it"


def _counted(count: int, what: str) -> str:
    plural = what[:-1] + "ies" if what.endswith("cy") else what + "s"
    return f"{count} {what if count == 1 else plural}"


@config.command("schema", examples=("streamglot config schema",))
def config_schema() -> int:
    """Print the JSON Schema of the configuration file, with which editors complete and check it."""
    print(schema_text(), end="")
    return 0
