"""``streamglot query`` and ``reply``: one question, alone or after a stored conversation of the command line or of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from ...errors import ConfigError, RequestError
from ...messages import MediaPart, Message, Request, TextPart, ToolCallPart, ToolResultPart
from ...text import ANONYMOUS
from .. import completion
from ..answer import JSON_OPTIONS, OUTPUT, answer, display_options, this_user, turn_recorder
from ..exit_status import stoppable
from ..options import (
    HERE,
    Command,
    completed,
    directory_for_here,
    text,
)
from ..question import QUESTION, SCHEMA, WORDS, Question, question_of, question_text

if TYPE_CHECKING:
    from ...store import Session, Store, TurnDetail

NOT_RUN: Final = "not run"


@click.command(
    cls=Command,
    examples=(
        'streamglot query "Why is the sky blue?"',
        'cat notes.md | streamglot query -m claude-sonnet-4-5 "Summarise this" -u',
        'streamglot query -m gemini-2.5-flash -a photo.png "What is this?"',
        'streamglot query --json "Hello" | jq .usage',
    ),
)
@WORDS
@QUESTION
@SCHEMA
@OUTPUT
@JSON_OPTIONS
@stoppable()
def query(words: tuple[str, ...], no_log: bool, **given: Any) -> int:  # Any: Click passes the options by their names
    """Ask one question and print the answer as it arrives.

    Standard input is added to the words of the command line. Ctrl-C stops the answer; the partial answer is stored.
    """
    question, display = question_of(given), display_options(given)
    text = question_text(list(words))
    if not text and not question.attachments:
        raise ConfigError("nothing was asked: give words, standard input or an attachment")
    request = question.request([question.message(text)])
    client = question.tools.client()
    with turn_recorder(client.pool.loaded, enabled=not no_log) as recorder, client:
        return answer(client, request, display, recorder).status


@click.command(
    cls=Command,
    examples=(
        'streamglot reply "And at night?"',
        'streamglot reply --here -m claude-sonnet-4-5 "Say it shorter"',
        'streamglot reply --session 06605008c9 "Go on"',
    ),
)
@WORDS
@click.option(
    "--session",
    type=text,
    default="",
    help="The session to continue, or the beginning of its id.",
    shell_complete=completed(completion.sessions),
)
@HERE
@QUESTION
@SCHEMA
@OUTPUT
@JSON_OPTIONS
@stoppable()
def reply(  # Any: Click passes the options by their names
    words: tuple[str, ...], session: str, here: bool, no_log: bool, **given: Any
) -> int:
    """Continue the last conversation with one more question.

    It uses the same model and system message unless the options name others.
    """
    question, display = question_of(given), display_options(given)
    if session and here:
        raise ConfigError("--session and --here select different conversations: use only one of them")
    text = question_text(list(words))
    if not text and not question.attachments:
        raise ConfigError("the message is empty: give words, standard input or an attachment")
    client = question.tools.client()
    with turn_recorder(client.pool.loaded, enabled=not no_log) as recorder:
        turn, found, answers = recorder.ask(lambda store: last_turn(store, session, here))
        recorder.resume(found, answers)
        with client:
            return answer(client, continued(turn, question, text), display, recorder).status


def continued(turn: TurnDetail, question: Question, text: str) -> Request:
    """The request that follows this turn, with the same model, system message and tools unless the options change them."""
    assert turn.request is not None
    messages = turn.request.messages
    if question.system:
        messages = [message for message in messages if message.role not in ("system", "developer")]
    answers = turn.response.choices if turn.response is not None else []
    answered = [Message("assistant", choice.parts) for choice in answers[:1]]
    request = question.request(with_results([*messages, *answered, question.message(text)]))
    request.model = request.model or turn.model
    request.tools = request.tools or turn.request.tools
    return request


def with_results(messages: list[Message]) -> list[Message]:
    """The conversation with a result for each tool call, because providers refuse a call without one. The command line shows
    calls and does not run them: the message after a single call is its result, and several calls get "not run"."""
    whole: list[Message] = []
    calls: dict[str, ToolCallPart] = {}
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart) and part.kind != "server":  # a provider that runs its own tools needs no result
                calls[part.call_id] = part
            elif isinstance(part, ToolResultPart):
                calls.pop(part.call_id, None)
        if not calls or message.role != "user":
            whole.append(message)
            continue
        words = [part for part in message.parts if isinstance(part, (TextPart, MediaPart))]
        alone = len(calls) == 1 and len(words) == len(message.parts)
        whole.append(Message("tool", [_result(call, words if alone else [TextPart(NOT_RUN)]) for call in calls.values()]))
        if not alone:
            whole.append(message)
        calls.clear()
    return whole


def _result(call: ToolCallPart, content: list[TextPart | MediaPart]) -> ToolResultPart:
    return ToolResultPart(call.call_id, [*content], name=call.name, kind=call.kind)


async def last_turn(store: Store, session: str, here: bool) -> tuple[TurnDetail, Session, list[Message]]:
    """The turn to continue, its session, and the answers of the session that carry state of upstreams. Unless a session is named,
    the turn is one of this user, or of a gateway client without a key."""
    # an answer does not wait for the store to be imported
    from ...store import SessionHints
    from ..store import StoreView

    view = StoreView(store.database)
    if session:
        found = await view.lookup.last_answered(session_id=await view.session_id(session))
    else:
        where = directory_for_here() if here else None
        found = await view.lookup.last_answered(directory=where, callers=(this_user(), ""), beginning=ANONYMOUS)
    turn = await view.queries.turn(found.turn_id) if found is not None else None
    if turn is None or turn.request is None:
        which = f"in the session {session!r}" if session else "of this directory" if here else "yet"
        raise RequestError(
            f"there is no answer {which} to continue; `streamglot sessions list` lists the stored conversations, "
            "and messages are stored unless store.content is false"
        )
    owned = await store.find_session(SessionHints(caller=turn.caller, name=turn.session_id), turn.request)
    owned.previous = turn.id
    return turn, owned, await store.answers(owned)
