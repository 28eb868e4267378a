"""Decisions of people about held pieces.

``Approvals`` is the registry of one process. It knows two kinds of questions:

- An open question (``ask``) holds its stream. The API, the command line and the page list open questions and decide them by their
  id; then the policy that asked is resumed.
- A suspended call (``suspend``) ended its stream: the client asks its own user. The next request of the client brings the
  decision, and ``resume`` gives the call back.

An ``ApprovalSharing`` shows both kinds to other processes, so that a decision may reach any of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import MsgspecError, Struct, json, structs

from ..errors import LimitExceeded, RequestError, excerpt
from ..events import BareEvent
from .pieces import Kind

MAX_OPEN: Final = 10_000
"""Questions to people that may be open in one process: more than people can answer, and a bound on what waiting exchanges hold.
As many calls may be suspended; then the oldest is given up."""
MAX_DECIDED: Final = 1_000
"""Decided questions that are remembered, so that a second decision is refused: more than people decide in an hour."""


BY_CHARS: Final = 100
"""Stored characters of the name of the person who decided. The caller chooses the name."""


class ApprovalRequest(Struct, frozen=True, omit_defaults=True):
    """A question to a person. ``id`` is given by the registry. ``seconds`` is the time until the piece is refused."""

    request_id: str
    policy: str
    message: str
    kind: Kind
    tool: str = ""
    call_id: str = ""
    text: str = ""
    model: str = ""
    key: str = ""
    seconds: float = 0.0
    id: str = ""


class Decision(Struct, frozen=True, omit_defaults=True):
    """The decision of a person. ``text``: changed arguments of an approved call. ``message``: sent to the client in place of a
    refused piece."""

    approved: bool
    message: str = ""
    text: str | None = None
    by: str = ""

    def outcome(self) -> Decision:
        """The decision without its contents, for those who decide later."""
        return Decision(self.approved, by=self.by[:BY_CHARS])


class SuspendedCall(Struct, frozen=True):
    """A call whose stream has ended. ``events`` are the events of its block. ``until`` is the time of the event loop at which the
    question expires."""

    request: ApprovalRequest
    events: Sequence[BareEvent]
    until: float


class ApprovalSharing(Protocol):
    """Shows the questions of this process to other processes."""

    def opened(self, request: ApprovalRequest) -> None:
        """A question is open. Does not wait."""

    def closed(self, request: ApprovalRequest, decision: Decision | None) -> None:
        """A question was decided, or was given up without a decision. Does not wait."""

    async def suspended(self, call: SuspendedCall) -> bool:
        """Stores a suspended call for all processes. Returns False if only this process has it."""
        ...


class Approvals:
    """``new_id`` makes the ids of questions. ``notify`` is called with each open question, to notify people. ``sharing`` shows the
    questions to other processes."""

    def __init__(
        self,
        new_id: Callable[[], str],
        notify: Callable[[ApprovalRequest], None] | None = None,
        sharing: ApprovalSharing | None = None,
    ) -> None:
        self._new_id = new_id
        self._notify = notify
        self._sharing = sharing
        self._open: dict[str, tuple[ApprovalRequest, asyncio.Future[Decision]]] = {}
        self._decided: dict[str, tuple[ApprovalRequest, Decision]] = {}
        self._suspended: dict[str, SuspendedCall] = {}

    def open(self) -> list[ApprovalRequest]:
        """The open questions, the oldest first."""
        return [request for request, decided in self._open.values() if not decided.done()]

    def decided(self, id: str) -> tuple[ApprovalRequest, Decision] | None:
        """A question that was decided, for the latest ``MAX_DECIDED``."""
        return self._decided.get(id)

    async def ask(self, request: ApprovalRequest) -> Decision:
        """Waits for a decision. The caller sets the deadline and cancels when it passes."""
        if len(self._open) >= MAX_OPEN:
            raise LimitExceeded(f"{MAX_OPEN} approvals are open already; decide some of them", code="limit_open_approvals")
        request = structs.replace(request, id=self._new_id())
        decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._open[request.id] = request, decided
        try:
            if self._sharing is not None:
                self._sharing.opened(request)
            if self._notify is not None:
                self._notify(request)
            return await decided
        finally:
            del self._open[request.id]
            if self._sharing is not None:
                taken = decided.done() and not decided.cancelled()
                self._sharing.closed(request, decided.result() if taken else None)

    def decide(self, id: str, decision: Decision) -> None:
        """Resumes the policy that asked. Must be called in the event loop of ``ask``. A question is decided once: the first
        decision counts."""
        if (earlier := self._decided.get(id)) is not None:
            raise already_decided(id, earlier[1])
        entry = self._open.get(id)
        if entry is None or entry[1].done():
            raise not_open(id)
        check_decision(entry[0], decision)
        entry[1].set_result(decision)
        if len(self._decided) >= MAX_DECIDED:
            del self._decided[next(iter(self._decided))]
        bare = structs.replace(entry[0], text="", message="")  # without the contents of the call
        self._decided[id] = bare, decision.outcome()

    def suspend(self, request: ApprovalRequest, events: Sequence[BareEvent]) -> SuspendedCall:
        """Keeps a call until the client's next request decides about it, at most ``request.seconds`` long."""
        now = asyncio.get_running_loop().time()
        for id in [id for id, call in self._suspended.items() if call.until <= now]:
            del self._suspended[id]
        if len(self._suspended) >= MAX_OPEN:
            del self._suspended[next(iter(self._suspended))]
        request = structs.replace(request, id=self._new_id())
        call = self._suspended[request.id] = SuspendedCall(request, events, now + request.seconds)
        return call

    async def share(self, call: SuspendedCall) -> None:
        """Moves a suspended call to the storage that all processes share, if there is one."""
        if self._sharing is not None and await self._sharing.suspended(call):
            self._suspended.pop(call.request.id, None)

    def is_suspended(self, id: str) -> bool:
        """Whether this is the id of a suspended call, even of one whose time has passed."""
        return id in self._suspended

    def resume(self, id: str, key: str, arguments: str | None = None) -> SuspendedCall:
        """Gives back a suspended call, once, to the caller whose call it is. ``arguments`` are to replace its own."""
        call = self.peek(id, key, arguments)
        del self._suspended[id]
        return call

    def peek(self, id: str, key: str, arguments: str | None = None) -> SuspendedCall:
        """The call that ``resume`` would return, without removing it."""
        call = self._suspended.get(id)
        if call is None or call.request.key != key or call.until <= asyncio.get_running_loop().time():
            raise not_suspended(id)
        if arguments is not None:
            check_arguments(call.request, arguments)
        return call

    def put_back(self, call: SuspendedCall) -> None:
        """Puts back a call that ``resume`` returned and that could not be used."""
        self._suspended[call.request.id] = call


