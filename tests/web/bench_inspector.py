"""``make bench-page``, second part: how soon a turn of 100,000 events is shown, and whether scrolling through it is smooth.

``first rows`` is from the click to the first event in the document, ``all rows`` to the last page.
"""

from __future__ import annotations

import tempfile

from playwright.sync_api import expect

from gateway.running import running
from gateway.upstream import hostile, streamed
from waiting import WAIT_SECONDS
from web.chromium import Watched, chromium, launched
from web.scripts import chunk, ending

EVENTS = 100_000
READ_BYTES = 65_536
FRAME = 1000 / 60
WATCH = """
window.tasks = []; window.clicked = 0; window.first = 0;
new PerformanceObserver((list) => { for (const entry of list.getEntries()) window.tasks.push(entry.duration); }).observe({type: "longtask"});
document.addEventListener("click", () => (window.clicked ||= performance.now()), true);
const look = () => {
  if (window.clicked && document.querySelector("[data-column=events] .vrow")) window.first = performance.now() - window.clicked;
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
SCROLL = """async () => {
  const list = document.querySelector("[data-column=events] .vlist");
  const frames = [];
  let last = performance.now();
  for (let step = 0; step < 120; step++) {
    list.scrollTop = (list.scrollHeight / 120) * step;
    await new Promise((done) => requestAnimationFrame(done));
    const now = performance.now();
    frames.push(now - last);
    last = now;
  }
  return frames;
}"""


def main() -> None:
    if not chromium():
        print("Chromium is not installed; `make browser` installs it")
        return
    body = b"".join(chunk({"content": f"w{number} "}) for number in range(EVENTS))
    pieces = [body[place : place + READ_BYTES] for place in range(0, len(body), READ_BYTES)]
    with hostile() as upstream, tempfile.TemporaryDirectory() as folder, launched() as browser:
        upstream.scripts["many"] = streamed(*pieces, ending())
        lab = {"dialect": "openai_chat", "base_url": f"{upstream.url}/v1", "models": ["many"]}
        with running({"upstreams": {"lab": lab}, "store": {"url": f"sqlite:///{folder}/store.db", "raw": True}}) as gateway:
            asked = {"model": "lab/many", "stream": True, "messages": [{"role": "user", "content": "Count"}]}
            gateway.ask("/v1/chat/completions", asked)
            watched = Watched(browser, gateway.url)
            page = watched.open("#/inspect")
            expect(page.locator(".turn-link").filter(has_not_text="running").first).to_be_visible(timeout=WAIT_SECONDS * 1000)
            page.evaluate(WATCH)
            page.locator(".turn-link").first.click()
            expect(page.locator("[data-column=events] .vrow").first).to_be_visible(timeout=WAIT_SECONDS * 1000)
            expect(page.get_by_text("reading…")).to_have_count(0, timeout=WAIT_SECONDS * 1000)
            first, whole = page.evaluate("[window.first, performance.now() - window.clicked]")
            loading, frames = page.evaluate("window.tasks.splice(0)"), page.evaluate(SCROLL)
            scrolling = page.evaluate("window.tasks")
            watched.close()
    print(
        f"inspector, {EVENTS} events  first rows {first:.0f} ms, all rows {whole:.0f} ms, longest task {max(loading, default=0):.0f} ms"
    )
    late = sum(1 for frame in frames if frame > 3 * FRAME)
    print(f"inspector, scrolling        {len(scrolling)} long tasks, {late} of {len(frames)} frames later than three")


if __name__ == "__main__":
    main()
