"""The stage that has thoughts summarised, without an engine."""

from __future__ import annotations

from streamglot import check
from streamglot.engine.summaries import LastMoment, ReasoningSummaries, Summarise
from streamglot.stages.stage import ExchangeContext, ExchangeEnded, Output, Question
from vocabulary import *

START, END = StreamStart("a"), StreamEnd("end")
TEXT: list[Event] = [TextStart(), TextDelta("Pears."), TextEnd()]


def thought(text: str, echo: Echo | None = None) -> list[Event]:
    return [ReasoningStart(), ReasoningDelta(text), ReasoningEnd(echo)]


def stage(replace: bool = True, endpoint: str = "openai_chat") -> ReasoningSummaries:
    made = ReasoningSummaries("m", ExchangeContext(endpoint=endpoint), replace=replace)
    made.request(Request(stream=True))
    return made


def split(out: list[Output]) -> tuple[list[Event], list[Question]]:
    return [item for item in out if not isinstance(item, Question)], [item for item in out if isinstance(item, Question)]


def summaries(events: list[Event]) -> list[str]:
    return [text for event in events if isinstance(event, Extra) for text in event.data["extensions"]["reasoning_summary"]]


def test_summaries_leave_in_the_order_of_their_blocks_and_the_end_comes_last() -> None:
    box = stage()
    events, [first, second] = split(box.feed([START, *thought("one"), *thought("two"), *TEXT]))
    assert events == [START, *TEXT]
    ended, [last] = split(box.feed([END]))
    assert (ended, isinstance(last, LastMoment)) == ([], True)
    assert box.answer(second, "Two.") == []
    rest, _ = split(box.answer(first, "One."))
    assert summaries(rest) == ["One.", "Two."]
    assert rest[-1] == END
    check([*events, *rest])


def test_a_summary_waits_for_the_end_of_the_open_block() -> None:
    box = stage(replace=False)
    events, [question] = split(box.feed([START, *thought("one"), TextStart()]))
    assert box.answer(question, "One.") == []
    events, _ = split(box.feed([TextDelta("x"), TextEnd()]))
    assert [type(event) for event in events] == [TextDelta, TextEnd, Extra]
    assert box.feed([END]) == [END]


def test_the_last_moment_ends_the_stream_without_late_summaries() -> None:
    box = stage()
    _, [question] = split(box.feed([START, *thought("one"), *TEXT]))
    _, [last] = split(box.feed([END]))
    assert box.answer(last, None) == [END]
    assert box.answer(question, "late") == []
    for reply in (ExchangeEnded("over"), TimeoutError()):
        box = stage()
        _, [question] = split(box.feed([START, *thought("one"), *TEXT]))
        assert box.answer(question, reply) == []
        assert box.feed([END]) == [END]


def test_an_error_is_not_held() -> None:
    box = stage()
    split(box.feed([START, *thought("one")]))
    error = StreamError("upstream_truncated", "cut")
    assert box.feed([error]) == [error]
    assert box.close() == []


def test_each_choice_has_its_own_thoughts() -> None:
    box = stage()
    wrapped: list[Event] = [Choice(1, event) for event in (*thought("other"), *TEXT)]  # type: ignore[arg-type]  # no Choice in them
    events, [first, other] = split(box.feed([START, *thought("one"), *wrapped, *TEXT]))
    assert isinstance(first, Summarise)
    assert "ReasoningDelta" not in str(events)
    events += split(box.answer(first, "One."))[0]
    inner, _ = split(box.answer(other, "Other."))
    assert all(isinstance(event, Choice) and event.index == 1 for event in inner)
    events += [*inner, Choice(1, END)]
    check([*events, *split(box.feed([END]))[0]])


def test_thoughts_come_back_with_their_state_and_without_their_summary() -> None:
    box = stage()
    echo = Echo("claude", {"signature": "s"})
    events, _ = split(box.feed([START, *thought("secret", echo)]))
    [end] = [event for event in events if isinstance(event, ReasoningEnd)]
    assert "secret" not in str([event for event in events if event is not end])
    returned = [ReasoningPart("Short.", echo=Echo("c", {"field": "reasoning"})), ReasoningPart("", redacted=True, echo=end.echo)]
    request = Request(messages=[Message("assistant", [*returned, TextPart("x")])])
    [message] = box.request(request).messages
    assert message.parts == [ReasoningPart("secret", echo=echo), TextPart("x")]
    forged = ReasoningPart("", redacted=True, echo=Echo("streamglot", {"thought": 5, "echo": {}}))
    [message] = box.request(Request(messages=[Message("assistant", [forged])])).messages
    assert message.parts == [ReasoningPart("", redacted=True)]
    plain = Request(messages=[Message("user", [TextPart("x")])])
    assert box.request(plain) is plain


def test_nothing_is_asked_where_nobody_would_see_it() -> None:
    box = stage(replace=False, endpoint="anthropic")
    assert box.feed([START, *thought("one"), *TEXT, END]) == [START, *thought("one"), *TEXT, END]
    hidden: list[Event] = [ReasoningStart(), ReasoningEnd(Echo("c", {"data": "d"}), redacted=True)]
    given: list[Event] = [ReasoningStart(summary=True), ReasoningDelta("Given."), ReasoningEnd()]
    assert stage().feed([START, *hidden, *given, END]) == [START, *hidden, *given, END]


def test_a_whole_answer_has_its_summaries_where_the_thoughts_were() -> None:
    for reply, texts in (("One.", ["One.", "Two."]), ("", ["Two."])):
        box = ReasoningSummaries("m", ExchangeContext(), replace=True)
        box.request(Request(stream=False))
        held, [first, second] = split(box.feed([START, *thought("one"), *TEXT, *thought("two"), *TEXT]))
        assert held == [START]
        assert split(box.feed([END]))[0] == []
        assert box.answer(second, "Two.") == []
        events, _ = split(box.answer(first, reply))
        check([START, *events])
        assert [event.text for event in events if isinstance(event, ReasoningDelta)] == texts
        assert [type(event).__name__ for event in events][:1] == (["ReasoningStart"] if reply else ["TextStart"])
    box = ReasoningSummaries("m", ExchangeContext(), replace=True)
    box.request(Request(stream=False))
    box.feed([START, *thought("one"), *TEXT])
    _, [last] = split(box.feed([END]))
    assert box.answer(last, None) == [*TEXT, END]
