"""The base of all policies, its options, and the conditions under which a policy applies.

A policy is its configuration: a frozen struct whose fields are its options. One object serves all streams, so it has no state
and its options are deeply frozen; ``new_state`` makes what a policy remembers during one answer. Two methods judge:

    judge(piece, context)            at once: a verdict, or DEFER
    decide(piece, context, engine)   awaited for a piece that was deferred: may ask a model, a service, a person

A policy in ten lines is in docs/policies.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

from msgspec import Struct, structs

from ..events import StreamEnd, StreamError
from ..messages import Request, Response
from ..stages.stage import ExchangeContext
from ..text import matches_tool
from .needs import Needs
from .pieces import Direction, Piece
from .verdicts import DEFER, FORWARD, Defer, Verdict


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """Lists, sets and dictionaries among the values become immutable, so declare fields as ``Sequence`` and ``Mapping``."""

    def __post_init__(self) -> None:
        for field in structs.fields(self):
            value = getattr(self, field.name)
            frozen = deep_frozen(value)
            if frozen is not value:
                structs.force_setattr(self, field.name, frozen)


def deep_frozen(value: object) -> object:
    """The value with lists as tuples, sets as frozen sets and dictionaries as read-only views; itself if it is immutable."""
    match value:
        case dict():
            return MappingProxyType({key: deep_frozen(inner) for key, inner in value.items()})
        case list():
            return tuple(deep_frozen(inner) for inner in value)
        case tuple() if any(deep_frozen(inner) is not inner for inner in value):
            return tuple(deep_frozen(inner) for inner in value)
        case set():
            return frozenset(value)
        case _:
            return value


class When(Options, frozen=True, kw_only=True):
    """All conditions that are given must hold. ``endpoints`` are the dialects of clients. With ``tools`` the policy sees only
    the calls, results and definitions of these tools."""

    models: Sequence[str] = ()
    keys: Sequence[str] = ()
    endpoints: Sequence[str] = ()
    tools: Sequence[str] = ()
    directions: Sequence[Direction] = ()

    def allows_exchange(self, context: ExchangeContext) -> bool:
        given = ((self.models, context.model), (self.keys, context.key), (self.endpoints, context.endpoint))
        return all(not globs or any_matches(globs, value) for globs, value in given)

    def allows_direction(self, direction: Direction) -> bool:
        return not self.directions or direction in self.directions

    def allows_piece(self, piece: Piece) -> bool:
        return not self.tools or (
            piece.kind in ("tool_call", "tool_result", "tool_definition") and matches_tool(piece.name, self.tools)
        )


def any_matches(globs: Sequence[str], value: str) -> bool:
    """Whether one of the globs matches the value. Upper and lower case differ."""
    return any(fnmatchcase(value, glob) for glob in globs)


class Engine(Protocol):
    """The functions of the engine for a policy that must wait."""

    async def complete(self, request: Request) -> Response:
        """Asks a model. The cost belongs to the turn that is judged."""
        ...

    def clock(self) -> float: ...


class JudgeContext(Struct):
    """The context of a piece. ``state`` is what ``new_state`` returned, for this choice of this answer;
    ``compiled`` is what ``compile`` returned, once. ``exchange.state`` lives as long as the exchange, over all its model
    turns."""

    exchange: ExchangeContext
    request: Request | None = None
    choice: int = 0
    state: Any = None  # Any: the return value of ``new_state``
    compiled: Any = None  # Any: whatever ``compile`` of the policy returns


class Policy(Options, frozen=True, kw_only=True):
    """Options that every policy has. ``when``: the exchanges and tools it applies to. ``on_error``: what happens to a piece
    when judging it fails, takes longer than ``seconds``, or too many judgements are in progress. ``store_original``: whether the
    record of a verdict has the original text."""

    when: When | None = None
    on_error: Literal["refuse", "forward"] = "refuse"
    seconds: float = 30.0
    store_original: bool = True

    use: ClassVar[str] = ""
    """The name in configuration, of a policy that has one."""
    nested: ClassVar[tuple[str, ...]] = ()
    """The options that are policies themselves, or lists of them."""
    title: ClassVar[str] = ""
    """One line for `policies list`."""
    version: ClassVar[str] = "1"
    """Stored with each verdict. Raise it when the same options judge differently than before."""

    @property
    def name(self) -> str:
        """The name of this policy in configuration and records."""
        return type(self).use or f"{type(self).__module__}:{type(self).__qualname__}"

    @property
    def deadline_seconds(self) -> float:
        """How long a verdict may take."""
        return self.seconds

    @property
    def shadow(self) -> bool:
        """Whether the policy sees everything and changes nothing."""
        return False

    @property
    def recorded(self) -> bool:
        """Whether its verdicts are recorded."""
        return True

    def check(self) -> None:
        """Raises ConfigError for options that cannot be used. Called once, when the policy is loaded."""

    def needs(self) -> Needs:
        """The units that the policy must see. Called once, when the policy is loaded."""
        raise NotImplementedError

    def compile(self) -> object:
        """Computes a value from the options once, for ``context.compiled``. The value is shared and must not change."""
        return None

    def members(self) -> Sequence[Policy]:
        """The policies that this one stands for, in order; itself, unless it is a composition."""
        return (self,)

    def new_state(self) -> object:
        """The state of the policy during one answer."""
        return None

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict | Defer:
        """The verdict on a piece, or DEFER."""
        return DEFER if self.waits else FORWARD

    async def decide(self, piece: Piece, context: JudgeContext, engine: Engine) -> Verdict:
        """The verdict on a piece that was deferred."""
        raise NotImplementedError

    def ended(self, end: StreamEnd | StreamError, context: JudgeContext) -> None:
        """Called with the last event of a choice. Choice 0 ends last, with the stream. A policy that overrides this sees answers
        without a need of its own."""

    def request(self, request: Request, context: JudgeContext) -> Request:
        """Changes the request as a whole, before its parts are judged."""
        return request

    @property
    def waits(self) -> bool:
        """Whether judging may take time: such a policy has a ``decide`` of its own."""
        return type(self).decide is not Policy.decide
