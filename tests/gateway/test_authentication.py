"""Authentication never fails open: not when the database is replaced or emptied, not after a reload, not in a new worker."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from databases import EVERY_DATABASE
from gateway.archived import database, with_store
from gateway.dialect_clients import body_of
from gateway.process import serving
from gateway.running import Answer, Running, running
from gateway.stored_turns import text_script
from gateway.upstream import HostileUpstream
from gateway.worker_client import Line, at_once
from streamglot import ConfigError
from streamglot.config import Config, KeyConfig, LoadedConfig, ServerConfig, StoreConfig, load
from streamglot.config.checks import authentication
from streamglot.gateway.app import Gateway
from streamglot.gateway.auth.authenticator import Authenticator, StoredCallers, digest_of
from streamglot.store import Store
from streamglot.store.keys import KeyMarker
from waiting import soon, until

CHAT = "/v1/chat/completions"


def add(url: str, name: str = "me") -> str:
    return with_store(url, lambda store: store.keys.add(name))[1]


def revoke(url: str, name: str = "me") -> None:
    assert with_store(url, lambda store: store.keys.revoke(name))


def asked(gateway: Running, secret: str = "") -> Answer:
    return gateway.ask(CHAT, body_of("openai_chat", "replay"), {"x-api-key": secret} if secret else {})


def why(answer: Answer) -> str:
    assert answer.status == 401, answer
    message: str = answer.json()["error"]["message"]
    return message


def remove(folder: Path, *, marker: bool = False) -> None:
    """As an operator would: the database and what SQLite has beside it."""
    for path in folder.iterdir():
        if path.name.startswith("kept.db") or marker:
            path.unlink()


def stands_still(process: int) -> bool:
    """Whether all threads of a process have stopped."""
    stats = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


async def nothing(_: Store) -> None:
    """Opening a store makes its database."""


# --- a database that loses its keys


def test_replacing_the_database_does_not_open_the_gateway(tmp_path: Path) -> None:
    url = database(tmp_path)
    secret = add(url)
    with running({"store": {"url": url}}) as gateway:
        assert asked(gateway, secret).status == 200
        remove(tmp_path, marker=True)
        with_store(url, nothing)
        until(lambda: asked(gateway, secret).status == 401, lambda: "the new database is not seen")
        assert "had keys before and has none now" in why(asked(gateway))
        second = add(url, "again")
        until(lambda: asked(gateway, second).status == 200)
        assert "No key can pass" not in why(asked(gateway))


@EVERY_DATABASE
def test_removing_keys_from_the_table_does_not_open_the_gateway(url: str) -> None:
    secret = add(url)
    with running({"store": {"url": url}}) as gateway:
        assert asked(gateway, secret).status == 200
        with_store(url, lambda store: store.database.execute("DELETE FROM keys"))
        until(lambda: asked(gateway, secret).status == 401)
        assert asked(gateway).status == 401


def test_a_store_that_had_keys_causes_a_warning_at_start(tmp_path: Path) -> None:
    url = database(tmp_path)
    secret = add(url)
    remove(tmp_path)
    with running({"store": {"url": url}}) as gateway:
        message = gateway.log_line(lambda line: line.get("event") == "no_valid_key")["message"]
        assert "the store had keys before and has none now" in message
        assert 'set server.authentication = "none"' in message
        for key in ("", secret):
            assert "`streamglot keys add NAME`" in why(asked(gateway, key))


def test_a_gateway_that_saw_keys_remembers_them_for_the_next_start(tmp_path: Path) -> None:
    """They were made by a version that left no marker, or on another machine."""
    url = database(tmp_path)
    add(url)
    marker = KeyMarker(tmp_path / "kept.db", "")
    marker.path.unlink()
    with running({"store": {"url": url}}):
        assert marker.is_set()
    remove(tmp_path)
    with running({"store": {"url": url}}) as gateway:
        assert asked(gateway).status == 401


def test_a_new_store_is_open_on_this_machine(url: str) -> None:
    with running({"store": {"url": url}}) as gateway:
        assert asked(gateway).status == 200
        assert not any(line.get("event") == "no_valid_key" for line in gateway.lines)


def test_a_worker_that_starts_later_asks_for_keys_too(upstream: HostileUpstream, tmp_path: Path) -> None:
    """Even if nothing on the disk says so any more."""
    folder = tmp_path / "store"
    folder.mkdir()
    url = database(folder)
    upstream.scripts["locked"] = text_script("word")
    add(url)

    async def drive() -> None:
        with serving(tmp_path, upstream.url, url, "--workers", "2") as served:
            await soon(lambda: len(served.workers()) == 2)
            before = served.workers()
            for worker in before:  # one that still starts would write to the folder, or end without it
                os.kill(worker, signal.SIGSTOP)
            await soon(lambda: all(map(stands_still, before)))
            shutil.rmtree(folder)
            folder.mkdir()
            for worker in before:
                os.kill(worker, signal.SIGKILL)
            await soon(lambda: len(served.workers()) == 2 and not set(served.workers()) & set(before))
            for _ in range(20):
                line = await Line.to(served.port)
                await line.ask(CHAT, {"model": "up/locked", "messages": [{"role": "user", "content": "q"}]})
                assert line.status == 401
                line.hang_up()

    at_once(drive)


def test_the_marker_of_a_database_elsewhere_is_in_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    one, other = KeyMarker(None, "postgresql://host/one"), KeyMarker(None, "postgresql://host/other")
    one.set()
    assert (one.is_set(), other.is_set()) == (True, False)
    assert one.path.is_relative_to(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    nowhere = KeyMarker(None, "postgresql://host/one")
    nowhere.set()
    assert not nowhere.is_set()


# --- keys that were revoked


def test_after_the_only_key_was_revoked_the_answer_says_how_to_continue(tmp_path: Path) -> None:
    url = database(tmp_path)
    secret = add(url)
    revoke(url)
    with running({"store": {"url": url}}) as gateway:
        for key in ("", secret):
            message = why(asked(gateway, key))
            assert "none is valid: the only one was revoked" in message
            assert "`streamglot keys add NAME`" in message
        second = add(url, "second")
        until(lambda: asked(gateway, second).status == 200)


# --- the operator says otherwise


def config_of(path: Path, server: str, url: str = "none") -> None:
    path.write_text(f'[server]\ndiscover = false\n{server}\n[store]\nurl = "{url}"\n')


def test_a_reload_without_keys_does_not_open_the_gateway(tmp_path: Path) -> None:
    path = tmp_path / "streamglot.toml"
    config_of(path, f'keys = [{{ name = "a", hash = "{digest_of("sesame")}" }}]')
    with running(path=path) as gateway:
        assert asked(gateway, "sesame").status == 200
        config_of(path, "")
        gateway.gateway.reload()
        assert "has none now" in why(asked(gateway))
        config_of(path, 'authentication = "none"')
        gateway.gateway.reload()
        assert asked(gateway).status == 200
        config_of(path, "")
        gateway.gateway.reload()
        assert asked(gateway).status == 401


def test_the_setting_admits_requests_without_a_key_on_loopback(tmp_path: Path) -> None:
    url = database(tmp_path)
    secret = add(url)
    with running({"store": {"url": url}, "server": {"authentication": "none"}}) as gateway:
        assert [asked(gateway, key).status for key in ("", secret, "wrong")] == [200, 200, 200]


def test_the_setting_requires_keys_even_if_none_exists(tmp_path: Path) -> None:
    with running({"store": {"url": database(tmp_path)}, "server": {"authentication": "required"}}) as gateway:
        assert 'server.authentication is "required"' in why(asked(gateway))


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ({"authentication": "none", "host": "0.0.0.0"}, "without keys"),
        ({"authentication": "none", "host": "::", "keys": []}, "without keys"),
    ],
)
def test_remote_requests_need_a_key(server: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Gateway(LoadedConfig(Config(server=ServerConfig(**server), store=StoreConfig(url="none"))), {})


def test_a_configuration_that_lets_everybody_in_from_outside_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "open.toml"
    path.write_text('[server]\nhost = "0.0.0.0"\nauthentication = "none"\n')
    with pytest.raises(
        ConfigError, match=r"server.authentication is \"none\" and server.host is '0.0.0.0'.*streamglot keys add NAME"
    ):
        load(path, {})


def test_the_same_key_twice_is_refused() -> None:
    keys = [KeyConfig(name="a", hash=digest_of("k")), KeyConfig(name="b", hash=f"SHA256:{digest_of('k')}".lower())]
    with pytest.raises(ConfigError, match="'b' is the same as that of 'a'"):
        Gateway(LoadedConfig(Config(server=ServerConfig(keys=keys))), {})


def test_requests_are_refused_until_the_store_was_read() -> None:
    checker = Authenticator(ServerConfig(), {}, StoredCallers())
    assert checker.asks
    with pytest.raises(Exception, match="asks for a key"):
        checker.admit({})


def test_a_reload_succeeds_while_all_keys_are_revoked(tmp_path: Path) -> None:
    """The gateway stays closed, so there is nothing to refuse."""
    url = database(tmp_path)
    add(url)
    gateway = Gateway(
        LoadedConfig(Config(server=ServerConfig(host="0.0.0.0", discover=False), store=StoreConfig(url=url))),
        {"HOME": str(tmp_path)},
        lambda line: None,
    )

    async def drive() -> None:
        async with gateway.running():
            assert gateway.recording.store is not None
            await gateway.recording.store.keys.revoke("me")
            await gateway.access.stored.refresh(gateway.recording.store)
            gateway.lifecycle.apply(gateway.lifecycle.loaded, starting=False)
            assert not gateway.access.authenticator.state.usable
            assert gateway.access.authenticator.asks

    asyncio.run(drive())


# --- the rule


@pytest.mark.parametrize(
    ("server", "store", "asked", "usable", "says"),
    [
        ({}, (0, 0, False), False, True, "there is none, and only this machine"),
        ({}, (1, 0, True), True, True, "1 in the store"),
        ({"keys": [KeyConfig(name="a")]}, (2, 1, True), True, True, "1 in the configuration and 2 in the store"),
        ({}, (0, 1, True), True, False, "the only one was revoked"),
        ({}, (0, 3, True), True, False, "all 3 were revoked"),
        ({}, (0, 0, True), True, False, "had keys before and has none now"),
        ({"authentication": "required"}, (0, 0, False), True, False, "required"),
        ({"host": "0.0.0.0"}, (0, 0, False), True, False, "0.0.0.0 can be reached from outside"),
        ({"authentication": "none"}, (0, 0, True), False, True, 'server.authentication is "none"'),
        ({"authentication": "none"}, (1, 0, True), False, True, "1 key in the store is ignored"),
        ({"authentication": "none"}, (2, 0, True), False, True, "2 keys in the store are ignored"),
    ],
)
def test_the_rule_for_required_keys(
    server: dict[str, Any], store: tuple[int, int, bool], asked: bool, usable: bool, says: str
) -> None:
    stored, revoked, had_keys = store
    found = authentication(ServerConfig(**server), stored=stored, revoked=revoked, had_keys=had_keys)
    assert (found.required, found.usable) == (asked, usable)
    assert says in found.summary
    assert bool(found.step) is not usable
