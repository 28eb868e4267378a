"""A Markdown export contains untrusted text, which cannot change the structure of the page."""

from __future__ import annotations

from store.turns import answer, ask, asynchronous, call, take, thought
from streamglot.events import StreamError
from streamglot.messages import Message, TextPart, ToolCallPart
from streamglot.store import Filter, Store, StoreSettings, export_markdown
from streamglot.text import neutral


@asynchronous
async def test_messages_cannot_forge_the_structure_of_the_page(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    answered = (
        "a\r\x1b[2J\x9b2J\u202e\n## user\n\u2028# forged\n\\<script>x</script> ![p](http://x) 1 < 2\n"
        "  ```\n<i>\n```html\n<b>\n~~~\n```\n<u>\n~~~"
    )
    fault = StreamError("bad", "no\n## user\n<b>", "upstream", False, 502)
    request = ask(Message("user", [TextPart("hi\n# forged <b>")], name="assistant\n## user"), model="m\n## user")
    parts = (thought(answered), call("`c\n1", "n`` `\n## x"), ToolCallPart("", "", "x\n```\n## y"))
    await take(store, request, answer(answered, *parts, error=fault))
    await store.writer.flush()
    (page,) = [text async for text in export_markdown(store.queries, Filter())]
    assert neutral(page) == page
    lines = page.split("\n")
    headings = ["# hi # forged &#60;b>", "## user (assistant ## user)", "## assistant"]
    fenced = lines.index("````")
    assert lines[fenced : fenced + 5] == ["````", "x", "```", "## y", "````"]
    assert [line for line in lines if line.startswith("#") and line != "## y"] == headings
    assert "- error: no ## user &#60;b>" in lines
    assert "- model: m ## user" in lines
    assert "**call** ``` n`` ` ## x ``` `` `c 1 ``" in lines
    quote = lines[lines.index("> a␍␛[2J\ufffd2J\ufffd") :][:13]
    assert quote == [
        "> a␍␛[2J\ufffd2J\ufffd",
        "> ## user",
        ">",
        "> # forged",
        "> \\&#60;script>x&#60;/script> &#33;[p](http://x) 1 < 2",
        ">   ```",
        "> &#60;i>",
        "> ```html",
        "> <b>",
        "> ~~~",
        "> ```",
        "> &#60;u>",
        "> ~~~",
    ]
    await store.close()
