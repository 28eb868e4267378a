"""HTML of models, tool names, arguments, results, error texts, titles and file names never executes and never fetches."""

from __future__ import annotations

import pytest
from playwright.sync_api import FilePayload, Page, expect

from gateway.running import Running
from gateway.upstream import HostileUpstream, whole
from web.chat_actions import answers, ask, over, use_model
from web.chromium import Watched
from web.injections import CALL, INJECTIONS
from web.scripts import answer, calling, text_script

ALL = "\n\n".join(INJECTIONS)
IMAGE = f"<img src=x onerror={CALL}>"
LIVE_CODE = (
    "script:not([src]), iframe, object, embed, form[action], base, meta[http-equiv], style, link[href^='http:'], svg[onload]"
)


@pytest.fixture(autouse=True)
def hostile_content(watched: Watched) -> None:
    watched.hostile = True


def inert(page: Page, where: str = "main") -> None:
    """There is nothing in the page that could act: no elements of such kinds, no handlers, no addresses but plain ones."""
    assert page.locator(where).locator(LIVE_CODE).count() == 0
    found = page.evaluate(
        """where => [...document.querySelectorAll(`${where} *`)].flatMap((element) =>
            [...element.attributes]
              .filter(({ name, value }) => name.startsWith("on") || (["href", "src", "xlink:href"].includes(name)
                && !/^(#|https?:|mailto:|data:image\\/|blob:|\\/)/.test(value)) || name === "srcset" || name === "style" && /url/.test(value))
              .map(({ name, value }) => `${element.tagName} ${name}=${value}`))""",
        where,
    )
    assert found == []


def test_answers_and_thoughts_are_inert(watched: Watched, upstream: HostileUpstream) -> None:
    """In pieces, so that each state on the way is shown too."""
    upstream.scripts["lab-evil"] = answer(ALL, thought=ALL)
    page = use_model(watched, "lab-evil")
    ask(page, ALL)
    over(page)
    page.get_by_label("Thinking", exact=True).get_by_role("button").click()
    inert(page)
    for link in page.locator(".markdown a").all():
        assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    page.evaluate("document.querySelectorAll('.markdown a:not([href^=http])').forEach((link) => link.click())")
    expect(answers(page)).to_contain_text("Image: tracked")
    assert page.evaluate("typeof document.getElementById") == "function"


def test_each_injection_is_inert_when_it_is_all_there_is(watched: Watched) -> None:
    page = watched.open()
    page.evaluate(
        """async (texts) => {
            const { MarkdownBlocks } = await import("/web/js/lib/markdown.js");
            for (const text of texts) {
                for (let end = 0; end <= text.length; end += Math.max(1, text.length >> 4)) {
                    const blocks = new MarkdownBlocks().update(text.slice(0, end));
                    const box = document.createElement("div");
                    document.querySelector("main").append(box);
                    for (const block of blocks) if (block.kind === "html") { const part = document.createElement("div"); part.innerHTML = block.html; box.append(part); }
                }
            }
        }""",
        list(INJECTIONS),
    )
    inert(page)
    page.wait_for_function("[...document.images].every((image) => image.complete)")


def test_tool_cards_are_inert(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-evil-tool"] = calling("x" + IMAGE.replace(" ", "_"), '{"a": "', IMAGE.replace('"', ""), '"}')
    page = use_model(watched, "lab-evil-tool")
    ask(page, "Call")
    over(page)
    page.locator(".tool .fold").click()
    expect(page.locator(".tool")).to_contain_text("onerror")
    inert(page)


def test_approvals_are_inert(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-evil-deploy"] = calling("deploy", '{"a": "', IMAGE.replace('"', ""), '"}')
    page = use_model(watched, "lab-evil-deploy")
    ask(page, "Call")
    expect(page.get_by_label("Approval needed")).to_contain_text("onerror")
    inert(page)
    page.get_by_label("Approval needed").get_by_role("button", name="Deny").click()


def test_errors_and_titles_are_inert(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-evil-error"] = whole({"error": {"message": ALL[:1500], "code": IMAGE}}, 500)
    page = use_model(watched, "lab-evil-error")
    ask(page, IMAGE)
    over(page, "error")
    inert(page)
    page.wait_for_url("**/#/chat/ses_*")  # else the page would go there from the new chat
    upstream.scripts["lab-evil-title"] = text_script("fine")
    page.evaluate("localStorage.setItem('streamglot.settings', JSON.stringify({model: 'lab-evil-title'}))")
    page.goto(f"{watched.url}/#/chat")
    expect(page.get_by_role("heading", level=1)).to_have_text("Every LLM stream, one language.")
    page.reload()
    ask(page, f"{IMAGE} {IMAGE}")
    over(page)
    expect(page.get_by_label("Sessions", exact=True)).to_contain_text("onerror")
    page.goto(f"{watched.url}/#/overview")
    expect(page.get_by_label("Last errors")).to_contain_text("onerror")
    inert(page)


def test_file_names_are_inert(watched: Watched, upstream: HostileUpstream) -> None:
    upstream.scripts["lab-evil-file"] = text_script("fine")
    page = use_model(watched, "lab-evil-file")
    file: FilePayload = {"name": f"{IMAGE}.md".replace("/", "_"), "mimeType": "text/markdown", "buffer": b"x"}
    page.locator("input[type=file]").set_input_files(file)
    expect(page.get_by_label("Attachments")).to_contain_text("onerror")
    ask(page, "Look")
    over(page)
    inert(page)


def test_an_address_cannot_inject(watched: Watched, gateway: Running) -> None:
    page = watched.open(f"#/chat/{IMAGE}")
    page.wait_for_selector(".empty p")
    inert(page)
    for fragment in (f"#/inspect/{IMAGE}", f"#/{IMAGE}", "#/chat/%E0%A4%A", "#/overview/../../x"):
        page.goto(f"{gateway.url}/{fragment}")
        page.wait_for_selector("main")
        inert(page)
