"""The inspector in a real browser: stored, running and pasted streams."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from gateway.running import Running
from gateway.upstream import HostileUpstream, Until, streamed
from recordings import Recording, recordings
from streamglot.dialects import DIALECTS
from waiting import WAIT_SECONDS, until
from web.chat_actions import reached
from web.chromium import PHONE, Watched, violations
from web.injections import INJECTIONS
from web.scripts import OVERLOADED, THOUGHT, answer, chunk, ending, text_script, words

TEXTS = {"anthropic": "text_cached", "openai_responses": "hosted", "bedrock_invoke": "messages_text", "bedrock_converse": "text"}
WRITERS = [one.name for one in DIALECTS.values() if one.has_writer]
MANY = 100_000
MANY_SECONDS = 600
"""Seconds to read so many events, which takes a busy machine up to a minute."""


def asked(gateway: Running, model: str, path: str = "/v1/chat/completions", **more: object) -> str:
    """Asks for a stream and returns the id of its turn, which has ended in the store: a page that is opened before follows the
    end of its lists."""
    body = {"model": f"lab/{model}", "stream": True, "messages": [{"role": "user", "content": "How does it work?"}], **more}
    answered = gateway.ask(path, body)
    turn = answered.headers["x-streamglot-turn"]
    until(lambda: gateway.ask(f"/turns/{turn}").json().get("ending"))
    return turn


def column(page: Page, name: str) -> Locator:
    return page.locator(f"[data-column={name}]")


def opened(watched: Watched, turn: str, query: str = "") -> Page:
    """The page of a turn with all its rows. The gateway may still be ending the turn when its client has read the answer."""
    page = watched.open(f"#/inspect/{turn}{query}")
    expect(column(page, "events").get_by_role("option").first).to_be_attached()
    expect(page.locator(".badges").get_by_text("reading…")).to_have_count(0)
    expect(page.locator(".badges").get_by_text("running")).to_have_count(0)
    return page


def listed(gateway: Running, what: Callable[[dict[str, Any]], object]) -> None:
    """Waits until the list of turns has such a turn. A page asks for the list once."""
    until(lambda: any(map(what, msgspec.json.decode(gateway.ask("/turns").body)["data"])))


def pasted(watched: Watched, body: bytes, name: str = "stream.bin", seconds: float = WAIT_SECONDS) -> Page:
    page = watched.open("#/inspect")
    page.locator("input[type=file]").set_input_files({"name": name, "mimeType": "application/octet-stream", "buffer": body})
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.get_by_text("reading…")).to_have_count(0, timeout=seconds * 1000)
    return page


# --- stored


def test_the_last_turns_are_listed_and_open(watched: Watched, gateway: Running) -> None:
    turn = asked(gateway, "thinker")
    listed(gateway, lambda one: one["id"] == turn)
    page = watched.open("#/inspect")
    page.locator(".turn-link").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("How does it work?")
    expect(page.get_by_role("listbox", name="Waterfall blocks").get_by_role("option")).not_to_have_count(0)


def test_a_frame_its_events_and_what_the_client_got_are_marked_together(watched: Watched, gateway: Running) -> None:
    page = opened(watched, asked(gateway, "thinker", "/v1/messages", max_tokens=99))
    row = column(page, "events").get_by_role("option").filter(has_text='" wants"').first
    row.click()
    for name in ("upstream", "events", "client"):
        marked = column(page, name).locator(".vrow.linked")
        expect(marked).to_have_count(1)
        expect(marked).to_contain_text(" wants")
    detail = page.get_by_label("Events of the moment")
    expect(detail).to_contain_text('"type": "reasoning_delta"')
    expect(page.get_by_label("Client bytes of the moment")).to_contain_text("thinking_delta")


@pytest.mark.parametrize("reads", ["many", "one"])
def test_keys_move_through_rows_and_columns(watched: Watched, gateway: Running, upstream: HostileUpstream, reads: str) -> None:
    """The gateway may read the whole answer at once, and then writes it at once."""
    upstream.scripts["lab-at-once"] = streamed(
        b"".join([*words(THOUGHT, "reasoning_content"), chunk({"content": "Yes."}), ending()])
    )
    page = opened(watched, asked(gateway, "thinker" if reads == "many" else "lab-at-once"))
    rows = column(page, "events").get_by_role("listbox")
    rows.focus()
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    expect(column(page, "events").get_by_role("option", selected=True)).to_contain_text('" wants"')
    page.keyboard.press("ArrowRight")
    expect(column(page, "client").get_by_role("option", selected=True)).to_contain_text(" wants")
    expect(column(page, "client").get_by_role("listbox")).to_be_focused()
    page.keyboard.press("End")
    expect(column(page, "client").get_by_role("option", selected=True)).to_contain_text("[DONE]")


def test_keys_change_the_column_at_a_row_that_has_no_counterpart(watched: Watched, gateway: Running) -> None:
    page = opened(watched, asked(gateway, "thinker"))
    column(page, "events").get_by_role("listbox").focus()
    page.keyboard.press("ArrowDown")
    expect(column(page, "events").get_by_role("option", selected=True)).to_contain_text("stream_start")
    expect(column(page, "client").locator(".vrow.linked")).to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(column(page, "client").get_by_role("option", selected=True)).to_have_count(1)
    expect(column(page, "client").get_by_role("listbox")).to_be_focused()


def test_the_first_key_selects_the_first_row_that_is_in_view(watched: Watched, gateway: Running) -> None:
    page = opened(watched, asked(gateway, "thinker"))
    rows = column(page, "events").get_by_role("listbox")
    rows.evaluate("list => { list.scrollTop = 26 * 40; }")
    expect(rows.get_by_role("option").filter(has=page.locator(".r-number", has_text="41"))).to_be_visible()
    rows.focus()
    page.keyboard.press("ArrowDown")
    expect(rows.get_by_role("option", selected=True).locator(".r-number")).to_have_text("41")


def test_the_waterfall_has_a_bar_for_each_block_and_failed_attempt(
    watched: Watched, gateway: Running, upstream: HostileUpstream
) -> None:
    upstream.scripts["lab-blocks"] = streamed(
        *words(THOUGHT, "reasoning_content")[:3],
        chunk({"content": "Let me look."}),
        chunk({"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "tides", "arguments": "{}"}}]}),
        ending("tool_calls"),
    )
    page = opened(watched, asked(gateway, "lab-blocks"))
    blocks = page.get_by_role("listbox", name="Waterfall blocks")
    for words_of_bar in ("reasoning", "text", "tides", "lab"):
        expect(blocks.get_by_role("option").filter(has_text=words_of_bar).first).to_be_visible()
    blocks.get_by_role("option").filter(has_text="tides").click()
    expect(column(page, "events").locator(".vrow.active")).to_contain_text("tool_call_start")
    upstream.scripts["lab-failing"] = OVERLOADED
    turn = asked(gateway, "lab-failing")
    page = watched.open(f"#/inspect/{turn}")
    expect(page.get_by_role("option").filter(has_text="lab 503 overloaded")).to_be_visible()
    expect(page.locator(".inspect-error")).to_contain_text("overloaded")
    page.get_by_role("tab", name="Changes").click()
    expect(page.locator(".verdict")).to_contain_text("The engine is overloaded, try again later")


def test_the_scrubber_selects_a_moment(watched: Watched, gateway: Running) -> None:
    page = opened(watched, asked(gateway, "thinker"))
    scrubber = page.get_by_role("slider", name="Moment")
    scrubber.focus()
    page.keyboard.press("End")
    expect(column(page, "events").get_by_role("option", selected=True)).to_contain_text("stream_end")
    page.keyboard.press("Home")
    expect(column(page, "events").get_by_role("option", selected=True)).to_contain_text("stream_start")


@pytest.mark.parametrize("client", WRITERS)
def test_a_turn_is_shown_as_every_dialect(watched: Watched, gateway: Running, upstream: HostileUpstream, client: str) -> None:
    upstream.scripts["lab-short"] = text_script("Hello", " world")
    page = opened(watched, asked(gateway, "lab-short", "/v1/messages", max_tokens=9))
    page.get_by_label("Show as").select_option(client)
    expect(column(page, "client").locator(".badge").first).to_have_text(client)
    expect(column(page, "client").get_by_role("option").filter(has_text="Hello").first).to_be_attached()
    assert client == "anthropic" or f"as={client}" in page.url


def test_another_dialect_is_read_while_the_page_stays(watched: Watched, gateway: Running) -> None:
    """The list of dialects keeps the focus, so that the arrow keys go on to the next one."""
    turn = asked(gateway, "thinker")
    page = opened(watched, turn)
    held: list[Route] = []
    watched.context.route(f"**/turns/{turn}/inspect?as=anthropic", lambda route: held.append(route))
    choice = page.get_by_label("Show as")
    expect(choice.get_by_role("option")).not_to_have_count(1)
    choice.focus()
    choice.select_option("anthropic")
    reached(page, lambda: held)
    expect(choice).to_be_focused()
    expect(page.locator(".badges")).to_contain_text("reading…")
    expect(column(page, "client").locator(".badge").first).to_have_text("openai_chat")
    held[0].continue_()
    expect(column(page, "client").locator(".badge").first).to_have_text("anthropic")
    expect(page.locator(".badges")).not_to_contain_text("reading…")
    expect(choice).to_be_focused()


def test_requests_are_compared_and_sent_again(watched: Watched, gateway: Running) -> None:
    page = opened(watched, asked(gateway, "thinker", "/v1/messages", max_tokens=77, system="Be brief."))
    page.get_by_role("tab", name="Requests").click()
    table = page.get_by_role("table")
    expect(table).to_contain_text("As the client sent it · anthropic")
    expect(table).to_contain_text("As the upstream got it · lab · openai_chat")
    expect(table.locator("code.gone").filter(has_text='"model": "lab/thinker"')).to_be_visible()
    expect(table.locator("code.added").filter(has_text='"model": "thinker"')).to_be_visible()
    page.get_by_role("button", name="curl").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"curl -N {gateway.url}/v1/messages")
    dialog.get_by_role("button", name="To the upstream").click()
    expect(dialog).to_contain_text("/v1/chat/completions")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_comparison_is_shown_when_both_turns_are_read(watched: Watched, gateway: Running, upstream: HostileUpstream) -> None:
    """Rows that come later would move its buttons, and a click would miss them."""
    upstream.scripts["lab-one"], upstream.scripts["lab-two"] = text_script("Hello", " world"), text_script("Goodbye", " world")
    one, two = asked(gateway, "lab-one"), asked(gateway, "lab-two")
    held: list[Route] = []
    watched.context.route(f"**/turns/{two}/inspect*", lambda route: held.append(route))
    page = watched.open(f"#/inspect/{one}?vs={two}")
    expect(page.get_by_role("main")).to_contain_text("Reading both turns")
    expect(page.get_by_role("group", name="What to compare")).to_have_count(0)
    reached(page, lambda: held)
    held[0].continue_()
    expect(page.get_by_role("row", name="Model")).to_contain_text("differs")


def test_two_turns_are_compared(watched: Watched, gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-one"], upstream.scripts["lab-two"] = text_script("Hello", " world"), text_script("Goodbye", " world")
    one, two = asked(gateway, "lab-one"), asked(gateway, "lab-two")
    page = opened(watched, one)
    page.get_by_role("button", name="Compare").click()
    page.get_by_label("Id of the turn").fill(two)
    page.keyboard.press("Enter")
    expect(page.get_by_role("row", name="Model")).to_contain_text("differs")
    page.get_by_role("button", name="Answers").click()
    expect(page.locator("code.gone")).to_have_text("Hello world")
    expect(page.locator("code.added")).to_have_text("Goodbye world")
    page.get_by_role("button", name="End comparison").click()
    expect(column(page, "events").get_by_role("listbox")).to_be_visible()


def test_a_turn_is_saved_as_a_test_and_as_a_recording_that_can_be_dropped(
    watched: Watched, gateway: Running, upstream: HostileUpstream
) -> None:
    upstream.scripts["lab-saved"] = text_script("Hello", " world")
    page = opened(watched, asked(gateway, "lab-saved"))
    page.get_by_role("button", name="More actions").click()
    with page.expect_download() as test:
        page.get_by_role("menuitem", name="Save as test").click()
    with zipfile.ZipFile(io.BytesIO(Path(test.value.path()).read_bytes())) as archive:
        assert sorted(name.rpartition(".")[2] for name in archive.namelist()) == ["jsonl", "py", "sse", "times"]
    page.get_by_role("button", name="More actions").click()
    with page.expect_download() as recording:
        page.get_by_role("menuitem", name="Download as recording").click()
    body = Path(recording.value.path()).read_bytes()
    count = column(page, "client").locator(".trace-head .number").inner_text()
    page = pasted(watched, body, "turn.recording.jsonl")
    expect(column(page, "client").locator(".trace-head .number")).to_have_text(count)
    expect(column(page, "events").get_by_role("option").filter(has_text="Hello")).to_be_visible()
    expect(page.locator(".figures")).to_contain_text("first byte")


# --- running


def test_a_running_turn_is_followed(watched: Watched, gateway: Running, upstream: HostileUpstream) -> None:
    first, second = threading.Event(), threading.Event()
    upstream.scripts["lab-live"] = streamed(
        chunk({"content": "one"}), Until(first), chunk({"content": "two"}), Until(second), chunk({"content": "three"}), ending()
    )
    thread = threading.Thread(target=asked, args=(gateway, "lab-live"))
    thread.start()
    upstream.wait_for("lab-live")
    listed(gateway, lambda one: not one["ending"] and "lab-live" in one["model"])
    page = watched.open("#/inspect")
    page.locator(".turn-link").filter(has_text="running").first.click()
    expect(page.locator(".badges")).to_contain_text("running")
    rows = column(page, "events").get_by_role("option")
    expect(rows.filter(has_text='"one"')).to_be_visible()
    expect(rows.filter(has_text='"two"')).to_have_count(0)
    first.set()
    expect(rows.filter(has_text='"two"')).to_be_visible()
    expect(page.locator(".badges")).to_contain_text("running")
    second.set()
    expect(rows.filter(has_text="stream_end")).to_be_visible()
    expect(page.locator(".badges")).to_contain_text("end")
    expect(column(page, "client").get_by_role("option").filter(has_text="[DONE]")).to_be_visible()
    thread.join(WAIT_SECONDS)


def test_the_tabs_stay_in_place_while_blocks_arrive(watched: Watched, gateway: Running, upstream: HostileUpstream) -> None:
    """Rows of the waterfall that pushed them down would take them from under the pointer."""
    gate, end = threading.Event(), threading.Event()
    upstream.scripts["lab-grows"] = streamed(
        *words(THOUGHT, "reasoning_content")[:3], Until(gate), chunk({"content": "two"}), Until(end), ending()
    )
    thread = threading.Thread(target=asked, args=(gateway, "lab-grows"))
    thread.start()
    upstream.wait_for("lab-grows")
    listed(gateway, lambda one: not one["ending"] and "lab-grows" in one["model"])
    page = watched.open("#/inspect")
    page.locator(".turn-link").filter(has_text="running").filter(has_text="lab-grows").click()
    blocks = page.get_by_role("listbox", name="Waterfall blocks").get_by_role("option")
    expect(blocks.filter(has_text="reasoning")).to_be_visible()
    before = page.get_by_role("tab", name="Requests").bounding_box()
    gate.set()
    expect(blocks.filter(has_text="text")).to_be_visible()
    assert page.get_by_role("tab", name="Requests").bounding_box() == before
    end.set()
    thread.join(WAIT_SECONDS)


# --- pasted


def short_text(dialect: str) -> Recording:
    of_dialect = [one for one in recordings() if one.dialect == dialect]
    wanted = TEXTS.get(dialect, "text")
    return next((one for one in of_dialect if one.name == wanted), of_dialect[-1])


@pytest.mark.parametrize("dialect", ["agui", "vercel_ui"])
def test_a_dropped_stream_of_a_web_page_is_read(watched: Watched, dialect: str) -> None:
    writer = DIALECTS[dialect].writer()
    body = writer.feed(short_text("anthropic").expected()) + writer.close()
    page = pasted(watched, body)
    expect(column(page, "upstream").locator(".badge")).to_have_text(dialect)
    expect(column(page, "events").get_by_role("option").filter(has_text="text_delta").first).to_be_visible()


@pytest.mark.parametrize("dialect", [one.name for one in DIALECTS.values() if one.has_reader])
def test_a_dropped_stream_of_every_dialect_is_recognised(watched: Watched, dialect: str) -> None:
    recording = short_text(dialect)
    page = pasted(watched, recording.body)
    expect(column(page, "upstream").locator(".badge")).to_have_text(dialect)
    expect(column(page, "events").locator(".trace-head .number")).to_have_text(str(len(recording.expected())))
    expect(column(page, "events").get_by_role("option").filter(has_text="stream_start")).to_be_visible()


def test_a_pasted_stream_is_shown_with_calls_that_stand_in_its_text(watched: Watched) -> None:
    page = watched.open("#/inspect")
    page.get_by_role("button", name="Example").click()
    page.get_by_role("button", name="Inspect", exact=True).click()
    expect(page.get_by_text("hermes in its text, detected")).to_be_visible()
    expect(page.get_by_role("listbox", name="Waterfall blocks").get_by_role("option").filter(has_text="tides")).to_be_visible()
    page.get_by_role("button", name="Back to all turns").click()
    expect(page.get_by_label("Raw stream")).to_be_visible()


def test_the_buttons_stay_in_place_when_the_dialects_are_known(watched: Watched) -> None:
    held: list[Route] = []
    watched.context.route(f"{watched.url}/inspect", lambda route: held.append(route))
    page = watched.open("#/inspect")
    buttons = [page.get_by_role("button", name=name, exact=True) for name in ("Example", "Inspect")]
    before = [button.bounding_box() for button in buttons]
    reached(page, lambda: held)
    held[0].continue_()
    expect(page.get_by_label("Dialect").get_by_role("option", name="anthropic")).to_be_attached()
    assert [button.bounding_box() for button in buttons] == before


def test_unreadable_input_is_reported(watched: Watched) -> None:
    page = watched.open("#/inspect")
    page.get_by_label("Raw stream").fill("hello there")
    page.get_by_role("button", name="Inspect", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("cannot be recognised")
    page.get_by_role("button", name="Back").click()
    expect(page.get_by_label("Raw stream")).to_be_visible()


def test_a_file_is_dropped_on_the_page(watched: Watched) -> None:
    page = watched.open("#/inspect")
    body = short_text("anthropic").body.decode()
    data = page.evaluate_handle(
        """(body) => { const data = new DataTransfer(); data.items.add(new File([body], "dropped.sse")); return data; }""", body
    )
    page.dispatch_event("main", "drop", {"dataTransfer": data})
    expect(page.get_by_role("heading", level=1)).to_have_text("dropped.sse")
    expect(column(page, "upstream").locator(".badge")).to_have_text("anthropic")


@pytest.mark.slow
def test_a_hundred_thousand_events_are_rows_of_a_short_document(watched: Watched) -> None:
    page = pasted(watched, chunk({"content": "word "}) * MANY + ending(), seconds=MANY_SECONDS)
    expect(column(page, "events").locator(".trace-head .number")).to_have_text(f"{MANY + 5:,}")
    rows = column(page, "events").get_by_role("listbox")
    rows.focus()
    page.keyboard.press("End")
    expect(column(page, "events").get_by_role("option", selected=True)).to_contain_text("stream_end")
    expect(column(page, "upstream").get_by_role("option").filter(has_text="[DONE]")).to_be_attached()
    assert page.locator(".vrow").count() < 300
    page.get_by_label("Find in rows").fill("stream_start")
    page.keyboard.press("Enter")
    expect(column(page, "events").get_by_role("option", selected=True)).to_contain_text("stream_start")


# --- hostile texts


FOREIGN = (
    "main :is(img, script, iframe, object, embed, form:not(.find), style, link, base, meta, video, audio, marquee, template)"
)
"""Elements that the inspector itself never has."""


def test_texts_of_models_and_tools_are_never_executed(watched: Watched, gateway: Running, upstream: HostileUpstream) -> None:
    calls = [
        {"index": number, "id": f"{evil}{number}", "function": {"name": evil, "arguments": "{}"}}
        for number, evil in enumerate(INJECTIONS)
    ]
    body = [
        *(chunk({"reasoning_content": evil}) for evil in INJECTIONS),
        *(chunk({"content": evil}) for evil in INJECTIONS),
        *(chunk({"tool_calls": [call]}) for call in calls),
    ]
    upstream.scripts["lab-evil"] = streamed(*body, ending("tool_calls"))
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": evil} for evil in INJECTIONS],
        "metadata": {"user_id": INJECTIONS[0]},
    }
    turn = asked(gateway, "lab-evil", **request)
    page = pasted(watched, b"".join(body) + ending(), f"{INJECTIONS[0]}.sse".replace("/", "_"))
    assert page.locator(FOREIGN).count() == 0
    page = opened(watched, turn)
    for name in ("Requests", "Changes", "Stream"):
        page.get_by_role("tab", name=name).click()
        assert page.locator(FOREIGN).count() == 0
    column(page, "events").get_by_role("listbox").focus()
    for key in ("ArrowDown", "PageDown", "PageDown", "End", "PageUp"):
        page.keyboard.press(key)
        assert page.locator(FOREIGN).count() == 0
    blocks = page.get_by_role("listbox", name="Waterfall blocks")
    blocks.focus()
    page.keyboard.press("End")
    expect(blocks.get_by_role("option", selected=True)).to_have_count(1)
    assert page.locator(FOREIGN).count() == 0


# --- for everybody


def test_axe_finds_nothing(watched: Watched, gateway: Running) -> None:
    page = watched.open("#/inspect")
    expect(page.get_by_label("Raw stream")).to_be_visible()
    assert violations(page) == []
    page = opened(watched, asked(gateway, "thinker", "/v1/messages", max_tokens=9))
    column(page, "events").get_by_role("option").nth(3).click()
    assert violations(page) == []
    for name in ("Requests", "Changes"):
        page.get_by_role("tab", name=name).click()
        assert violations(page) == []


def test_dark_and_on_a_phone(browser: Browser, gateway: Running) -> None:
    turn = asked(gateway, "thinker")
    for options in ({"viewport": PHONE}, {"color_scheme": "dark"}):
        watched = Watched(browser, gateway.url, **options)
        page = opened(watched, turn)
        column(page, "events").get_by_role("option").nth(3).click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert violations(page) == []
        watched.close()


def test_a_missing_turn_is_reported(watched: Watched) -> None:
    page = watched.open("#/inspect/turn_that_is_not_there")
    expect(page.get_by_role("alert")).to_contain_text("there is no turn")


def test_the_answer_is_the_same_text_as_the_client_got(watched: Watched, gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-same"] = answer("Hello there, world.", "Thinking.")
    page = opened(watched, asked(gateway, "lab-same"))
    texts = column(page, "events").get_by_role("option").filter(has_text="text_delta").all_inner_texts()
    assert "".join(text.rpartition("text_delta")[2].strip().strip('"') for text in texts) == "Hello there, world."
