"""``make bench-page``: what the page weighs, when it paints, and whether it stays smooth while an answer streams.

Printed are measurements of this machine. Long tasks are those of the page's main thread above 50 ms, by the processor time that
they take and by the clock: on a busy machine the clock counts what others do. Frames are counted by requestAnimationFrame: a
gap of more than three frames is a burst of dropped ones."""

from __future__ import annotations

import gzip
import statistics
from collections import Counter
from typing import Any

import msgspec

from gateway.running import running
from gateway.upstream import Pause, hostile, streamed
from streamglot.gateway.api.pages import FOLDER, MEDIA_TYPES
from web.chat_actions import ask, over, use_model
from web.chromium import Watched, chromium, launched
from web.scripts import TEXT, chunk, ending

TOKENS_PER_SECOND = 500
SECONDS = 8
FRAME = 1000 / 60
LONG = 50.0
"""Milliseconds above which a task is long, as browsers define it."""
TASK = "ThreadControllerImpl::RunTask"
WATCH = """
window.frames = [];
let last = performance.now();
const frame = (now) => { window.frames.push(now - last); last = now; requestAnimationFrame(frame); };
requestAnimationFrame(frame);
"""


def weight() -> None:
    files = [file for file in FOLDER.rglob("*") if file.suffix in MEDIA_TYPES and file.suffix != ".LICENSE"]
    sizes = {file: len(gzip.compress(file.read_bytes(), 6)) for file in files}
    later = sum(size for file, size in sizes.items() if "hljs" in file.parts)
    total = sum(sizes.values())
    print(
        f"weight, gzipped       {total / 1000:.1f} kB in {len(files)} files; {(total - later) / 1000:.1f} kB without syntax colours"
    )


def tokens() -> list[str]:
    """Markdown of all kinds, a few characters a piece, as models send it."""
    text = TEXT * (1 + TOKENS_PER_SECOND * SECONDS * 4 // len(TEXT))
    return [text[place : place + 4] for place in range(0, TOKENS_PER_SECOND * SECONDS * 4, 4)]


def main_thread(trace: bytes) -> list[dict[str, Any]]:
    """The tasks of the page's main thread. ``dur`` and ``tdur`` are microseconds by the clock and of the processor."""
    events = msgspec.json.decode(trace)["traceEvents"]
    renderers = {(e["pid"], e["tid"]) for e in events if e.get("name") == "thread_name" and e["args"]["name"] == "CrRendererMain"}
    tasks = [event for event in events if event.get("name") == TASK and (event["pid"], event["tid"]) in renderers]
    busiest, _ = Counter((task["pid"], task["tid"]) for task in tasks).most_common(1)[0]
    return [task for task in tasks if (task["pid"], task["tid"]) == busiest]


def main() -> None:
    if not chromium():
        print("Chromium is not installed; `make browser` installs it")
        return
    weight()
    pieces = tokens()
    per_step = TOKENS_PER_SECOND // 50
    steps: list[Any] = []
    for place in range(0, len(pieces), per_step):
        steps += [
            b"".join(chunk({"content": piece}) for piece in pieces[place : place + per_step]),
            Pause(per_step / TOKENS_PER_SECOND),
        ]
    with hostile() as upstream, launched() as browser:
        upstream.scripts["fast"] = streamed(*steps, ending(tokens=len(pieces)))
        lab = {"dialect": "openai_chat", "base_url": f"{upstream.url}/v1", "models": ["fast"], "attempts": 1}
        with running({"upstreams": {"lab": lab}}) as gateway:
            watched = Watched(browser, gateway.url)
            page = use_model(watched, "fast")
            paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
            print(f"first paint           {paint:.0f} ms after the request for the page")
            page.evaluate(WATCH)
            browser.start_tracing(page=page, categories=["toplevel"])
            ask(page, "Much")
            over(page)
            tasks = main_thread(browser.stop_tracing())
            frames = page.evaluate("window.frames")
            shown = len(page.locator(".markdown").inner_text())
            watched.context.close()
    bursts = [gap for gap in frames if gap > 3.5 * FRAME]
    median, most = statistics.median(frames), max(frames)
    print(f"stream                {len(pieces)} tokens in {sum(frames) / 1000:.1f} s, {shown} characters shown")
    for words, field in (("by processor time", "tdur"), ("by the clock", "dur")):
        times = [task.get(field, 0) / 1000 for task in tasks]
        long = sum(time > LONG for time in times)
        print(
            f"long tasks            {long} above 50 ms {words}; the longest {max(times):.0f} ms, {sum(times) / 1000:.1f} s in all"
        )
    print(
        f"frames                {len(frames)}, median {median:.1f} ms, longest {most:.0f} ms, {len(bursts)} bursts of more than three dropped"
    )


if __name__ == "__main__":
    main()
