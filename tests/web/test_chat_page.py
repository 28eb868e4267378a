"""The chat in a real browser, with a scripted upstream."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Locator, Page, Route, expect

from gateway.running import Running
from gateway.upstream import Cut, HostileUpstream, Step, Until, unfinished, whole
from web.chat_actions import NOT_PAINTED, answers, ask, asked_upstream, over, reached, use_model
from web.chromium import Watched
from web.scripts import OVERLOADED, TEXT, THOUGHT, answer, calling, chunk, text_script, words

GIF = bytes.fromhex("47494638396101000100800000ff0000ffffff2c00000000010001000002024401003b")


def copied_by(page: Page, button: Locator) -> str:
    """The text that this button copies. The browser fills the clipboard a moment after the click."""
    page.evaluate("navigator.clipboard.writeText('')")
    button.click()
    return str(page.wait_for_function("() => navigator.clipboard.readText()").json_value())


def text_of(page: Page) -> str:
    """The text of the conversation, as a user would copy it."""
    return copied_by(page, page.get_by_label("Copy answer").last)


def test_an_empty_chat_says_what_it_is_and_how_to_reach_it(watched: Watched, gateway: Running) -> None:
    page = watched.open()
    expect(page.get_by_role("heading", level=1)).to_have_text("Every LLM stream, one language.")
    expect(page.locator(".address")).to_contain_text(gateway.url)
    expect(page.get_by_role("tabpanel")).to_contain_text(f"curl -N {gateway.url}/v1/chat/completions")
    page.get_by_role("tab", name="Anthropic SDK").click()
    expect(page.get_by_role("tabpanel")).to_contain_text(f'Anthropic(base_url="{gateway.url}"')
    expect(page.get_by_role("button", name="Model: thinker")).to_be_visible()


def test_a_wait_for_a_rate_limit_is_shown_with_its_seconds(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["patient-limited"] = whole({"error": {"message": "slow down"}}, 429, retry_after="25")
    page = use_model(watched, "patient-limited")
    ask(page, "Hello")
    expect(page.locator(".status-line")).to_have_text(re.compile(r"patient asks to wait: attempt 2 of 3 in \d+ s"))
    page.keyboard.press("Escape")
    over(page, "stopped")


def test_an_answer_streams_with_thinking_markdown_and_numbers(watched: Watched, upstream: HostileUpstream) -> None:
    thought, wrote = threading.Event(), threading.Event()
    first, second = words(THOUGHT, "reasoning_content"), words(TEXT)
    script = answer()
    upstream.scripts["lab-steps"] = [script[0], *script[1 : len(first)], Until(thought), *script[len(first) :][:12], Until(wrote)]
    upstream.scripts["lab-steps"] += script[len(first) + 12 :]
    assert len(second) > 20
    page = use_model(watched, "lab-steps")
    ask(page, "How does a circuit breaker work?")
    thinking = page.get_by_label("Thinking", exact=True)
    expect(thinking.get_by_role("button")).to_have_attribute("aria-expanded", "true")
    expect(thinking).to_contain_text("The user wants to know")
    expect(page.locator(".status-line")).to_contain_text("Thinking")
    thought.set()
    expect(answers(page)).to_contain_text("circuit breaker stops")
    expect(thinking.get_by_role("button")).to_have_attribute("aria-expanded", "false")
    expect(thinking).to_contain_text("Thought for")
    wrote.set()
    over(page)
    expect(answers(page).locator("table td").nth(2)).to_have_text("5 failures in a row")
    expect(answers(page).locator("ol li")).to_have_count(3)
    expect(answers(page).locator(".code .hl-keyword").first).to_have_text("class")
    expect(answers(page).locator(".numbers")).to_contain_text("31 in, 402 out")
    expect(answers(page).locator(".numbers")).to_contain_text("first after")
    assert text_of(page) == TEXT
    assert copied_by(page, page.get_by_label("Copy code").first).startswith("class Breaker:")


def test_the_next_question_can_be_asked_before_the_connection_has_ended(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-next"] = text_script("Fine")
    watched.page.add_init_script(
        """const real = window.fetch;
        window.fetch = async (address, options) => {
            const response = await real(address, options);
            if (String(address).includes("/agui")) {
                const held = response.body.pipeThrough(new TransformStream({ flush: () => new Promise(() => {}) }));
                return new Response(held, { status: response.status, headers: response.headers });
            }
            return response;
        };"""
    )
    page = use_model(watched, "lab-next")
    for number in (1, 2):
        ask(page, f"Question {number}")
        expect(answers(page)).to_have_count(number)
        over(page)
    expect(page.get_by_label("Stop (Esc)")).to_have_count(0)


def test_stop_ends_the_upstream(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-endless"] = text_script("It goes on", Until(threading.Event()))
    page = use_model(watched, "lab-endless")
    ask(page, "Go on")
    expect(answers(page)).to_contain_text("It goes on")
    page.keyboard.press("Escape")
    over(page, "stopped")
    asked_upstream(page, upstream, "lab-endless", lambda seen: seen.closed)
    assert len(upstream.requests("lab-endless")) == 1
    expect(answers(page)).to_contain_text("It goes on")


def test_stop_before_the_first_word_ends_the_upstream(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-mute"] = [Until(threading.Event())]
    page = use_model(watched, "lab-mute")
    ask(page, "Say something")
    asked_upstream(page, upstream, "lab-mute")
    page.get_by_label("Stop (Esc)").click()
    over(page, "stopped")
    asked_upstream(page, upstream, "lab-mute", lambda seen: seen.closed)


def test_an_error_before_the_answer_is_a_card_with_a_retry(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-weak"] = [list(OVERLOADED), list(text_script("Better now"))]
    page = use_model(watched, "lab-weak")
    ask(page, "Are you there?")
    over(page, "error")
    card = page.get_by_role("alert")
    expect(card).to_contain_text("The engine is overloaded")
    expect(card).to_contain_text("status 503")
    card.get_by_role("button", name="Try again").click()
    over(page)
    expect(answers(page)).to_contain_text("Better now")


def test_an_error_inside_the_answer_keeps_what_came(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-cut"] = unfinished(*words("Half of an answer"), end=Cut())
    page = use_model(watched, "lab-cut")
    ask(page, "Tell me all")
    over(page, "error")
    expect(answers(page)).to_contain_text("Half of an answer")
    expect(page.get_by_role("alert")).to_contain_text("The answer was interrupted")


@pytest.mark.parametrize("store_is_ahead", [True, False])
def test_a_reload_continues_with_the_stream(watched: Watched, upstream: HostileUpstream, store_is_ahead: bool) -> None:
    """Character by character, whether the page was reloaded before or after its session was known."""
    gate = threading.Event()
    name = f"lab-reload-{store_is_ahead}"
    pieces = [f"{number} ünïcödé 🙂\n" for number in range(200)]
    half: list[str | Step] = [Until(gate), *pieces] if not store_is_ahead else [*pieces[:80], Until(gate), *pieces[80:]]
    upstream.scripts[name] = text_script(*half)
    page = use_model(watched, name)
    ask(page, "Count")
    if store_is_ahead:
        expect(answers(page)).to_contain_text("79 ünïcödé")
        page.wait_for_url("**/#/chat/ses_*")
    else:
        asked_upstream(page, upstream, name)
        page.wait_for_function("sessionStorage.getItem('streamglot.pending') !== null")
    page.reload()
    page.wait_for_selector("article.user")
    if not store_is_ahead:
        page.wait_for_url("**/#/chat/ses_*")
    gate.set()
    over(page)
    assert text_of(page) == "".join(pieces)
    assert len(upstream.requests(name)) == 1, "the upstream was asked once"
    expect(page.get_by_label("You", exact=True)).to_contain_text("Count")


def test_a_reload_before_the_page_is_drawn_again_keeps_the_session(watched: Watched, upstream: HostileUpstream) -> None:
    """The answer has come whole, and the address of the page does not name its session yet."""
    upstream.scripts["lab-undrawn"] = text_script("Here it is")
    page = use_model(watched, "lab-undrawn")
    page.get_by_label("Your message").fill("Where is it?")
    expect(page.get_by_role("tabpanel")).to_contain_text("thinker")  # the models are there; they would draw the page again
    page.evaluate("window.requestAnimationFrame = () => 0")  # no frame is drawn from now on
    with page.expect_response("**/turns/*"):  # the page asks for the price of an answer that it has read
        page.keyboard.press("Enter")
    assert "ses_" not in page.url
    page.reload()
    expect(answers(page)).to_contain_text("Here it is")
    page.wait_for_url("**/#/chat/ses_*")
    assert page.evaluate("sessionStorage.getItem('streamglot.pending')") is None
    assert len(upstream.requests("lab-undrawn")) == 1, "the upstream was asked once"


def test_a_question_is_not_replaced_by_the_session_of_before_the_reload(watched: Watched, upstream: HostileUpstream) -> None:
    """The user asks something new while the page looks for the answer that began before it was loaded again."""
    gate = threading.Event()
    upstream.scripts["lab-before"] = text_script(Until(gate), "Of before")
    page = use_model(watched, "lab-before")
    ask(page, "Before")
    asked_upstream(page, upstream, "lab-before")
    held: list[Route] = []
    watched.context.route("**/turns?limit=20", lambda route: held.append(route))
    page.reload()
    reached(page, lambda: held)
    upstream.scripts["lab-before"] = text_script("Of now")
    ask(page, "Now")
    over(page)
    with page.expect_response("**/turns?limit=20"):
        held[0].continue_()
    page.wait_for_url("**/#/chat/ses_*")
    gate.set()
    expect(page.get_by_label("You", exact=True)).to_have_text(["Now"])
    expect(answers(page)).to_contain_text("Of now")


def test_a_question_waits_for_the_session_that_is_being_opened(watched: Watched, upstream: HostileUpstream) -> None:
    """Asked before, it would be sent without what was said in the session."""
    upstream.scripts["lab-opening"] = text_script("Noted")
    page = use_model(watched, "lab-opening")
    ask(page, "My name is Ada")
    over(page)
    page.wait_for_url("**/#/chat/ses_*")
    held: list[Route] = []
    watched.context.route("**/sessions/ses_*", lambda route: held.append(route))
    page.reload()
    reached(page, lambda: held)
    expect(page.get_by_text("Opening the session…")).to_be_visible()
    page.get_by_label("Your message").fill("What is my name?")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Send (Enter)")).to_be_disabled()
    expect(page.get_by_label("Your message")).to_have_value("What is my name?")
    held[0].continue_()
    expect(answers(page)).to_contain_text("Noted")
    expect(page.get_by_label("Send (Enter)")).to_be_enabled()
    page.get_by_label("Your message").press("Enter")
    expect(answers(page)).to_have_count(2)
    over(page)
    expect(page.get_by_text("Opening the session…")).to_have_count(0)
    sent = [[message["content"] for message in seen.body["messages"]] for seen in upstream.requests("lab-opening")]
    assert sent == [["My name is Ada"], ["My name is Ada", "Noted", "What is my name?"]]


def test_a_session_that_could_not_be_opened_takes_no_question(watched: Watched, upstream: HostileUpstream) -> None:
    """Asked there, it would be sent without what was said in the session."""
    upstream.scripts["lab-unread"] = text_script("Noted")
    page = use_model(watched, "lab-unread")
    ask(page, "My name is Ada")
    over(page)
    page.wait_for_url("**/#/chat/ses_*")
    failing = "**/sessions/ses_*"
    watched.context.route(failing, lambda route: route.fulfill(status=503, json={"error": {"message": "The store is away."}}))
    page.reload()
    expect(page.get_by_text("The store is away.")).to_be_visible()
    page.get_by_label("Your message").fill("What is my name?")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Send (Enter)")).to_be_disabled()
    watched.context.unroute(failing)
    page.get_by_text("Try again").click()
    expect(answers(page)).to_contain_text("Noted")
    expect(page.get_by_label("Your message")).to_have_value("What is my name?")
    expect(page.get_by_label("Send (Enter)")).to_be_enabled()
    page.get_by_label("Your message").press("Enter")
    expect(answers(page)).to_have_count(2)
    over(page)
    sent = [[message["content"] for message in seen.body["messages"]] for seen in upstream.requests("lab-unread")]
    assert sent == [["My name is Ada"], ["My name is Ada", "Noted", "What is my name?"]]


def test_a_tool_of_the_gateway_runs_in_a_card(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-tool"] = [
        list(calling("calculator", '{"expres', 'sion": "6*7"}', text="One moment.")),
        list(text_script("It is 42.")),
    ]
    page = use_model(watched, "lab-tool")
    page.get_by_label("System prompt, parameters and tools").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("System prompt").fill("You calculate.")
    dialog.get_by_label("Temperature").fill("0.5")
    dialog.get_by_label("Choose them here").check()
    expect(dialog.get_by_label("calculator")).to_be_checked()
    dialog.get_by_role("button", name="Use these").click()
    ask(page, "What is 6 times 7?")
    over(page)
    card = page.get_by_label("Tool call calculator")
    expect(card).to_contain_text("done")
    card.get_by_role("button").first.click()
    expect(card).to_contain_text('"expression": "6*7"')
    expect(card).to_contain_text("42")
    expect(answers(page)).to_contain_text("It is 42.")
    sent = upstream.requests("lab-tool")[0].body
    assert sent["temperature"] == 0.5
    assert sent["messages"][0] == {"role": "system", "content": "You calculate."}
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["calculator"]


def test_a_held_call_is_changed_and_approved(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-deploy"] = calling("deploy", '{"to": "production"}', text="I will deploy.")
    page = use_model(watched, "lab-deploy")
    ask(page, "Ship it")
    card = page.get_by_label("Approval needed")
    expect(card).to_contain_text("deploy")
    expect(card).to_contain_text("production")
    expect(answers(page)).to_contain_text("I will deploy.")  # above the card, which it moves if it comes later
    expect(page.locator(".status-line")).to_contain_text("Waiting for approval")
    card.get_by_role("button", name="Edit").click()
    card.get_by_label("Arguments").fill('{"to": "staging"}')
    card.get_by_role("button", name="Approve the changed call").click()
    over(page)
    call = page.get_by_label("Tool call deploy")
    call.get_by_role("button").first.click()
    expect(call).to_contain_text("staging")
    expect(call).not_to_contain_text("production")


# The text of an answer waits until the page shows and announces what it has to approve, as on a slow connection.
LATE_ANSWER = """
    const fetchNow = window.fetch;
    window.fetch = async (path, options) => {
      const response = await fetchNow(path, options);
      if (path !== "/agui") return response;
      const known = async () => {
        const told = () => document.getElementById("status-region").textContent === "Waiting for approval";
        while (!document.querySelector(".approval") || !told()) await new Promise((done) => setTimeout(done, 5));
      };
      const body = response.body.pipeThrough(new TransformStream({ start: known }));
      return new Response(body, { status: response.status, headers: response.headers });
    };
