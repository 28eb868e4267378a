"""Questions to people: shared among processes, so that any worker can show and decide the questions of all, and answered.

The registry of a process (``Approvals``) holds its own questions. ``SharedApprovals`` writes them into a table that all processes
see:

- in the store's database, if the store may have content: then gateways on other machines see the questions too;
- otherwise, if there are several workers, in a database in the supervisor's folder, which is deleted when the gateway ends;
- otherwise nowhere: there is one process, and its registry is enough.

A decision is written into the table once, by whichever process got it. The process that holds the stream looks for decisions
while it has open questions. A call that ended its stream to ask the client's user is resumed by ``resumed_answer``: the user's
decisions become the next answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct, structs

from ..dialects.common.server_tools import ApprovalAnswer
from ..errors import RequestError, StreamglotError
from ..events import BareEvent, StreamEnd, StreamStart
from ..messages import Part, Response, ResponseChoice, TextPart, TokenCounts, ToolCallPart
from ..stages import collect
from ..tasks import WriteLine
from .observe.live import Live

if TYPE_CHECKING:
    from ..engine.upstreams import UpstreamPool
    from ..policies.approvals import ApprovalRequest, Approvals, Decision, SuspendedCall
    from ..store import FoundApproval, Store, StoredApprovals

WATCH_SECONDS: Final = 0.4
"""Seconds between two polls for decisions, and for the questions of other processes while a client watches them."""
TAKEN_SECONDS: Final = 5.0
"""Seconds that a decision waits to be taken by the process that holds the stream: ten polls of a busy process."""
UNKNOWN_SECONDS: Final = 0.5
"""Seconds to wait for the row of an unknown question. Its own process shows a question before the row is committed."""
POLL_SECONDS: Final = 0.05
CLOSE_SECONDS: Final = 5.0
"""Seconds that the last write may take when the gateway stops."""
EXPIRE_SECONDS: Final = 10.0
"""Seconds between two removals of expired rows."""
MAX_ANSWERS: Final = 1_000
"""Decisions of a client in one request: more than an answer has calls, and few enough for one query."""
MAX_ID_CHARS: Final = 64
"""Characters of an id; ours have 32."""
STORE_UNAVAILABLE: Final = "store_unavailable"
"""The error code of a database that does not answer."""
FILE: Final = "approvals.db"
_folder = ""


def share(folder: str) -> None:
    """Names the folder that the workers of this process share."""
    global _folder
    _folder = folder


class _Question(Struct):
    """An open question as it is written into the table. ``expires`` is in seconds since 1970."""

    id: str
    key: str
    expires: float
    body: str


class _StoredCall(Struct, omit_defaults=True):
    """A suspended call as JSON in the table."""

    request: msgspec.Raw
    events: list[BareEvent]


class SharedApprovals:
    """The questions of all processes. It is the ``ApprovalSharing`` of the registry of this process."""

    def __init__(self, pool: UpstreamPool, live: Live, store: Callable[[], Store | None], log: WriteLine) -> None:
        self._pool = pool
        self._live = live
        self._store = store
        self._log = log
        self._folder_store: Store | None = None
        self._opening = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._work = asyncio.Event()
        self._unwritten: dict[str, _Question] = {}
        self._written: dict[str, _Question] = {}
        self._closed: list[tuple[str, str | None]] = []
        self._others: list[ApprovalRequest] = []
        self._generation = 0
        self._expire_at = 0.0

    @property
    def _own(self) -> Approvals:
        return self._pool.approvals

    # --- the questions of this process

    def opened(self, request: ApprovalRequest) -> None:
        self._live.changed()
        if self.shares:
            with suppress(ValueError):  # text that is not valid Unicode stays in this process
                body = msgspec.json.encode(request).decode()
                self._unwritten[request.id] = _Question(request.id, request.key, time.time() + request.seconds, body)
                self._work.set()

    def closed(self, request: ApprovalRequest, decision: Decision | None) -> None:
        self._live.changed()
        if self._unwritten.pop(request.id, None) or self._written.pop(request.id, None):
            self._closed.append((request.id, None if decision is None else _bare(decision)))
            self._work.set()

    async def suspended(self, call: SuspendedCall) -> bool:
        request = call.request
        try:
            table = await self._table(create=True)
            if table is None:
                return False
            from ..store import OpenedApproval

            body = msgspec.json.encode(_StoredCall(msgspec.Raw(msgspec.json.encode(request)), list(call.events))).decode()
            await table.suspend(OpenedApproval(request.id, request.key, time.time() + request.seconds, body))
        except (StreamglotError, ValueError):  # the database does not answer, or the text is not valid Unicode
            return False
        return True

    # --- lists

    def seen(self) -> list[ApprovalRequest]:
        """The open questions of this process, and those of the others at the last look."""
        return [*self._own.open(), *self._others] if self._others else self._own.open()

    async def refresh(self) -> None:
        """Looks for the open questions of other processes. If the table cannot be read, the last ones stay."""
        from ..policies import ApprovalRequest

        try:
            table = await self._table()
            bodies = [] if table is None else await table.others()
        except StreamglotError:
            return
        others = []
        for body in bodies:
            with suppress(msgspec.MsgspecError):  # another version wrote it
                others.append(msgspec.json.decode(body, type=ApprovalRequest))
        if others != self._others:
            self._others = others
            self._live.changed()

    # --- decisions

    async def decide(self, id: str, decision: Decision, key: str | None) -> bool:
        """Decides a question of any process. ``key`` is the caller's; None is the operator, who decides about all questions.

        Returns whether the stream has gone on; False if its process did not take the decision within ``TAKEN_SECONDS``. Raises a
        RequestError if there is no such question, if it was decided before, or if the decision does not fit the call.
        """
        from ..policies.approvals import already_decided, check_decision, not_open

        if not _is_id(id):
            raise not_open(id)
        own = next((request for request in self._own.open() if request.id == id), None)
        earlier = self._own.decided(id)
        approval = own or (earlier[0] if earlier is not None else None)
        if approval is not None and key not in (None, approval.key):
            raise not_open(id)
        if earlier is not None:
            raise already_decided(id, earlier[1])
        if own is not None:
            check_decision(own, decision)
        table = await self._table()
        found: FoundApproval | None = None
        if table is not None:
            try:
                await self._write(table)
                found = await self._decide_in(table, id, decision, key)
            except StreamglotError as error:
                undecided = id in self._unwritten or table.is_alone()  # no other process can have decided
                if error.code != STORE_UNAVAILABLE or own is None or not undecided:
                    raise
        if own is not None:
            if found is None or self._own.decided(id) is None:  # ``_step`` may have taken this decision from the table meanwhile
                self._own.decide(id, decision)
            return True
        if table is None or found is None:
            raise not_open(id)
        return await self._taken(table, id)

    async def _decide_in(self, table: StoredApprovals, id: str, decision: Decision, key: str | None) -> FoundApproval | None:
        """Writes the decision into the row of the question. Returns the row as it was; None if there is none."""
        from ..policies import ApprovalRequest, Decision
        from ..policies.approvals import already_decided, check_decision

        until = time.monotonic() + (0.0 if id in self._written else UNKNOWN_SECONDS)
        while (found := await table.find(id)) is None and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
        if found is None or key not in (None, found.caller):
            return None
        if found.decision is None:
            check_decision(msgspec.json.decode(found.body, type=ApprovalRequest), decision)
            if await table.decide(id, msgspec.json.encode(decision).decode()):
                return found
            found = await table.find(id)
            if found is None or found.decision is None:
                return None
        raise already_decided(id, msgspec.json.decode(found.decision, type=Decision))

    async def _taken(self, table: StoredApprovals, id: str) -> bool:
        """Waits until the process that holds the stream has taken the decision."""
        until = time.monotonic() + TAKEN_SECONDS
        while time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
            found = await table.find(id)
            if found is not None and not found.body:
                return True
            if found is None or not found.alive:
                message = "the request ended before the decision reached it; nothing was decided"
                raise RequestError(message, code="not_found", status=404)
        return False

    # --- suspended calls

    async def known(self, ids: Collection[str]) -> set[str]:
        """Which of these ids are those of suspended calls."""
        own = {id for id in ids if self._pool.is_suspended(id)}
        missing = [id for id in ids if id not in own and _is_id(id)][:MAX_ANSWERS]
        table = await self._table() if missing else None
        return own | (await table.suspended(missing)).keys() if table is not None else own

    async def resume(self, answers: Sequence[ApprovalAnswer], key: str) -> list[SuspendedCall]:
        """Gives back the suspended calls that these answers decide: all, or none if one of them is not valid."""
        from ..policies.approvals import not_suspended

        own, stored = self._own, await self._stored_calls(answers)
        calls: dict[str, SuspendedCall] = {}
        for answer in answers:
            if answer.id in calls:
                message = f"the suspended call {answer.id!r} has two decisions in one request; send one. Nothing was decided"
                raise RequestError(message)
            changed = answer.arguments if answer.approved else None
            if answer.id in stored:
                calls[answer.id] = _checked(stored[answer.id], key, changed)
            else:
                calls[answer.id] = own.peek(answer.id, key, changed)
        taken = [own.resume(id, key) for id in calls if id not in stored]
        try:
            table = await self._table() if stored else None
            if table is not None and not await table.take(stored.keys()):
                raise not_suspended(next(iter(stored)))
        except (StreamglotError, asyncio.CancelledError):
            for call in taken:
                own.put_back(call)
            raise
        return list(calls.values())

    async def _stored_calls(self, answers: Sequence[ApprovalAnswer]) -> dict[str, SuspendedCall]:
        from ..policies.approvals import ApprovalRequest, SuspendedCall

        if len(answers) > MAX_ANSWERS:
            raise RequestError(f"a request may decide {MAX_ANSWERS} calls, not {len(answers)}; nothing was decided")
        ids = {answer.id for answer in answers if not self._pool.is_suspended(answer.id) and _is_id(answer.id)}
        table = await self._table() if ids else None
        bodies = await table.suspended(ids) if table is not None else {}
        calls = {}
        for id, body in bodies.items():
            call = msgspec.json.decode(body, type=_StoredCall)
            request = msgspec.json.decode(call.request, type=ApprovalRequest)
            calls[id] = SuspendedCall(request, call.events, float("inf"))
        return calls

    # --- the table

    @property
    def shares(self) -> bool:
        """Whether other processes can see the questions of this one."""
        store = self._store()
        return bool(_folder) or (store is not None and store.settings.content)

    async def _table(self, create: bool = False) -> StoredApprovals | None:
        """The table, if there is one. ``create``: make the one in the supervisor's folder if it is not there yet."""
        store = self._store()
        if store is not None and store.settings.content:
            return store.approvals
        if self._folder_store is not None:
            return self._folder_store.approvals
        if not _folder or not (create or (Path(_folder) / FILE).exists()):
            return None
        async with self._opening:
            if self._folder_store is None:
                from ..store import Store, StoreSettings

                place = f"sqlite:///{Path(_folder) / FILE}"
                self._folder_store = await Store.open(StoreSettings(url=place), self._log)
        return self._folder_store.approvals

    async def run(self) -> None:
        """Writes questions, takes decisions and looks for the questions of others, until the gateway stops."""
        while self.shares:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._work.wait()
            self._work.clear()
            try:
                await self._step()
            except StreamglotError as error:
                if error.code != STORE_UNAVAILABLE:  # the state of the store reports that one
                    raise

    async def _step(self) -> None:
        table = await self._table(create=bool(self._unwritten))
        if table is None:
            return
        if table.generation != self._generation:
            self._generation = table.generation
            self._unwritten = {**self._written, **self._unwritten}
        await self._write(table)
        if self._written:
            for id, decision in await table.decisions():
                self._take(id, decision)
        if self._live.watchers("approvals") or self._live.watchers("overview"):
            await self.refresh()
        if time.monotonic() > self._expire_at:
            self._expire_at = time.monotonic() + EXPIRE_SECONDS
            await table.expire()

    def _take(self, id: str, decision: str) -> None:
        from ..policies import Decision

        with suppress(RequestError, msgspec.MsgspecError):  # it was decided here, or its time has passed
            self._own.decide(id, msgspec.json.decode(decision, type=Decision))

    async def _write(self, table: StoredApprovals) -> None:
        """Writes what has changed since the last time."""
        async with self._writing:
            opened, closed = list(self._unwritten.values()), list(self._closed)
            if not opened and not closed:
                return
            from ..store import ClosedApproval, OpenedApproval

            await table.write(
                [OpenedApproval(one.id, one.key, one.expires, one.body) for one in opened],
                [ClosedApproval(id, decision) for id, decision in closed],
            )
            del self._closed[: len(closed)]
            for one in opened:
                if self._unwritten.pop(one.id, None) is not None:
                    self._written[one.id] = one

    async def close(self) -> None:
        """Removes the questions of requests that the stop has ended. If that takes too long, other processes remove them."""
        with suppress(StreamglotError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                table = await self._table()
                if table is not None:
                    await self._write(table)
        if self._folder_store is not None:
            await self._folder_store.close()


def _is_id(text: str) -> bool:
    """Whether this may be an id of ours. Anything else that a client sends is not put into a query."""
    return len(text) <= MAX_ID_CHARS and text.isascii() and text.isalnum()


def _bare(decision: Decision) -> str:
    """A decision as the table keeps it."""
    return msgspec.json.encode(decision.outcome()).decode()


def _checked(call: SuspendedCall, key: str, changed: str | None) -> SuspendedCall:
    from ..policies.approvals import check_arguments, not_suspended

    if call.request.key != key:
        raise not_suspended(call.request.id)
    if changed is not None:
        check_arguments(call.request, changed)
    return call


REFUSED: Final = "[refused by the user]"


async def resumed_answer(approvals: SharedApprovals, answers: list[ApprovalAnswer], key: str) -> tuple[Response, frozenset[str]]:
    """The suspended calls with their outcomes as a model's answer, and the ids of the calls that were approved.

    If one of the answers is not valid, none of the calls is resumed.
    """
    parts: list[Part] = []
    approved: set[str] = set()
    for answer, suspended in zip(answers, await approvals.resume(answers, key), strict=True):
        if not answer.approved:
            parts.append(TextPart(answer.reason or REFUSED))
            continue
        for part in collect([StreamStart(), *suspended.events, StreamEnd("tool_calls")]).choices[0].parts:
            if isinstance(part, ToolCallPart):
                approved.add(part.call_id)
                if answer.arguments is not None:
                    part = structs.replace(part, arguments=answer.arguments, echo=None, native=None)
                parts.append(part)
    choice = ResponseChoice(0, parts, "tool_calls" if approved else "end")
    return Response(choices=[choice], usage=TokenCounts(0, 0)), frozenset(approved)  # no model is called
