"""Actions of a user in the chat."""

from __future__ import annotations

import time
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from gateway.upstream import HostileUpstream, Seen
from waiting import WAIT_SECONDS
from web.chromium import Watched

OVER = "[data-state=done], [data-state=error], [data-state=stopped]"
# A browser that paints no frame: what waits for the next one, and every timer, waits until ``paint`` is called.
NOT_PAINTED = """
    const waiting = [];
    const frame = window.requestAnimationFrame, timer = window.setTimeout;
    window.requestAnimationFrame = window.setTimeout = (work) => waiting.push(work);
    window.paint = () => {
      Object.assign(window, { requestAnimationFrame: frame, setTimeout: timer });
      for (const work of waiting) work(performance.now());
    };
    null; // a function as the last value would be called
"""


def use_model(watched: Watched, model: str, fragment: str = "") -> Page:
    """The chat with this model chosen, as the browser remembers it."""
    watched.page.add_init_script(
        f"localStorage.getItem('streamglot.settings') ?? localStorage.setItem('streamglot.settings', JSON.stringify({{model: '{model}'}}))"
    )
    return watched.open(fragment)


def ask(page: Page, text: str) -> None:
    """Sends a message, as soon as the page takes one: not while it opens a session."""
    page.get_by_label("Your message").fill(text)
    expect(page.get_by_label("Send (Enter)")).to_be_enabled()
    page.get_by_label("Your message").press("Enter")


def answers(page: Page) -> Locator:
    return page.get_by_label("Answer", exact=True)


def over(page: Page, state: str = "done") -> None:
    """Waits until the answer has ended this way."""
    expect(page.locator(".status-line")).to_have_attribute("data-state", state)
    expect(answers(page).last).to_have_attribute("aria-busy", "false")


def reached(page: Page, what: Callable[[], object]) -> None:
    """Waits for a condition outside the page. Meanwhile the page's requests go on: each passes through a handler in this thread,
    which a plain wait would block."""
    end = time.monotonic() + WAIT_SECONDS
    while not what():
        assert time.monotonic() < end, "it did not happen"
        page.wait_for_timeout(5)


def asked_upstream(page: Page, upstream: HostileUpstream, model: str, what: Callable[[Seen], object] = lambda seen: True) -> None:
    """Waits until the upstream has a request for this model of which ``what`` is true."""
    reached(page, lambda: any(map(what, upstream.requests(model))))
