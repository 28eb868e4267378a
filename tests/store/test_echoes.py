"""Provider state that a client dropped is restored in its place, for the provider that made it and for no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from store.turns import answer, ask, assistant, asynchronous, call, result, take, thought, user
from streamglot.events import Echo
from streamglot.messages import Message, Part, ReasoningPart, TextPart, ToolCallPart
from streamglot.store import SessionHints, Store, StoreSettings, restore_echoes

pytestmark = pytest.mark.usefixtures("patient_lookups")

SIGNED = [
    assistant(thought("I should read it", "s1"), "Reading.", call("c1", echo=Echo("one", {"thought_signature": "t1"}))),
    assistant(thought("Now I know", "s2"), "It has five.", thought("One more", "s3"), call("c2", arguments="{}")),
    assistant(thought("", "s4"), "Done."),
]


def stripped(message: Message) -> Message:
    """The message as a client returns it that drops provider state: without reasoning and echoes."""
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ReasoningPart):
            continue
        parts.append(structs.replace(part, echo=None) if isinstance(part, (TextPart, ToolCallPart)) else part)
    return Message(message.role, parts)


def history(messages: list[Message]) -> list[Message]:
    return [user("go"), messages[0], result("c1", "{}"), messages[1], result("c2", "ok"), messages[2], user("thanks")]


def test_all_state_is_restored() -> None:
    request = ask(*history([stripped(message) for message in SIGNED]))
    assert restore_echoes(request, SIGNED) == ask(*history(SIGNED))
    assert restore_echoes(request, SIGNED, provider="one") == ask(*history(SIGNED))


def test_only_to_the_provider_that_made_it() -> None:
    request = ask(*history([stripped(message) for message in SIGNED]))
    assert restore_echoes(request, SIGNED, provider="two") is request
    mixed = [SIGNED[0], assistant(thought("Now I know", "x", "two"), "It has five.", call("c2", arguments="{}"))]
    restored = restore_echoes(request, mixed, provider="two")
    assert restored.messages[1] == stripped(SIGNED[0])
    assert restored.messages[3].parts[0] == thought("Now I know", "x", "two")


def test_state_that_the_client_sent_is_not_changed() -> None:
    request = ask(*history(SIGNED))
    assert restore_echoes(request, SIGNED) is request
    assert restore_echoes(request, []) is request
    assert restore_echoes(ask(user("x")), SIGNED).messages == [user("x")]


def test_reasoning_without_its_signature_becomes_the_signed_one() -> None:
    unsigned = [Message("assistant", [structs.replace(part, echo=None) for part in message.parts]) for message in SIGNED]
    edited = ask(*history(unsigned))
    first = edited.messages[1].parts[0]
    assert isinstance(first, ReasoningPart)
    first.text = "I should  read it (edited)"
    assert restore_echoes(edited, SIGNED) == ask(*history(SIGNED))


def test_state_is_restored_with_new_ids_and_split_messages() -> None:
    """The client replaces the ids of calls and splits one message into two."""
    first, second = stripped(SIGNED[0]), stripped(SIGNED[1])
    renamed = structs.replace(first.parts[1], call_id="mine")
    request = ask(
        user("go"), Message("assistant", [renamed]), result("mine", "{}"), assistant(second.parts[0]), assistant(second.parts[1])
    )
    restored = restore_echoes(request, SIGNED).messages
    assert restored[1].parts[0] == thought("I should read it", "s1")
    call_part = restored[1].parts[1]
    assert isinstance(call_part, ToolCallPart)
    assert (call_part.call_id, call_part.echo) == ("mine", Echo("one", {"thought_signature": "t1"}))
    assert restored[3].parts == [thought("Now I know", "s2"), TextPart("It has five.")]
    assert restored[4].parts == [thought("One more", "s3"), call("c2", arguments="{}")]


def test_equal_answers_are_matched_in_their_order() -> None:
    stored = [assistant(thought("first", "s1"), "OK"), assistant(thought("second", "s2"), "OK")]
    request = ask(user("a"), assistant("OK"), user("b"), assistant("OK"), user("c"))
    assert restore_echoes(request, stored).messages[1:4:2] == stored


def test_an_edited_text_still_finds_its_reasoning() -> None:
    stored = [assistant(thought("hm", "s1"), "The file contains five dependencies, all up to date.")]
    request = ask(user("a"), assistant("The file contains 5 dependencies, all up to date!"), user("b"))
    assert restore_echoes(request, stored).messages[1].parts[0] == thought("hm", "s1")


def test_the_echo_of_a_whole_message_is_restored() -> None:
    stored = [Message("assistant", [TextPart("hello there")], echo=Echo("one", {"id": "msg_1"}))]
    assert restore_echoes(ask(user("a"), assistant("hello there")), stored).messages[1] == stored[0]


parts = st.lists(
    st.one_of(
        st.integers(0, 5).map(lambda number: TextPart(f"text {number} of it")),
        st.integers(0, 99).map(
            lambda number: call(f"c{number}", arguments=f'{{"n": {number}}}', echo=Echo("one", {"n": number}))
        ),
        st.integers(0, 99).map(lambda number: thought(f"thought {number}", f"s{number}")),
    ),
    min_size=1,
    max_size=6,
)


@given(st.lists(parts, min_size=1, max_size=5))
def test_nothing_is_lost_doubled_or_moved(answers: list[list[Part]]) -> None:
    """For any answers: text and calls keep their order, and no signature occurs twice."""
    stored = [Message("assistant", answered) for answered in answers]
    request = ask(*(message for answered in stored for message in (user("x"), stripped(answered))))
    restored = restore_echoes(request, stored)
    assert [stripped(message) if message.role == "assistant" else message for message in restored.messages] == request.messages
    signatures = [
        part.echo.data["signature"]
        for message in restored.messages
        for part in message.parts
        if isinstance(part, ReasoningPart) and part.echo
    ]
    known = [
        part.echo.data["signature"] for answered in answers for part in answered if isinstance(part, ReasoningPart) and part.echo
    ]
    assert all(signatures.count(mark) <= known.count(mark) for mark in signatures)
    assert restore_echoes(restored, stored, provider="two") is restored


@asynchronous
async def test_a_conversation_survives_a_client_that_drops_state_and_a_change_of_provider(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    kept: list[Message] = [user("go")]
    for number, signed in enumerate(SIGNED):
        if number == 1:
            await store.close()
            store = await Store.open(StoreSettings(url=url))
        provider = "two" if number == 1 else "one"
        given = [
            structs.replace(part, echo=Echo(provider, part.echo.data)) if getattr(part, "echo", None) else part  # type: ignore[union-attr]  # a part with an echo
            for part in signed.parts
        ]
        session = await store.find_session(SessionHints(), ask(*kept))
        request = restore_echoes(ask(*kept), await store.answers(session), provider=provider)
        carried = {
            echo.provider for message in request.messages for part in message.parts if (echo := getattr(part, "echo", None))
        }
        assert carried == ({"one"} if number == 2 else set())
        turn = await take(store, ask(*kept), answer(*given))
        assert turn.session.id == session.id or number == 0
        kept += [stripped(signed), result(f"c{number + 1}", "ok")]
    await store.close()
