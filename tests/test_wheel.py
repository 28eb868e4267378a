"""The wheel as a consumer gets it: built, installed with msgspec only, type-checked and run."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

import streamglot

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *(f"docs/library/{page}.md" for page in ("streams", "boxes", "requests", "answers", "text")))
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
CLIENT = """
import asyncio

from streamglot import Client, Running, Snapshot, Stream, run_in_thread, StreamError


def ask() -> str:
    with Client() as client:
        stream: Stream = client.stream(model="m", messages="hi", tools=[{"type": "function", "function": {"name": "f"}}])
        for event in stream:
            if isinstance(event, StreamError):
                return event.message
    return ""


async def ask_again() -> int:
    async with Client() as client:
        return len([event async for event in client.stream(model="m", messages="hi")])


def show(snapshot: Snapshot) -> str:
    return snapshot.text


running: Running = run_in_thread(model="m", messages="hi")
print(ask(), asyncio.run(ask_again()), running.finished)
"""


class Consumer(NamedTuple):
    """A separate environment. ``site`` is the directory of its packages."""

    python: Path
    site: Path


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Consumer:
    """An environment with the wheel and msgspec, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist"), cwd=ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    quiet = ("--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "install", *quiet, "--no-index", "--no-deps", "--target", str(site), str(wheel), cwd=folder)
    spec = find_spec("msgspec")
    assert spec is not None
    assert spec.origin is not None
    (site / "msgspec").symlink_to(Path(spec.origin).parent)
    return Consumer(folder / "venv" / "bin" / "python", site)


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def examples() -> list[tuple[str, str]]:
    found = [(page, code) for page in PAGES for code in EXAMPLE.findall((ROOT / page).read_text())]
    assert {page for page, _ in found} == set(PAGES)
    return found


def test_the_installed_package_is_marked_as_typed(consumer: Consumer) -> None:
    assert (consumer.site / "streamglot" / "py.typed").is_file()


def test_the_installed_package_has_the_page(consumer: Consumer) -> None:
    """All its files, with the licences of those that others wrote."""
    source, installed = ROOT / "src" / "streamglot" / "web", consumer.site / "streamglot" / "web"
    files = {file.relative_to(source) for file in source.rglob("*") if file.is_file()}
    assert files == {file.relative_to(installed) for file in installed.rglob("*") if file.is_file()}
    assert Path("index.html") in files
    licences = {file.stem for file in files if file.suffix == ".LICENSE"}
    assert licences == {"htm", "preact", "marked", "dompurify", "hljs"}


@pytest.mark.slow
def test_the_examples_pass_a_strict_type_check(consumer: Consumer, mypy_cache: Path, tmp_path: Path) -> None:
    """Checks the installed package as its consumer sees it: mypy looks for it where the consumer's Python does."""
    sources = [code for _, code in examples()] + [CLIENT]
    for number, code in enumerate(sources):
        (tmp_path / f"example_{number}.py").write_text(code)
    checked = run(
        *(sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(mypy_cache)),
        *("--python-executable", str(consumer.python), *sorted(str(path) for path in tmp_path.glob("*.py"))),
        cwd=tmp_path,
    )
    assert f"no issues found in {len(sources)} source files" in checked


@pytest.mark.parametrize(("page", "code"), examples())
def test_the_examples_run(consumer: Consumer, page: str, code: str) -> None:
    del page
    run(str(consumer.python), "-I", "-c", code, cwd=ROOT)


def test_without_extras_everything_can_be_imported(consumer: Consumer) -> None:
    code = "from streamglot import *; print(Collect.__module__, reader('anthropic').dialect)"
    assert run(str(consumer.python), "-I", "-c", code, cwd=ROOT) == "streamglot.stages.collect anthropic\n"


def test_a_client_without_its_extra_says_which(consumer: Consumer) -> None:
    code = "from streamglot import Client\ntry:\n    Client()\nexcept Exception as error:\n    print(error)"
    output = run(str(consumer.python), "-I", "-c", code, cwd=ROOT)
    assert "pip install 'streamglot[client]'" in output


def test_another_fault_of_an_import_is_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(streamglot._LATER, "Absent", "absent")
    with pytest.raises(ModuleNotFoundError, match=r"streamglot\.absent"):
        _ = streamglot.Absent
    monkeypatch.setattr(streamglot, "_CLIENT_NEEDS", ("streamglot.absent",))
    with pytest.raises(ImportError, match=r"pip install 'streamglot\[client\]'"):
        _ = streamglot.Absent