def not_open(id: str) -> RequestError:
    message = f"there is no open approval {excerpt(id)}: it was decided or has expired; GET /approvals lists the open ones"
    return RequestError(message, code="not_found", status=404)


def not_suspended(id: str) -> RequestError:
    message = f"there is no suspended call {excerpt(id)}: it was decided, or its time has passed"
    return RequestError(message, code="not_found", status=404)


def already_decided(id: str, earlier: Decision) -> RequestError:
    how, who = "approved" if earlier.approved else "denied", f" by {excerpt(earlier.by)}" if earlier.by else ""
    message = f"the approval {excerpt(id)} was already {how}{who}, and the first decision counts; nothing was changed"
    return RequestError(message, code="already_decided", status=409)


def check_decision(request: ApprovalRequest, decision: Decision) -> None:
    """Raises a RequestError if the changed arguments of an approved call cannot be its arguments."""
    if decision.approved and decision.text is not None:
        check_arguments(request, decision.text)


def check_arguments(request: ApprovalRequest, changed: str) -> None:
    """Refuses changed arguments that are not a JSON object if those of the call are one: the call would break, and nobody could
    decide about it again. Other calls take free text."""
    if request.kind == "tool_call" and _is_object(request.text) and not _is_object(changed):
        raise RequestError(
            f"the changed arguments of {request.tool!r} must be a JSON object, not {excerpt(changed)}; nothing was decided",
            detail={"param": "text"},
        )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.decode(text), dict)
    except (MsgspecError, UnicodeError, RecursionError):
        return False
