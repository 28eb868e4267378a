"""``streamglot doctor``: checks the installation and suggests what to do."""

from __future__ import annotations

import asyncio
import os
import platform
import ssl
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import Struct

from ... import __version__
from ...config import DISABLED, LoadedConfig, load
from ...config.checks import Authentication, authentication
from ...dialects import DIALECTS
from ...errors import ConfigError, StreamglotError
from ...inband import FORMATS
from ...installation import EXTRAS
from ...upstream import Upstream
from ...upstream.discovery import Found, discover
from ...upstream.local import LIBRARY, PINNED, weights
from ...upstream.providers import KNOWN_PROVIDERS
from ..options import (
    JSON,
    Command,
)
from ..output.terminal import coloured, neutral
from ..output.units import shown_size

CONNECT_SECONDS: Final = 3.0
PACKAGES: Final = ("msgspec", "aiohttp", "httptools", "uvloop", "click", "rich", "prompt-toolkit", "genai-prices", LIBRARY)
_SIGNS: Final = {"good": "✓", "note": "·", "bad": "✗"}
_COLOURS: Final = {"good": "\x1b[32m", "note": "\x1b[2m", "bad": "\x1b[31m"}


class Finding(Struct):
    """The result of one check. ``step`` is what to do; empty if nothing is to be done."""

    state: Literal["good", "note", "bad"]
    about: str
    says: str
    step: str = ""


@click.command(cls=Command, examples=("streamglot doctor", "streamglot doctor --offline --json"))
@JSON
@click.option("--offline", is_flag=True, help="Do not connect to any upstream.")
def doctor(json: bool, offline: bool) -> int:
    """Check keys, upstreams, the store, the local model and versions, and suggest fixes.

    The exit status is 1 if something is broken.
    """
    findings = [*_versions(), *_packages()]
    loaded: LoadedConfig | None = None
    try:
        loaded = load()
    except ConfigError as error:
        findings.append(Finding("bad", "configuration", error.message, "streamglot config edit"))
    else:
        where = str(loaded.path) if loaded.path else "no file: all settings have their defaults"
        findings.append(Finding("good", "configuration", where))
    findings += asyncio.run(_upstreams(loaded, offline))
    if loaded is not None:
        findings += asyncio.run(_store(loaded))
    findings += _model()
    if json:
        sys.stdout.buffer.write(msgspec.json.encode(findings) + b"\n")
    else:
        _print(findings)
    return 1 if any(finding.state == "bad" for finding in findings) else 0


def _print(findings: list[Finding]) -> None:
    colour: Callable[[str], str] = _COLOURS.__getitem__ if coloured(sys.stdout) else lambda state: ""
    reset = "\x1b[0m" if coloured(sys.stdout) else ""
    width = max(len(finding.about) for finding in findings)
    for finding in findings:
        mark = f"{colour(finding.state)}{_SIGNS[finding.state]}{reset}"
        step = f"  → {finding.step}" if finding.step else ""
        print(f"{mark} {neutral(finding.about).ljust(width)}  {neutral(finding.says)}{neutral(step)}")


def _versions() -> Iterator[Finding]:
    yield Finding("good", "streamglot", f"{__version__} on Python {platform.python_version()}, {platform.system()}")
    for package in PACKAGES:
        try:
            found = version(package)
        except PackageNotFoundError:
            extra = EXTRAS.get(package.replace("-", "_"), "cli")
            yield Finding("note", package, "not installed", f"optional: pip install 'streamglot[{extra}]'")
            continue
        if package == LIBRARY and found != PINNED:
            yield Finding("note", package, f"{found}, but {PINNED} is the tested version", f"pip install {LIBRARY}=={PINNED}")
        else:
            yield Finding("good", package, found)


def _packages() -> Iterator[Finding]:
    """Imports the dialects, formats and providers of installed packages."""
    for plugins in (DIALECTS, FORMATS, KNOWN_PROVIDERS):
        for fault in plugins.faults():
            yield Finding("bad", plugins.group, fault)


# --- upstreams


