"""The recent turns of this process, from memory. The next request of a tool loop arrives within milliseconds, before the
database has its predecessor.

The number of turns and their bytes are limited. Older turns are read from the database, if contents are stored.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from msgspec import Struct, field

from ..messages import Message
from .conversation import ANSWER_BYTES, Conversation, alike
from .provider_state import carries_echo

EDITED_DEPTH: Final = 0.5
"""The depth of a match with the newest answer after an edit: worse than an exact match, better than an older answer."""
MAX_TURNS: Final = 1_000
MAX_BYTES: Final = 8 * 2**20
"""Bytes of answers to remember: what a busy gateway receives while a database restarts."""


class Seen(Struct):
    """A turn that started in this process; after its end also its tip and its answers. ``retrievable``: a request may continue
    it by its response id."""

    turn_id: str
    session_id: str
    caller: str
    prompt_hash: bytes | None
    named: bool = False
    response_id: str = ""
    retrievable: bool = True
    ended: bool = False
    tip: bytes | None = None
    answer_bytes: bytes = b""
    messages: list[Message] = field(default_factory=list)
    weight: int = 256


class Match(Struct, frozen=True):
    """The turn that a conversation continues. ``depth`` is how many answers back it is."""

    depth: float
    turn_id: str
    session_id: str


class Recent:
    def __init__(self, max_turns: int = MAX_TURNS, max_bytes: int = MAX_BYTES) -> None:
        self._max_turns, self._max_bytes = max_turns, max_bytes
        self._weight = 0
        self._turns: OrderedDict[str, Seen] = OrderedDict()
        self._by: dict[tuple[str, str | bytes], dict[str, Seen]] = {}
        self._heads: dict[str, str] = {}

    # --- learning

    def start(self, seen: Seen, probe: bool) -> None:
        self._turns[seen.turn_id] = seen
        self._weight += seen.weight
        self._index("session", seen.session_id, seen)
        if seen.prompt_hash is not None and not probe:
            self._index("prompt", seen.prompt_hash, seen)
        if seen.response_id:
            self._index("response", seen.response_id, seen)
        if not probe:
            self._heads[seen.session_id] = seen.turn_id
        while len(self._turns) > self._max_turns or (self._weight > self._max_bytes and len(self._turns) > 1):
            self._forget(self._turns.popitem(last=False)[1])

    def finish(
        self, turn_id: str, tip: bytes | None, answer_bytes: bytes, response_id: str, answer: Message, weight: int
    ) -> None:
        """Notes the end of a turn. ``answer_bytes`` is the answer's normal form."""
        seen = self._turns.get(turn_id)
        if seen is None:
            return
        if seen.response_id != response_id:
            self._unindex("response", seen.response_id, seen)
        seen.tip, seen.response_id, seen.ended = tip, response_id, True
        if tip is not None:
            seen.answer_bytes = answer_bytes[:ANSWER_BYTES]
            self._index("tip", tip, seen)
        if response_id:
            self._index("response", response_id, seen)
        if carries_echo(answer):
            seen.messages.append(answer)
            seen.weight += weight
            self._weight += weight

    def withdraw(self, turn_id: str) -> None:
        seen = self._turns.get(turn_id)
        if seen is not None:
            seen.retrievable = False

    # --- finding

    def answers(self, session_id: str) -> list[tuple[str, Message]]:
        return [(seen.turn_id, message) for seen in reversed(self._newest("session", session_id)) for message in seen.messages]

    def last(self, session_id: str) -> Seen | None:
        """The newest turn of a session, if the session was seen here."""
        return next(iter(self._newest("session", session_id)), None)

    def owner(self, session_id: str) -> str | None:
        """The caller of a session, if the session was seen here."""
        last = self.last(session_id)
        return last.caller if last is not None else None

    def ended(self, turn_id: str) -> bool:
        """Whether this turn ended here recently."""
        seen = self._turns.get(turn_id)
        return seen is not None and seen.ended

    def knows(self, response_id: str) -> bool:
        """Whether this is the response of a turn that started here recently."""
        return ("response", response_id) in self._by

    def by_response(self, caller: str, response_id: str) -> Seen | None:
        """The turn that a request with this response id continues."""
        found = (seen for seen in self._newest("response", response_id) if seen.caller == caller)
        return next((seen for seen in found if seen.ended and seen.retrievable), None)

    def by_conversation(self, caller: str, conversation: Conversation, session_id: str = "") -> Match | None:
        """The turn that this conversation continues, in this session or in one without a name. The longest history wins; of
        equal ones, the turn that nothing continues yet. An edited answer is found by the messages before it."""

        def ours(seen: Seen) -> bool:
            return seen.caller == caller and (seen.session_id == session_id if session_id else not seen.named)

        for depth, prefix in enumerate(conversation.prefixes):
            found = [seen for seen in self._newest("tip", prefix.tip) if ours(seen)]
            if found:
                best = next((seen for seen in found if self._heads.get(seen.session_id) == seen.turn_id), found[0])
                self._heads.pop(best.session_id, None)  # the next request with this history continues another turn
                return Match(depth, best.turn_id, best.session_id)
            if depth == 0:
                for seen in self._newest("prompt", prefix.prompt_hash):
                    if ours(seen) and alike(seen.answer_bytes, prefix.answer):
                        return Match(EDITED_DEPTH, seen.turn_id, seen.session_id)
        return None

    # --- the index

    def _index(self, kind: str, key: str | bytes, seen: Seen) -> None:
        self._by.setdefault((kind, key), {})[seen.turn_id] = seen

    def _unindex(self, kind: str, key: str | bytes, seen: Seen) -> None:
        found = self._by.get((kind, key))
        if found is not None:
            found.pop(seen.turn_id, None)
            if not found:
                del self._by[kind, key]

    def _newest(self, kind: str, key: str | bytes) -> list[Seen]:
        return list(reversed(self._by.get((kind, key), {}).values()))

    def _forget(self, seen: Seen) -> None:
        self._weight -= seen.weight
        places: list[tuple[str, str | bytes | None]] = [("session", seen.session_id), ("prompt", seen.prompt_hash)]
        places += [("tip", seen.tip), ("response", seen.response_id)]
        for kind, key in places:
            if key is not None:
                self._unindex(kind, key, seen)
        if self._heads.get(seen.session_id) == seen.turn_id:
            del self._heads[seen.session_id]
