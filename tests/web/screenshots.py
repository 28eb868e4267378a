"""``make screenshots``: the pictures of the page in docs/pictures, made with a scripted upstream. Nothing in them is a real
conversation."""

from __future__ import annotations

import random
import struct
import tempfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, expect

from gateway.dialect_clients import body_of
from gateway.running import Running, running
from gateway.upstream import HostileUpstream, Until, hostile, streamed
from web.chat_actions import answers, ask, over, use_model
from web.chromium import PHONE, Watched, launched
from web.scripts import OVERLOADED, THOUGHT, answer, calling, ending, paced, text_script, words

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
CHAT = "/v1/chat/completions"
QUESTION = "How does a circuit breaker work? Show me a small one."
PACE = 0.004
"""Seconds between two words: the waterfall and the speed look like those of a fast model."""


def scripts(upstream: HostileUpstream, held: threading.Event) -> None:
    upstream.scripts["gpt-5-mini"] = streamed(
        *paced(words(THOUGHT, "reasoning_content"), PACE * 8), *paced(words(TEXT_SHORT), PACE), ending()
    )
    upstream.scripts["gpt-5"] = answer()
    upstream.scripts["mistral-large-latest"] = text_script("Fine.", *[" More."] * 80)
    upstream.scripts["mistral-small-latest"] = OVERLOADED
    upstream.scripts["codestral-latest"] = text_script("Working on it", Until(held))
    upstream.scripts["agent"] = [
        list(calling("calculator", '{"expression": "0.5 * 2 ** 4"}', text="Let me work out the longest pause.")),
        list(text_script(*AGENT)),
    ]
    upstream.scripts["shipper"] = calling(
        "deploy", '{"service": "gateway", ', '"to": "production"}', text="All checks are green. I will deploy it now."
    )


TEXT_SHORT = """A **circuit breaker** stops asking an upstream that keeps failing, so that requests do not pile up behind it.

| State | What happens | Leaves when |
|---|---|---|
| closed | requests pass | 5 failures in a row |
| open | requests are refused at once | 20 s have passed |
| half open | one request tries | it succeeds, or fails |

```python
class Breaker:
    def __init__(self, failures: int = 5, seconds: float = 20.0) -> None:
        self.failures, self.seconds = failures, seconds
        self._failed, self._opened = 0, 0.0

    def allows(self, now: float) -> bool:
        return self._failed < self.failures or now - self._opened >= self.seconds
```

Let exactly **one** request through when the time is over.
"""
AGENT = (
    "With a first pause of 0.5 s that doubles four times, ",
    "the longest pause is **8 s**. ",
    "Add jitter, so that clients do not ",
    "come back all at once.",
)
CONFIG = {
    "server": {"default_model": "gpt-5-mini"},
    "policies": [{"use": "human_approval", "tools": ["deploy"]}],
    "tools": {"enabled": ["calculator"]},
}


def upstreams_of(url: str) -> dict[str, object]:
    def one(*models: str) -> dict[str, object]:
        return {
            "dialect": "openai_chat",
            "base_url": f"{url}/v1",
            "models": list(models),
            "attempts": 1,
            "breaker": {"failures": 1000},
        }

    return {"openai": one("gpt-5-mini", "gpt-5"), "mistral": one("mistral-*", "codestral-*"), "lab": one("agent", "shipper")}


# --- scenes


def chat(watched: Watched, gateway: Running) -> None:
    page = use_model(watched, "gpt-5-mini")
    page.evaluate("localStorage.setItem('streamglot.settings', JSON.stringify({model: 'agent', tools: ['calculator']}))")
    page.reload()
    ask(page, "I retry five times, from 0.5 s on, doubling. What is the longest pause?")
    over(page)
    page.evaluate("localStorage.setItem('streamglot.settings', JSON.stringify({model: 'gpt-5-mini'}))")
    page.goto(f"{gateway.url}/#/chat")
    page.reload()
    ask(page, QUESTION)
    over(page)
    page.wait_for_selector(".hl-keyword")
    expect(answers(page).locator(".numbers")).to_contain_text("$")
    page.locator(".scroller").evaluate("box => box.scrollTo(0, 0)")
    expect(page.locator(".session-list li").first).to_contain_text(QUESTION[:20])


