"""The Python examples of docs/batches.md run as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batch.mock import MockUpstream

PAGE = (Path(__file__).parents[2] / "docs" / "batches.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)
TOOL = '''
from streamglot import tool

@tool
def get_markdown(scope: str) -> dict:
    """The document."""
    return {"markdown": scope}
'''


PRINTED = ("re: Why is the sky blue?", "{'markdown': 'full'} None", "re: Why is the sky blue?re: Why is grass green?")


@pytest.mark.parametrize(("example", "words"), list(zip(EXAMPLES, PRINTED, strict=True)))
def test_an_example_runs(
    example: str,
    words: str,
    upstream: MockUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sheet.py").write_text(TOOL)
    config = tmp_path / "streamglot.toml"
    config.write_text(
        f'[server]\ndiscover = false\n[upstreams.mock]\nbase_url = "{upstream.url}"\n[tools]\n'
        f'python = ["{tmp_path / "sheet.py"}"]\nenabled = ["*"]\n'
    )
    monkeypatch.setenv("STREAMGLOT_CONFIG", str(config))
    exec(compile(example, "docs/batches.md", "exec"), {})
    assert words in capsys.readouterr().out
