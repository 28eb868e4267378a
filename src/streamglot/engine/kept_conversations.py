"""Conversations that upstreams keep themselves: which answer of theirs a request continues.

Such an upstream gets only what is new, and the name of the answer that it follows. The name is the ``echo`` of the answer's
message. No client returns it, so an answer is found again by the conversation before it. The store has the answers of all
processes; ``KeptConversations`` has those of this process, also where nothing is stored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import structs

from ..events import Echo, Event, Extra, StreamEnd
from ..json_types import JsonObject
from ..messages import Message, Request, Response
from ..stages.steps import echo_of
from ..store.conversation import ANSWER_BYTES, alike, hash_conversation, normal
from .observer import ExchangeResult, Observer

ASKED: Final = "asked"
"""The key in an echo for the hash of the conversation before the answer."""
MAX_BYTES: Final = 16 * 2**20
"""Bytes of remembered answers, of each at most its first 4 KB: some 10,000 answers, more than a busy person gets in a day."""
MAX_ANSWERS: Final = 16
"""Answers to one question that are remembered: a client that asks again gets another one."""
ANSWER_OVERHEAD: Final = 300
"""Approximate bytes of a remembered answer beside its text and its state."""


class KeptConversations:
    """Remembers the newest answers of upstreams that keep the conversation, by what was asked. The least recently used question
    is forgotten first; a conversation that is not found goes to the upstream as a new one, in full."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._questions: OrderedDict[tuple[str, str, str], list[_KeptAnswer]] = OrderedDict()

    def remember(self, caller: str, echo: Echo, answer: bytes) -> None:
        key = caller, echo.provider, str(echo.data[ASKED])
        answers = self._questions.setdefault(key, [])
        answers.insert(0, _KeptAnswer(answer[:ANSWER_BYTES], echo))
        self._size += answers[0].size
        if len(answers) > MAX_ANSWERS:
            self._size -= answers.pop().size
        self._questions.move_to_end(key)
        while self._size > self._max_bytes:
            self._size -= sum(old.size for old in self._questions.popitem(last=False)[1])

    def remember_answer(self, caller: str, request: Request, response: Response) -> None:
        """Remembers this answer to the request of a caller, if its upstream keeps the conversation."""
        echo = kept_echo(request, response)
        if echo is not None:
            parts = next((choice.parts for choice in response.choices if choice.index == 0), [])
            self.remember(caller, echo, normal(parts))

    def restore(self, request: Request, caller: str, provider: str) -> Request:
        """The request with the echo of the newest answer that this provider gave."""
        return _restored(request, provider, lambda before: self._questions.get((caller, provider, before), ()))


class _KeptAnswer:
    """``continued``: a request has continued it. Of equal answers, the one that nothing continues belongs to the other of two equal
    conversations."""

    __slots__ = ("continued", "echo", "text")

    def __init__(self, text: bytes, echo: Echo) -> None:
        self.text, self.echo, self.continued = text, echo, False

    @property
    def size(self) -> int:
        return ANSWER_OVERHEAD + len(self.text) + len(msgspec.json.encode(self.echo))


_Find: TypeAlias = Callable[[str], Iterable[_KeptAnswer]]


def restore_stored(request: Request, answers: Sequence[Message], provider: str) -> Request:
    """The same from stored answers, the oldest first."""
    found: dict[str, list[_KeptAnswer]] = {}
    for message in reversed(answers):
        echo = message.echo
        if echo is not None and echo.provider == provider and isinstance(echo.data.get(ASKED), str):
            found.setdefault(str(echo.data[ASKED]), []).append(_KeptAnswer(normal(message.parts)[:ANSWER_BYTES], echo))
    return _restored(request, provider, lambda before: found.get(before, ())) if found else request


def _restored(request: Request, provider: str, find: _Find) -> Request:
    messages = request.messages
    end = max((place for place, message in enumerate(messages) if message.role == "assistant"), default=-1)
    own = messages[end].echo if end >= 0 else None
    if end < 0 or (own is not None and own.provider == provider):
        return request
    prefix = next(iter(hash_conversation("", messages).prefixes), None)
    if prefix is None:
        return request
    answers = list(find(prefix.prompt_hash.hex()))
    same = [answer for answer in answers if answer.text == prefix.answer]
    same = same or [answer for answer in answers if alike(answer.text, prefix.answer)]
    if not same:
        return request
    found = next((answer for answer in same if not answer.continued), same[0])
    found.continued = True
    changed = structs.replace(messages[end], echo=found.echo)
    return structs.replace(request, messages=[*messages[:end], changed, *messages[end + 1 :]])


def kept_echo(request: Request, response: Response | None) -> Echo | None:
    """The echo of an answer of such an upstream, with the hash by which it is found again; None for any other answer."""
    echo = echo_of(response) if response is not None else None
    if echo is None:
        return None
    return Echo(echo.provider, {**echo.data, ASKED: hash_conversation("", request.messages).prompt_hash.hex()})


class KeptAnswer(Observer):
    """Has the answer of one exchange remembered."""

    wants_response = True

    def __init__(self, remember: Callable[[Request, Response], None]) -> None:
        self._remember = remember

    def finished(self, result: ExchangeResult) -> None:
        if result.response is not None:
            self._remember(result.request, result.response)


class KeptState:
    """Completes the state that an upstream reports of a conversation by what its request says of it: a stage over the events of
    one model turn."""

    def __init__(self, dialect: str, provider: str, state: JsonObject) -> None:
        self._dialect, self._provider, self._state = dialect, provider, state
        self._reported = False

    def feed(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            if isinstance(event, Extra) and event.provider == self._provider:
                self._reported = True
                event = Extra(event.dialect, {**event.data, **self._state}, event.provider)
            elif isinstance(event, StreamEnd) and not self._reported:
                out.append(Extra(self._dialect, self._state, self._provider))
            out.append(event)
        return out
