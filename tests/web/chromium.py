"""Chromium for tests and pictures: Debian's package, driven by Playwright. If it is missing, the tests are skipped with a
warning."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Route, expect, sync_playwright

from waiting import WAIT_SECONDS

expect.set_options(timeout=WAIT_SECONDS * 1000)
FOLDER = Path(__file__).parent
AXE = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


def chromium() -> str:
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), "")


def needed(what: str = "Chromium", there: object = None) -> None:
    """Skips the test, loudly, where a browser cannot be had; under CI that is a failure."""
    if there if there is not None else chromium():
        return
    why = f"NOT TESTED in a browser: {what} is not installed; `make browser` installs it"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    warnings.warn(why, stacklevel=2)
    pytest.skip(why)


@contextmanager
def launched() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A context of the browser for pages one after the other. A new context costs as much as a whole test: the browser draws
    another window, with its own tabs and bars."""

    def __init__(self, browser: Browser, url: str, **options: object) -> None:
        self.executed: list[str] = []
        self.context: BrowserContext = browser.new_context(viewport=options.pop("viewport", DESKTOP), **options)  # type: ignore[arg-type]  # as the test gives them
        self.context.set_default_timeout(WAIT_SECONDS * 1000)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
        self.context.expose_function("executed", lambda what: self.executed.append(str(what)))

    def keep_open(self) -> None:
        """Leaves an empty page in it. A window closes with its last page."""
        self.context.new_page()

    def empty_page(self, url: str) -> Page:
        """A page without anything that an earlier one stored."""
        page = self.context.new_page()
        if len(self.context.pages) > 1:
            self.context.clear_cookies()
            session = self.context.new_cdp_session(page)
            session.send("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
            session.detach()
        return page


class Watched:
    """A page and what went wrong in it. Requests to any host but the gateway's are refused and noted. It has a window of its own,
    unless it gets one that stays open."""

    def __init__(self, place: Browser | Window, url: str, **options: object) -> None:
        self.url = url
        self.faults: list[str] = []
        self.elsewhere: list[str] = []
        self.executed: list[str] = []
        self.hostile = False
        self._shared = isinstance(place, Window)
        window = place if isinstance(place, Window) else Window(place, url, **options)
        window.executed = self.executed
        self.context = window.context
        self.context.route("**/*", self._only_here)
        self.page: Page = window.empty_page(url)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("console", lambda message: self._noted(message.type, message.text))
        self.page.on("dialog", self._asked)

    def _asked(self, dialog: Dialog) -> None:
        self.executed.append(dialog.message)
        dialog.dismiss()

    def _noted(self, kind: str, text: str) -> None:
        """An HTTP status is no fault. With ``hostile`` neither is what the policy blocks while DOMPurify parses it, in a
        document that is not shown: the tests of injections look into the one that is."""
        blocked = any(word in text for word in ("The action has been blocked", "will not be executed"))
        status = text.startswith("Failed to load resource: the server responded")
        if kind == "error" and not status and not (self.hostile and blocked):
            self.faults.append(f"console: {text}")

    def _only_here(self, route: Route) -> None:
        if urlsplit(route.request.url).netloc == urlsplit(self.url).netloc or route.request.url.startswith(("data:", "blob:")):
            route.continue_()
        else:
            self.elsewhere.append(route.request.url)
            route.abort()

    def open(self, fragment: str = "") -> Page:
        self.page.goto(f"{self.url}/{fragment}")
        self.page.wait_for_selector("nav.tabs")
        return self.page

    def close(self) -> None:
        if self._shared:
            for page in self.context.pages[1:]:
                page.close()
            self.context.unroute_all()
        else:
            self.context.close()
        assert not self.faults, self.faults
        assert not self.executed, f"it was executed: {self.executed}"
        assert not self.elsewhere, f"the page asked another host: {self.elsewhere}"


def violations(page: Page) -> list[str]:
    """The faults that axe finds in the page."""
    needed("axe-core", AXE.exists())
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}" for one in found]