"""


def test_an_approval_that_arrives_before_the_answer_is_still_waited_for(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-early"] = calling("deploy", '{"to": "production"}', text="I will deploy.")
    watched.page.add_init_script(LATE_ANSWER)
    page = use_model(watched, "lab-early")
    ask(page, "Ship it")
    expect(answers(page)).to_contain_text("I will deploy.")
    expect(page.locator(".status-line")).to_contain_text("Waiting for approval")
    expect(page.get_by_role("status")).to_have_text("Waiting for approval")
    page.get_by_label("Approval needed").get_by_role("button", name="Approve").click()
    over(page)


def test_a_held_call_is_denied(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-denied"] = calling("deploy", '{"to": "production"}')
    page = use_model(watched, "lab-denied")
    ask(page, "Ship it")
    expect(page.get_by_role("status")).to_have_text("Waiting for approval")
    page.get_by_label("Approval needed").get_by_role("button", name="Deny").click()
    expect(page.get_by_label("Approval needed")).to_have_count(0)
    page.wait_for_selector(".status-line:is([data-state=done], [data-state=error])")
    expect(page.get_by_label("Tool call deploy")).to_have_count(0)


def test_a_conversation_branches_and_answers_again(watched: Watched, upstream: HostileUpstream) -> None:
    def echoed(seen: Any) -> Any:
        asked = [message["content"] for message in seen.body["messages"] if message["role"] == "user"]
        return text_script(f"Answer {len(upstream.requests('lab-echo'))} to {' and '.join(asked)}")

    upstream.scripts["lab-echo"] = echoed
    page = use_model(watched, "lab-echo")
    ask(page, "one")
    over(page)
    page.wait_for_url("**/#/chat/ses_*")
    first_session = page.url
    ask(page, "two")
    expect(answers(page)).to_have_count(2)
    over(page)
    expect(answers(page).nth(1)).to_contain_text("Answer 2 to one and two")
    answers(page).nth(1).get_by_label("Answer again").click()
    expect(answers(page).nth(1)).to_contain_text("Answer 3 to one and two")
    over(page)
    expect(answers(page).nth(1)).to_contain_text("2 of 2")
    answers(page).nth(1).get_by_label("Earlier answer").click()
    expect(answers(page).nth(1)).to_contain_text("Answer 2 to one and two")
    assert page.url == first_session
    answers(page).nth(0).get_by_label("Branch from here").click()
    expect(answers(page)).to_have_count(1)
    ask(page, "three")
    expect(answers(page)).to_have_count(2)
    over(page)
    expect(answers(page).nth(1)).to_contain_text("Answer 4 to one and three")
    page.wait_for_function("before => location.href !== before && location.hash.includes('ses_')", arg=first_session)
    page.get_by_label("You", exact=True).first.hover()
    page.get_by_label("Edit and ask again").first.click()
    expect(page.get_by_label("Your message")).to_have_value("one")


def test_a_new_chat_that_is_answered_before_it_is_painted_keeps_its_answer(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-quick"] = text_script("At once")
    page = use_model(watched, "lab-quick")
    ask(page, "One")
    over(page)
    page.wait_for_url("**/#/chat/ses_*")
    before = page.url
    page.evaluate(NOT_PAINTED)
    page.keyboard.press("Control+Shift+O")
    page.wait_for_url("**/#/chat")
    page.keyboard.type("Two")
    expect(page.get_by_label("Your message")).to_have_value("Two")
    with page.expect_response("**/turns/*"):  # the page asks for the price of an answer that it has read
        page.keyboard.press("Enter")
    page.evaluate("paint()")
    expect(page.get_by_label("You", exact=True)).to_have_text(["Two"])
    expect(answers(page)).to_contain_text(["At once"])
    page.wait_for_function("before => location.href !== before && location.hash.includes('ses_')", arg=before)


def test_attachments_are_sent(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-files"] = text_script("Seen")
    page = use_model(watched, "lab-files")
    image: FilePayload = {"name": "dot.gif", "mimeType": "image/gif", "buffer": GIF}
    notes: FilePayload = {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"# Notes"}
    page.locator("input[type=file]").set_input_files([image, notes])
    expect(page.get_by_label("Attachments").get_by_role("listitem")).to_have_count(2)
    ask(page, "Look")
    over(page)
    (content,) = [message["content"] for message in upstream.requests("lab-files")[0].body["messages"]]
    assert [part["type"] for part in content] == ["image_url", "text", "text"]
    assert content[0]["image_url"]["url"].startswith("data:image/gif;base64,R0lGOD")
    assert "# Notes" in content[1]["text"]
    assert content[2]["text"] == "Look"


def test_sessions_are_found_renamed_exported_and_deleted(
    watched: Watched, upstream: HostileUpstream, gateway: Running, tmp_path: Path
) -> None:
    upstream.scripts["lab-kept"] = text_script("A remarkable aardvark")
    page = use_model(watched, "lab-kept")
    ask(page, "Which animal comes first?")
    over(page)
    sessions = page.get_by_label("Sessions", exact=True)
    entry = sessions.get_by_role("listitem").filter(has_text="Which animal comes first?")
    expect(entry).to_have_count(1)
    reached(page, lambda: gateway.ask("/search?q=aardvark").json()["data"])
    sessions.get_by_label("Search sessions").fill("aardvark")
    expect(sessions.get_by_role("listitem")).to_have_count(1)
    with page.expect_response("**/sessions?limit=*"):
        sessions.get_by_label("Search sessions").fill("")
    entry.hover()
    entry.get_by_role("button").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_label("Title").fill("Animals")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    renamed = sessions.get_by_role("listitem").filter(has_text="Animals")
    expect(renamed).to_have_count(1)
    renamed.hover()
    renamed.get_by_role("button").click()
    with page.expect_download() as started:
        page.get_by_role("menuitem", name="Export as Markdown").click()
    started.value.save_as(tmp_path / "session.md")
    assert "A remarkable aardvark" in (tmp_path / "session.md").read_text()
    page.reload()
    expect(answers(page)).to_contain_text("A remarkable aardvark")
    renamed.hover()
    renamed.get_by_role("button").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(renamed).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_the_model_is_picked_by_keyboard(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-named"] = text_script("By this name")
    page = watched.open()
    page.get_by_role("button", name="Model: thinker").click()
    page.get_by_label("Find or name a model").fill("lab-named")
    expect(page.get_by_role("option")).to_contain_text(["lab/lab-named"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Model: lab/lab-named")).to_be_focused()
    ask(page, "Who are you?")
    over(page)
    asked_upstream(page, upstream, "lab-named")


def test_a_model_is_typed_before_the_list_is_painted(watched: Watched) -> None:
    page = watched.open()
    picker = page.get_by_role("button", name="Model: thinker")
    expect(picker).to_be_visible()
    page.evaluate(NOT_PAINTED)
    picker.press("Enter")
    page.keyboard.type("lab-x")
    expect(page.get_by_label("Find or name a model")).to_have_value("lab-x")
    page.keyboard.press("Escape")
    expect(picker).to_be_focused()
    page.evaluate("paint()")


def test_long_streams_stay_in_order(watched: Watched, upstream: HostileUpstream) -> None:
    pieces = [chunk({"content": f"word{number} " + ("\n\n" if number % 20 == 19 else "")}) for number in range(2000)]
    upstream.scripts["lab-long"] = text_script(*pieces)
    page = use_model(watched, "lab-long")
    ask(page, "Much")
    over(page)
    shown = answers(page).locator(".markdown").inner_text().split()
    assert shown == [f"word{number}" for number in range(2000)]


def test_a_refused_turn_stays_in_its_session(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-refused"] = OVERLOADED
    page = use_model(watched, "lab-refused")
    ask(page, "Are you there?")
    over(page, "error")
    page.wait_for_url("**/#/chat/ses_*")
    before = page.url
    expect(page.get_by_label("Inspect this stream")).to_be_visible()
    page.get_by_role("button", name="Try again").click()
    expect(answers(page)).to_contain_text("2 of 2")
    assert page.url == before


def test_another_page_and_back_keeps_the_conversation(watched: Watched, upstream: HostileUpstream) -> None:
    gate = threading.Event()
    upstream.scripts["lab-back"] = text_script("Before", Until(gate), " and after")
    page = use_model(watched, "lab-back")
    ask(page, "Go")
    expect(answers(page)).to_contain_text("Before")
    page.get_by_role("link", name="Overview").click()
    page.wait_for_selector(".tiles")
    gate.set()
    page.get_by_role("link", name="Chat").click()
    over(page)
    expect(answers(page)).to_contain_text("Before and after")
    page.wait_for_url("**/#/chat/ses_*")
    page.get_by_role("link", name="Chat").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Every LLM stream, one language.")


def test_a_link_is_followed_before_the_page_is_painted(watched: Watched) -> None:
    watched.page.add_init_script(NOT_PAINTED)
    page = watched.open()
    page.get_by_role("link", name="Overview").click()
    page.wait_for_url("**/#/overview")
    page.evaluate("paint()")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def test_it_works_without_a_secure_context(watched: Watched, upstream: HostileUpstream) -> None:
    """A browser gives a page of another machine over plain HTTP neither random ids nor the clipboard."""
    upstream.scripts["lab-plain"] = text_script("Plain")
    watched.page.add_init_script(
        "delete Crypto.prototype.randomUUID; Object.defineProperty(navigator, 'clipboard', {get: () => undefined})"
    )
    page = use_model(watched, "lab-plain")
    ask(page, "Hello")
    over(page)
    page.get_by_label("Copy answer").click()
    expect(page.get_by_role("status")).to_have_text("Copied")
