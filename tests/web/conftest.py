"""Fixtures of the page's tests: one browser, one scripted upstream and one gateway for each module.

The browser is not shared by modules. Playwright's plain interface runs an event loop in this thread while it is open, and tests
of other modules run loops of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from gateway.conftest import LONG_TIMEOUTS
from gateway.running import Running, running
from gateway.upstream import HostileUpstream, hostile
from waiting import WAIT_SECONDS
from web.chromium import Watched, Window, launched, needed
from web.scripts import answer


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    needed()
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def upstream() -> Iterator[HostileUpstream]:
    with hostile() as server:
        server.scripts["thinker"] = answer()
        yield server


@pytest.fixture(scope="module")
def gateway(upstream: HostileUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Stores everything, knows any model of the scripted upstream as ``lab/NAME``, holds calls of ``deploy`` for a person, and
    has the built-in tools."""
    lab = {
        "dialect": "openai_chat",
        "base_url": f"{upstream.url}/v1",
        "models": ["thinker", "lab-*"],
        "attempts": 1,
        "timeouts": LONG_TIMEOUTS,
        "breaker": {"failures": 1_000_000},
    }
    config = {
        "upstreams": {"lab": lab, "patient": {**lab, "models": ["patient-*"], "attempts": 3}},
        "store": {"url": f"sqlite:///{tmp_path_factory.mktemp('web')}/store.db", "raw": True},
        "server": {"default_model": "thinker", "keep_alive_seconds": 2 * WAIT_SECONDS},
        "policies": [{"use": "human_approval", "tools": ["deploy"]}],
        "tools": {"enabled": ["calculator"]},
    }
    with running(config) as started:
        yield started


@pytest.fixture(scope="module")
def window(browser: Browser, gateway: Running) -> Window:
    window = Window(browser, gateway.url)
    window.keep_open()
    return window


@pytest.fixture
def watched(window: Window, gateway: Running) -> Iterator[Watched]:
    """A page of its own for each test. It must have no errors, and it may send requests only to the gateway."""
    page = Watched(window, gateway.url)
    try:
        yield page
    finally:
        page.close()
