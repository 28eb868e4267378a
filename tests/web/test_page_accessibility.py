"""The page is usable for everybody: no violations that axe finds, on a phone, in the dark theme, by keyboard, with a key."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from gateway.running import Running, running
from gateway.upstream import HostileUpstream, Until
from streamglot.gateway.api.pages import FOLDER, MEDIA_TYPES
from web.chat_actions import answers, ask, over, use_model
from web.chromium import PHONE, Watched, violations
from web.scripts import OVERLOADED, answer, calling, text_script

MAX_BYTES = 200_000
"""The largest size of the whole page, compressed."""
SCHEMES = ["light", "dark"]
KEYS = [{"name": "ada", "hash": sha256(b"sesame").hexdigest()}]


@pytest.fixture(params=[(scheme, size) for scheme in SCHEMES for size in ("desktop", "phone")], ids="-".join)
def shown(request: pytest.FixtureRequest, browser: Browser, gateway: Running) -> Iterator[Watched]:
    scheme, size = request.param
    options = {"viewport": PHONE, "has_touch": True, "is_mobile": True} if size == "phone" else {}
    page = Watched(browser, gateway.url, color_scheme=scheme, reduced_motion="reduce", **options)
    try:
        yield page
    finally:
        page.close()


def fits(watched: Watched) -> None:
    """Nothing is wider than the window."""
    assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than its window"


def test_the_pages_have_no_violations(shown: Watched, upstream: HostileUpstream, tmp_path: Path) -> None:
    scripts = [answer(), calling("search", '{"q": "x"}', text="See:"), OVERLOADED]
    upstream.scripts["lab-look"] = lambda seen: scripts[sum(message["role"] == "user" for message in seen.body["messages"]) - 1]
    page = use_model(shown, "lab-look")
    page.wait_for_selector(".hl-string")
    fits(shown)
    assert violations(page) == []
    page.screenshot(path=tmp_path / "welcome.png")
    for number, text in enumerate(("How does a circuit breaker work?", "Search", "And now?")):
        ask(page, text)
        expect(answers(page)).to_have_count(number + 1)
        over(page, "error" if number == 2 else "done")
    page.get_by_label("Thinking", exact=True).get_by_role("button").click()
    page.locator(".tool .fold").click()
    fits(shown)
    assert violations(page) == []
    page.screenshot(path=tmp_path / "chat.png")
    page.goto(f"{shown.url}/#/overview")
    page.wait_for_selector(".tiles")
    fits(shown)
    assert violations(page) == []
    page.screenshot(path=tmp_path / "overview.png")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(","))) < 200 if dark else "247" in background


def test_dialogs_and_menus_have_no_violations(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-menu"] = text_script("Fine")
    page = use_model(watched, "lab-menu")
    ask(page, "Hello")
    over(page)
    page.get_by_label("System prompt, parameters and tools").click()
    page.get_by_role("dialog").wait_for()
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Model:").click()
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox", name="Models")).to_have_count(0)
    entry = page.get_by_label("Sessions", exact=True).locator(".current")  # the first entry may be another one at first
    entry.hover()
    entry.get_by_role("button").click()
    page.get_by_role("menuitem", name="Rename").wait_for()
    assert violations(page) == []


def test_the_theme_is_remembered(watched: Watched) -> None:
    page = watched.open()
    page.get_by_label("Theme: auto").click()
    page.get_by_label("Theme: light").click()
    expect(page.get_by_label("Theme: dark")).to_be_visible()
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_the_text_does_not_move_while_it_streams(watched: Watched, upstream: HostileUpstream) -> None:
    gate = threading.Event()
    script = list(answer())
    upstream.scripts["lab-still"] = [*script[:60], Until(gate), *script[60:]]
    page = use_model(watched, "lab-still")
    ask(page, "How?")
    expect(answers(page)).to_contain_text("circuit breaker")
    page.evaluate(
        """window.shift = 0; new PerformanceObserver((list) => {
            for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
        }).observe({type: "layout-shift", buffered: false})"""
    )
    gate.set()
    over(page)
    assert page.evaluate("window.shift") < 0.1


def test_everything_is_reached_by_keyboard(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-keys"] = text_script("Fine")
    page = use_model(watched, "lab-keys")
    expect(page.get_by_label("Your message")).to_be_focused()
    page.keyboard.type("Hello")
    page.keyboard.press("Enter")
    over(page)
    expect(page.get_by_label("Sessions", exact=True).locator(".current")).to_have_count(1)  # the list is whole
    wanted = {
        "Chat",
        "Overview",
        "New chat",
        "Search sessions",
        "Copy answer",
        "Answer again",
        "Branch from here",
        "Your message",
        "Attach images or text",
        "Copy message",
        "Edit and ask again",
        "Inspect this stream",
    }
    reached = set()
    for _ in range(2 * page.locator("a, button, input, textarea, [tabindex='0']").count()):
        page.keyboard.press("Tab")
        label = page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()")
        reached.add(str(label))
        if wanted <= reached:
            break
    assert wanted <= reached


def test_a_status_region_announces_changes(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-told"] = text_script("Fine")
    page = use_model(watched, "lab-told")
    expect(page.get_by_role("log", name="Conversation")).to_be_visible()
    assert page.locator("[aria-live=polite], [role=status]").count() == 1
    ask(page, "Hello")
    over(page)
    expect(page.get_by_role("status")).to_have_text("Done")


def test_the_page_is_light(gateway: Running) -> None:
    """All its files together, whether they are loaded at first or later."""
    files = [file for file in FOLDER.rglob("*") if file.suffix in MEDIA_TYPES and file.suffix != ".LICENSE"]
    weight = sum(len(gzip.compress(file.read_bytes(), 6)) for file in files)
    assert weight < MAX_BYTES, f"{weight} bytes"
    served = gateway.ask("/web/vendor/marked.js", headers={"accept-encoding": "gzip"})
    assert gzip.decompress(served.body) == (FOLDER / "vendor" / "marked.js").read_bytes()


def test_the_first_paint_waits_for_no_model(watched: Watched) -> None:
    """The list of models never comes, and the page is there."""
    watched.context.route("**/overview/models", lambda route: None)
    page = watched.open()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_label("Your message")).to_be_editable()


@pytest.fixture(scope="module")
def locked(upstream: HostileUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    lab = {"dialect": "openai_chat", "base_url": f"{upstream.url}/v1", "models": ["lab-*"], "attempts": 1}
    store = {"url": f"sqlite:///{tmp_path_factory.mktemp('locked')}/store.db"}
    with running({"upstreams": {"lab": lab}, "store": store, "server": {"keys": KEYS}}) as gateway:
        yield gateway


def test_a_key_is_asked_for_and_stays_in_the_tab(browser: Browser, locked: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-locked"] = text_script("Welcome")
    watched = Watched(browser, locked.url)
    asked: list[str] = []
    watched.page.on("request", lambda request: asked.append(request.url))
    page = use_model(watched, "lab-locked")
    dialog = page.get_by_role("dialog", name="This gateway requires a key")
    dialog.get_by_label("Key").fill("wrong")
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog.get_by_label("Key")).to_have_value("")  # the dialog has closed, and asks again
    dialog.get_by_label("Key").fill("sesame")
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog).to_have_count(0)
    ask(page, "Let me in")
    over(page)
    expect(answers(page)).to_contain_text("Welcome")
    page.reload()
    expect(answers(page)).to_contain_text("Welcome")
    assert page.evaluate("sessionStorage.getItem('streamglot.key')") == "sesame"
    assert "sesame" not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
    assert not [url for url in asked if "sesame" in url or "wrong" in url]
    other = watched.context.new_page()
    other.goto(locked.url)
    expect(other.get_by_role("dialog", name="This gateway requires a key")).to_be_visible()
    page.get_by_label("Forget the key").click()
    assert page.evaluate("sessionStorage.getItem('streamglot.key')") is None
    watched.close()


NOTE_CLOSED = """
const close = HTMLDialogElement.prototype.close;
window.closedDialogs = [];
HTMLDialogElement.prototype.close = function () { closedDialogs.push(this); close.call(this); };
"""


def test_a_dialog_that_was_closed_leaves_the_next_one_open(browser: Browser, locked: Running) -> None:
    """A browser tells of a close with the next frame; the page may show another dialog by then."""
    watched = Watched(browser, locked.url)
    watched.page.add_init_script(NOTE_CLOSED)
    page = watched.open()
    dialog = page.get_by_role("dialog", name="This gateway requires a key")
    dialog.get_by_label("Key").fill("wrong")
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog.get_by_label("Key")).to_have_value("")  # the dialog has closed, and asks again
    assert page.evaluate("closedDialogs.map((one) => one.dispatchEvent(new Event('close'))).length")
    dialog.get_by_label("Key").fill("sesame")
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog).to_have_count(0)
    assert page.evaluate("sessionStorage.getItem('streamglot.key')") == "sesame"
    watched.close()


def test_a_late_refusal_of_an_earlier_key_does_not_ask_for_a_key_again(
    browser: Browser, locked: Running, upstream: HostileUpstream
) -> None:
    upstream.scripts["lab-late"] = text_script("Welcome")
    watched = Watched(browser, locked.url)
    held: list[Route] = []
    watched.context.route("**/overview/models", lambda route: route.continue_() if held else held.append(route))
    page = use_model(watched, "lab-late")
    dialog = page.get_by_role("dialog", name="This gateway requires a key")
    dialog.get_by_label("Key").fill("sesame")
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog).to_have_count(0)
    with page.expect_response(held[0].request.url):
        held[0].fulfill(status=401, json={"error": {"message": "no key"}})
    ask(page, "Let me in")
    over(page)
    expect(dialog).to_have_count(0)
    watched.close()