def approval(watched: Watched, _gateway: Running) -> None:
    page = use_model(watched, "shipper")
    ask(page, "Ship version 2.1 to production.")
    expect(page.get_by_label("Approval needed")).to_be_visible()
    page.wait_for_selector(".approval .hl-attr")


def welcome(watched: Watched, _gateway: Running) -> None:
    use_model(watched, "gpt-5-mini").wait_for_selector(".hl-string")


def inspector(watched: Watched, gateway: Running) -> None:
    page = use_model(watched, "gpt-5-mini")
    ask(page, QUESTION)
    over(page)
    page.get_by_label("Inspect this stream").last.click()
    page.wait_for_url("**/#/inspect/*")
    page.wait_for_selector("main h1")
    page.wait_for_load_state("networkidle")
    del gateway


def overview(watched: Watched, gateway: Running) -> None:
    chance = random.Random(17)
    models = ["gpt-5-mini"] * 6 + ["gpt-5"] * 3 + ["mistral-large-latest"] * 4 + ["mistral-small-latest"]
    for _ in range(90):
        gateway.ask(CHAT, body_of("openai_chat", chance.choice(models)))
    for number, entry in enumerate(gateway.gateway.recording.live._finished):
        entry.shown.at -= 3500 * (1 - number / 90) ** 1.3  # as if they had come in the course of an hour
        entry.shown.first_event = (entry.shown.first_event or 0) + chance.uniform(0.18, 0.9) if entry.shown.first_event else None
    for _ in range(3):
        threading.Thread(target=gateway.ask, args=(CHAT, body_of("openai_chat", "codestral-latest")), daemon=True).start()
    page = watched.open("#/overview")
    expect(page.get_by_label("Open streams", exact=True).get_by_role("row")).to_have_count(4)


SCENES: dict[str, tuple[Callable[[Watched, Running], None], dict[str, object]]] = {
    "chat": (chat, {}),
    "chat-dark": (chat, {"color_scheme": "dark"}),
    "chat-phone": (chat, {"viewport": PHONE, "is_mobile": True, "has_touch": True, "color_scheme": "dark"}),
    "approval": (approval, {}),
    "welcome": (welcome, {}),
    "inspector": (inspector, {"viewport": {"width": 1280, "height": 900}}),
    "overview": (overview, {"viewport": {"width": 1280, "height": 1000}}),
}


# --- files


def smaller(picture: bytes) -> bytes:
    """The same PNG, packed as tightly as zlib can: browsers pack for speed."""
    place, packed, chunks = 8, b"", []
    while place < len(picture):
        length, kind = struct.unpack(">I4s", picture[place : place + 8])
        data = picture[place + 8 : place + 8 + length]
        place += length + 12
        if kind == b"IDAT":
            packed += data
        else:
            chunks.append((kind, data))
    chunks.insert(-1, (b"IDAT", zlib.compress(zlib.decompress(packed), 9)))
    made = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return picture[:8] + made


def taken(name: str, browser: Browser, upstream: HostileUpstream) -> bytes:
    """One picture, with a gateway of its own so that each begins with an empty history."""
    scene, options = SCENES[name]
    held = threading.Event()
    scripts(upstream, held)
    upstream._turns.clear()
    with tempfile.TemporaryDirectory() as folder:
        store = {"url": f"sqlite:///{folder}/store.db", "raw": True}
        with running({**CONFIG, "upstreams": upstreams_of(upstream.url), "store": store}) as gateway:
            watched = Watched(browser, gateway.url, reduced_motion="reduce", **options)
            try:
                scene(watched, gateway)
                watched.page.mouse.move(0, 0)
                return watched.page.screenshot(animations="disabled", caret="hide")
            finally:
                watched.context.close()
                held.set()


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with hostile() as upstream, launched() as browser:
        for name in SCENES:
            picture = smaller(taken(name, browser, upstream))
            (PICTURES / f"{name}.png").write_bytes(picture)
            print(f"docs/pictures/{name}.png  {len(picture) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