async def _upstreams(loaded: LoadedConfig | None, offline: bool) -> list[Finding]:
    configured = list(loaded.config.upstreams.values()) if loaded else []
    found = [one for one in await discover(os.environ) if one.provider.name not in {upstream.name for upstream in configured}]
    there = [one for one in found if one.there]
    findings = list(await asyncio.gather(*(_upstream(upstream, offline) for upstream in configured)))
    findings += await asyncio.gather(*(_found(one, offline) for one in there))
    if not configured and not there:
        keys = ", ".join(provider.key_env for provider in KNOWN_PROVIDERS.usable() if provider.key_env)
        findings.append(Finding("note", "upstreams", "no key is set and no server runs on this machine", f"set one of {keys}"))
    return findings


async def _upstream(upstream: Upstream, offline: bool) -> Finding:
    about = f"upstream {upstream.name}"
    if upstream.key_env and not upstream.key:
        return Finding("bad", about, f"{upstream.key_env} is not set", f"export {upstream.key_env}=…")
    trouble = "" if offline else await reachable(upstream.base_url)
    if trouble:
        return Finding("bad", about, f"{upstream.place}: {trouble}", "check base_url, the network and the proxy")
    return Finding("good", about, f"{upstream.dialect} at {upstream.place}{'' if offline else ', which answers'}")


async def _found(found: Found, offline: bool) -> Finding:
    upstream = found.upstream(os.environ)
    checked = await _upstream(upstream, offline)
    return msgspec.structs.replace(checked, says=f"{found.because}; {checked.says}")


async def reachable(address: str) -> str:
    """Opens a connection without sending anything. Returns the error; empty if the connection opened."""
    place = urlsplit(address)
    if place.scheme not in ("http", "https"):
        return ""
    secure = place.scheme == "https"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            trust = ssl.create_default_context() if secure else None
            _, writer = await asyncio.open_connection(place.hostname, place.port or (443 if secure else 80), ssl=trust)
            writer.close()
    except TimeoutError:
        return f"no connection within {CONNECT_SECONDS:g} s"
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --- the store


async def _store(loaded: LoadedConfig) -> list[Finding]:
    """Checks where the store is, whether it opens, and whether its keys let anyone use the gateway. It does not create a
    store."""
    url = loaded.config.store.url
    nothing = authentication(loaded.config.server, stored=0, revoked=0, had_keys=False)
    if url == DISABLED:
        return [Finding("note", "store", f'nothing is stored: store.url is "{DISABLED}"'), _keys(nothing)]
    from ...store.database.paths import default_url, place_of
    from ...store.keys import KeyMarker

    try:
        place = place_of(url or default_url(os.environ))
        if place.file is not None and not place.file.exists():
            had_keys = KeyMarker(place.file, "").is_set()
            state = authentication(loaded.config.server, stored=0, revoked=0, had_keys=had_keys)
            return [Finding("note", "store", f"{place.file} does not exist yet: the first turn creates it"), _keys(state)]
        from ...store.database import schema
        from ...store.retention import size
        from ..store import opened
        from .keys import state_of

        async with opened(loaded) as view:
            turns, taken = await view.lookup.count_turns(), shown_size(await size(view.database))
            found = Finding("good", "store", f"{view.database.shown}, version {schema.newest()}, {turns} turns, {taken}")
            return [found, _keys(await state_of(view, loaded))]
    except (StreamglotError, OSError) as error:
        message = error.message if isinstance(error, StreamglotError) else f"{error.strerror}: {error.filename}"
        return [Finding("bad", "store", message, 'set store.url to another database, or to "none" to store nothing')]


def _keys(state: Authentication) -> Finding:
    """Reports a gateway that requires keys while no key is valid: it refuses every request."""
    if not state.usable:
        return Finding("bad", "keys", f"{state.summary}: every request is refused with 401", state.step)
    return Finding("good" if state.required else "note", "keys", state.summary)


# --- the model on this machine


def _model() -> Iterator[Finding]:
    try:
        path = weights.chosen()
    except ConfigError as error:
        yield Finding("bad", "local model", error.message)
        return
    if path is None:
        yield Finding("note", "local model", "there are no weights", "streamglot local pull")
    elif not weights.is_valid(path):
        yield Finding("bad", "local model", f"{path} is damaged", f"streamglot local remove {path.stem}, then local pull")
    else:
        yield Finding("good", "local model", f"{path}, {path.stat().st_size / 10**6:.0f} MB")
