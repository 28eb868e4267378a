"""``streamglot probe local`` describes the faults of a real server."""

from __future__ import annotations

import subprocess
from pathlib import Path

from local.model import needed
from local.serving import PROGRAM, bare


def test_the_local_server_and_its_faults(tmp_path: Path) -> None:
    needed()
    command = [PROGRAM, "probe", "local", "--max-tokens", "40"]
    done = subprocess.run(command, env=bare(tmp_path), cwd=tmp_path, capture_output=True, timeout=300, check=False)
    words = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    responses, messages = (words.partition(f"{name} at ")[2] for name in ("openai_responses", "anthropic"))
    assert "all events about items are without an `output_index`: clients that depend on it lose the pieces" in responses
    assert "blocks overlap: block 1 (text) begins while 0 (thinking) is open" in messages
    assert "left out of the request: reasoning" not in messages
    assert len(list((tmp_path / "probe-local").glob("*.times"))) == 12
