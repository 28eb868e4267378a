"""The contents and the metadata of the wheel and the source distribution."""

from __future__ import annotations

import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

from distribution.environments import NEWEST, OLDEST, ROOT, install, succeed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_metadata_names_the_supported_versions(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(wheel.read(name).decode())
    prefix = "Programming Language :: Python :: 3."
    named = {text.removeprefix(prefix) for text in metadata.get_all("Classifier", []) if text.startswith(prefix)}
    assert named == {str(minor) for minor in range(OLDEST, NEWEST + 1)}
    assert metadata["Requires-Python"] == f">=3.{OLDEST}"
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    base = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert [text.partition(">")[0] for text in base] == ["msgspec"]


def test_the_wheel_has_the_data_files_and_nothing_else_than_the_package(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        names = wheel.namelist()
    assert any(name.endswith("/share/streamglot/streamglot.schema.json") for name in names)
    for wanted in ("py.typed", "patterns/detectors.toml", "upstream/local/local.jinja", "__main__.py"):
        assert f"streamglot/{wanted}" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"streamglot"}
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert sources <= set(names)


def test_the_source_distribution_builds_the_same_wheel(distributions: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(distributions["sdist"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    succeed(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"), cwd=folder)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as rebuilt, zipfile.ZipFile(distributions["wheel"]) as built:
        assert rebuilt.namelist() == built.namelist()
        assert all(rebuilt.read(name) == built.read(name) for name in built.namelist())
    for file in ("LICENSE", "README.md", "CHANGELOG.md", "tests/waiting.py", "docs/library.md"):
        assert (folder / file).is_file()


def test_the_source_distribution_can_be_installed(distributions: dict[str, Path], tmp_path: Path) -> None:
    environment = install(tmp_path / "venv", distributions["sdist"])
    assert (
        environment.code("import streamglot; print(streamglot.__version__)")
        == environment.streamglot("--version").stdout[len("streamglot ") :].partition("\n")[0] + "\n"
    )
