"""``streamglot config edit``: opens the configuration file in an editor and checks it afterwards."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from ...config import FILE_NAME, load
from ...errors import ConfigError

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


def run(path: Path | None) -> int:
    path = path or load().path or _usual_place()
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
