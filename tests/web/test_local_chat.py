"""The chat with the real local model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from gateway.conftest import LONG_TIMEOUTS
from gateway.running import Running, running
from local.model import real_model
from web.chat_actions import answers, ask, over, use_model
from web.chromium import Watched, needed


@pytest.fixture(scope="module")
def local_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    needed()
    with real_model() as model:
        upstream = {
            "dialect": model.dialect,
            "base_url": model.base_url,
            "key": model.key,
            "models": ["local"],
            "timeouts": LONG_TIMEOUTS,
        }
        store = {"url": f"sqlite:///{tmp_path_factory.mktemp('local')}/store.db"}
        with running({"upstreams": {"local": upstream}, "store": store}) as gateway:
            yield gateway


def test_a_real_model_answers_in_the_page(browser: Browser, local_gateway: Running) -> None:
    watched = Watched(browser, local_gateway.url)
    page = use_model(watched, "local")
    page.get_by_label("System prompt, parameters and tools").click()
    page.get_by_role("dialog").get_by_label("Longest answer").fill("24")
    page.get_by_role("dialog").get_by_role("button", name="Use these").click()
    ask(page, "Say hello.")
    over(page)
    expect(answers(page).locator(".markdown")).not_to_be_empty()
    expect(answers(page).locator(".numbers")).to_contain_text(" out")
    watched.close()
