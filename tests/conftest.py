"""Databases and the clients in Node for the tests. The tests of the store and of durable batches that take ``url`` run on
SQLite and on PostgreSQL, others on SQLite unless they say ``EVERY_DATABASE``."""

from __future__ import annotations

import gc
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from clients.node import NodeClients, missing
from databases import empty_database
from store.servers import NoServer, Postgres, started_valkey
from streamglot.store.database import sqlite
from waiting import WAIT_SECONDS

# How fast inputs are generated and tried depends on the load of the machine, so it must not fail a test.
settings.register_profile("random", deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow])
# The suite generates the same few inputs in each run; `make fuzz` runs the same tests with many new ones.
settings.register_profile("suite", settings.get_profile("random"), max_examples=25, derandomize=True)
settings.load_profile("suite")

# A shell starts background jobs with Ctrl-C ignored, and the programs that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# What is imported and collected is no garbage.
gc.disable()


def pytest_collection_finish() -> None:
    """Excludes the collected tests and the imported modules from garbage collection. They live as long as the process, and every full
    collection would visit them all."""
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: runs first, so that no process works on it alone at the end")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says at the end which tests did not run, and why."""
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", []))
    terminalreporter.section("not run")
    for reason, number in reasons.most_common():
        terminalreporter.line(f"{number} {'test' if number == 1 else 'tests'}: {reason}")
    if not reasons:
        terminalreporter.line("every test that was selected ran")


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Redirects the user's data directory, so that tests do not write to the developer's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture
def mypy_cache(request: pytest.FixtureRequest) -> Path:
    """What mypy found in an earlier run of this test, above all about packages. It is for this test alone."""
    assert request.config.cache is not None
    return request.config.cache.mkdir(f"mypy-{request.node.name}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    try:
        server = Postgres()
    except NoServer as error:
        warnings.warn(f"HALF OF THE STORE'S TESTS ARE SKIPPED: {error}", stacklevel=1)
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    return empty_database(request, tmp_path)


@pytest.fixture
def patient_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite lets a store wait for the transaction of another one as long as it takes. Tests with two stores on one file need it: the
    other store may stand still within a transaction."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", WAIT_SECONDS)


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    try:
        server = started_valkey()
    except ImportError as error:
        warnings.warn(f"THE TESTS OF THE VALKEY BUFFER ARE SKIPPED: {error}", stacklevel=1)
        pytest.skip(str(error))
    try:
        yield server.connection_url
    finally:
        server.stop()


@pytest.fixture(scope="module")
def node() -> Iterator[NodeClients]:
    reason = missing()
    if reason is not None:
        warnings.warn(f"NOT CHECKED with the real clients: {reason}", stacklevel=1)
        pytest.skip(reason)
    with NodeClients() as clients:
        yield clients
