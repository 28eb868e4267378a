"""What a process remembers of conversations that upstreams keep."""

from __future__ import annotations

from streamglot.engine.kept_conversations import ASKED, MAX_ANSWERS, KeptConversations, restore_stored
from streamglot.events import Echo
from streamglot.messages import Message, Request, TextPart
from streamglot.store.conversation import hash_conversation, normal


def user(text: str) -> Message:
    return Message("user", [TextPart(text)])


def said(text: str, echo: Echo | None = None) -> Message:
    return Message("assistant", [TextPart(text)], echo=echo)


def state(asked: list[Message], number: int, provider: str = "one") -> Echo:
    return Echo(provider, {"response_id": f"r-{number}", ASKED: hash_conversation("", asked).prompt_hash.hex()})


def known(conversations: KeptConversations, *messages: Message, caller: str = "me", provider: str = "one") -> object:
    restored = conversations.restore(Request(messages=list(messages)), caller, provider)
    echo = restored.messages[-2].echo
    return echo.data["response_id"] if echo is not None else None


def remember(conversations: KeptConversations, asked: list[Message], number: int, text: str) -> None:
    conversations.remember("me", state(asked, number), normal([TextPart(text)]))


def test_an_answer_is_found_by_everything_before_it() -> None:
    kept = KeptConversations()
    remember(kept, [user("a")], 1, "Yes")
    remember(kept, [user("b")], 2, "Yes")
    remember(kept, [user("a"), said("Yes"), user("c")], 3, "Yes")
    assert known(kept, user("a"), said("Yes"), user("x")) == "r-1"
    assert known(kept, user("b"), said(" Yes\n"), user("x")) == "r-2"
    assert known(kept, user("a"), said("Yes"), user("c"), said("Yes"), user("x")) == "r-3"
    assert known(kept, user("b"), said("Yes"), user("c"), said("Yes"), user("x")) is None, "another branch"
    assert known(kept, user("a"), said("Something else entirely"), user("x")) is None
    assert known(kept, user("a"), said("Yes"), user("x"), caller="you") is None
    assert known(kept, user("a"), said("Yes"), user("x"), provider="another") is None
    alone = Request(messages=[user("a")])
    assert kept.restore(alone, "me", "one") is alone


def test_stored_answers_are_found_in_the_same_way() -> None:
    stored = [said("Yes", state([user("a")], 1)), said("Yes", state([user("b")], 2)), said("Yes", Echo("one", {}))]
    request = Request(messages=[user("a"), said("Yes"), user("x")])
    found = restore_stored(request, stored, "one").messages[1].echo
    assert found is not None
    assert found.data["response_id"] == "r-1"
    assert restore_stored(request, stored, "another") is request


def test_the_memory_is_bounded() -> None:
    kept = KeptConversations(max_bytes=50_000)
    for number in range(500):
        remember(kept, [user(str(number))], number, "x" * 10_000)
    assert known(kept, user("499"), said("x" * 10_000), user("y")) == "r-499"
    assert known(kept, user("0"), said("x" * 10_000), user("y")) is None
    many = KeptConversations()
    for number in range(MAX_ANSWERS + 5):
        remember(many, [user("again")], number, f"answer {number}")
    assert known(many, user("again"), said(f"answer {MAX_ANSWERS}"), user("y")) == f"r-{MAX_ANSWERS}"
    assert known(many, user("again"), said("answer 0, but with many other words"), user("y")) is None
