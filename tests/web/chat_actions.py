"""What a person does in the chat."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from web.chromium import Watched

OVER = "[data-state=done], [data-state=error], [data-state=stopped]"


def use_model(watched: Watched, model: str, fragment: str = "") -> Page:
    """The chat with this model chosen, as the browser remembers it."""
    watched.context.add_init_script(
        f"localStorage.getItem('streamglot.settings') ?? localStorage.setItem('streamglot.settings', JSON.stringify({{model: '{model}'}}))"
    )
    return watched.open(fragment)


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> Locator:
    return page.get_by_label("Answer", exact=True)


def over(page: Page, state: str = "done") -> None:
    """Waits until the answer has ended this way."""
    expect(page.locator(".status-line")).to_have_attribute("data-state", state)
