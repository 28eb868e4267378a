"""The overview in a real browser: it follows what happens without being reloaded."""

from __future__ import annotations

import threading

from playwright.sync_api import expect

from gateway.dialect_clients import body_of
from gateway.running import Running
from gateway.upstream import HostileUpstream, Until
from web.chat_actions import asked_upstream, reached
from web.chromium import Watched, violations
from web.scripts import OVERLOADED, calling, text_script

CHAT = "/v1/chat/completions"


def background(gateway: Running, model: str) -> threading.Thread:
    thread = threading.Thread(target=gateway.ask, args=(CHAT, body_of("openai_chat", model)), daemon=True)
    thread.start()
    return thread


def test_a_stream_appears_is_filtered_and_stopped(watched: Watched, gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-open"] = text_script("On and on", Until(threading.Event()))
    page = watched.open("#/overview")
    open_streams = page.get_by_label("Open streams", exact=True)
    expect(open_streams).to_contain_text("No request is running")
    thread = background(gateway, "lab-open")
    expect(open_streams.get_by_role("row").nth(1)).to_contain_text("lab-open")
    open_streams.get_by_label("Filter open streams").fill("nothing like it")
    expect(open_streams).to_contain_text("No open stream matches the filter.")
    open_streams.get_by_label("Filter open streams").fill("LAB-OPEN")
    open_streams.get_by_label("Stop lab-open").click()
    asked_upstream(page, upstream, "lab-open", lambda seen: seen.closed)
    expect(open_streams).to_contain_text("No request is running")
    expect(page.get_by_label("By model", exact=True)).to_contain_text("lab-open")
    thread.join()


def test_errors_lead_to_the_inspector(watched: Watched, gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-bad"] = OVERLOADED
    page = watched.open("#/overview")
    page.wait_for_selector(".tiles")
    gateway.ask(CHAT, body_of("openai_chat", "lab-bad"))
    errors = page.get_by_label("Last errors")
    expect(errors).to_contain_text("The engine is overloaded")
    expect(errors.get_by_role("link", name="Inspect").first).to_have_attribute("href", "#/inspect/" + newest(gateway))
    expect(page.get_by_label("Upstreams", exact=True)).to_contain_text("ready")


def newest(gateway: Running) -> str:
    return str(gateway.ask("/overview").json()["last_errors"][0]["turn_id"])


def test_a_pending_approval_is_decided_here(watched: Watched, gateway: Running, upstream: HostileUpstream) -> None:
    """Whichever client asked: this one speaks another dialect."""
    upstream.scripts["lab-ship"] = calling("deploy", '{"to": "production"}')
    page = watched.open("#/overview")
    page.wait_for_selector(".tiles")
    thread = background(gateway, "lab-ship")
    approval = page.get_by_label("Pending approvals")
    expect(approval).to_contain_text("deploy")
    approval.get_by_role("button", name="Approve").click()
    expect(approval).to_have_count(0)
    thread.join()


def test_the_feed_is_left_with_the_page(watched: Watched, gateway: Running) -> None:
    page = watched.open("#/overview")
    page.wait_for_selector(".tiles")
    assert gateway.gateway.recording.live.watchers("overview")
    page.get_by_role("link", name="Chat").click()
    page.wait_for_selector(".composer")
    reached(page, lambda: not gateway.gateway.recording.live.watchers("overview"))  # else it sends its state to nobody


def test_batches_show_their_progress(watched: Watched) -> None:
    counts = {"total": 40, "completed": 29, "failed": 1}
    batch = {"id": "batch_<b>1</b>", "status": "in_progress", "request_counts": counts}
    watched.context.route("**/v1/batches?*", lambda route: route.fulfill(json={"object": "list", "data": [batch]}))
    page = watched.open("#/overview")
    batches = page.get_by_label("Batches")
    expect(batches).to_contain_text("batch_<b>1</b>")
    expect(batches).to_contain_text("30 of 40, 1 failed")
    expect(batches.get_by_role("progressbar")).to_have_attribute("value", "30")
    assert violations(page) == []
