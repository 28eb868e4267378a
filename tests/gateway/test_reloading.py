"""Settings that a running gateway cannot change, when its configuration is read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.running import running
from streamglot.config import load
from streamglot.errors import ConfigError
from streamglot.gateway.auth.authenticator import digest_of
from streamglot.gateway.supervisor import _Supervisor, listen

KEYS = f'keys = [{{ name = "a", hash = "{digest_of("sesame")}" }}]\n'
OUTSIDE = f'[server]\ndiscover = false\nhost = "0.0.0.0"\n{KEYS}'


@pytest.mark.parametrize("change", ['authentication = "none"', KEYS, ""], ids=["open", "keys", "auto"])
def test_a_gateway_that_others_reach_stays_closed(tmp_path: Path, change: str) -> None:
    """The new file says that only this machine reaches it. The socket is still open to others."""
    path = tmp_path / "streamglot.toml"
    path.write_text(OUTSIDE)
    with running(path=path) as gateway:
        path.write_text(f'[server]\ndiscover = false\nhost = "127.0.0.1"\n{change}\n')
        gateway.gateway.reload()
        assert gateway.lines[-1]["event"] == "reload_failed"
        assert "restart it" in gateway.lines[-1]["message"]
        assert gateway.ask("/metrics").status == 401
        assert gateway.ask("/turns").status == 401


def test_settings_that_need_a_restart_are_named_and_keep_their_values(tmp_path: Path) -> None:
    path = tmp_path / "streamglot.toml"
    path.write_text("[server]\ndiscover = false\n")
    with running(path=path) as gateway:
        before = gateway.gateway.lifecycle.loaded.config
        path.write_text(
            "[server]\ndiscover = false\nport = 1\nmax_connections = 7\nwait = 1.5\n[batches]\nmax_items = 5\n"
            "[valkey]\nurl = 'valkey://127.0.0.1:1'\n"
        )
        gateway.gateway.reload()
        line, after = gateway.lines[-1], gateway.gateway.lifecycle.loaded.config
        assert line["needs_restart"] == ["server.port", "server.max_connections", "valkey.url", "batches.max_items"]
        assert (after.server.port, after.server.max_connections) == (before.server.port, before.server.max_connections)
        assert (after.batches, after.valkey) == (before.batches, before.valkey)
        assert after.server.wait == 1.5


@pytest.mark.parametrize(
    "change",
    [
        "[tools]\nenabled = ['*']\npython = ['exiting']",
        "[tools]\nenabled = ['*']\npython = ['{folder}/exiting.py']",
        "[[policies]]\nuse = 'exiting:Judge'",
        "[engine]\nstages = ['exiting:make']",
    ],
)
def test_a_module_that_ends_the_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit(3)\n")
    path = tmp_path / "streamglot.toml"
    path.write_text("[server]\ndiscover = false\n")
    with running(path=path) as gateway:
        path.write_text(f"[server]\ndiscover = false\n{change.format(folder=tmp_path)}\n")
        gateway.gateway.reload()
        assert gateway.lines[-1]["event"] == "reload_failed"
        assert "SystemExit" in gateway.lines[-1]["message"]
        assert gateway.ask("/health").status == 200
    with listen("127.0.0.1", 0) as listener:
        path.write_text("[server]\ndiscover = false\n")
        supervisor = _Supervisor(load(path, {}), listener)
        path.write_text(f"[server]\ndiscover = false\n{change.format(folder=tmp_path)}\n")
        supervisor._reload()


def test_certificates_are_read_before_a_configuration_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "streamglot.toml"
    path.write_text(f'[upstreams.one]\nbase_url = "https://host/v1"\nca_file = "{path}"\n')
    with pytest.raises(ConfigError, match="has no certificates in PEM form"):
        load(path, {})


def test_workers_that_start_later_have_the_same_database(tmp_path: Path) -> None:
    path = tmp_path / "streamglot.toml"
    path.write_text(f"[store]\nurl = 'sqlite:///{tmp_path}/first.db'\n")
    with listen("127.0.0.1", 0) as listener:
        supervisor = _Supervisor(load(path, {}), listener)
        path.write_text(f"[store]\nurl = 'sqlite:///{tmp_path}/second.db'\n[server]\nwait = 1.5\n")
        supervisor._reload()
    assert supervisor._loaded.config.store.url.endswith("first.db")
    assert supervisor._loaded.config.server.wait == 1.5
