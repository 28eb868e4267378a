"""The callers' API keys with their limits and budgets. Only the SHA-256 of a key is stored; the key is shown once, when it is
made."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from sqlalchemy import BigInteger, ColumnElement, and_, cast, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from ..callers import MAX_LIMIT, fault_of_key_name
from ..errors import RequestError, excerpt
from . import schema
from .database import Database, Watch
from .key_marker import KeyMarker
from .sql_types import DatabaseRow, Query, SqlValue

PREFIX: Final = "sg-"
SHOWN_CHARS: Final = 8


class StoredKey(Struct, kw_only=True):
    """``name`` identifies the caller and is never reused. A limit of 0 means no limit. A budget is what the key may cost, or how
    many tokens it may use, in the last ``budget_seconds`` (in total, if that is None). ``tools`` are globs of the gateway's tools
    that the key may use; None leaves that to the configuration."""

    id: str
    name: str
    hash: str = ""
    shown: str = ""
    models: list[str] = field(default_factory=lambda: ["*"])
    tools: list[str] | None = None
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent: int = 0
    budget_cost: float | None = None
    budget_tokens: int | None = None
    budget_seconds: float | None = None
    created: float = 0.0
    revoked: float | None = None


class Spent(Struct, kw_only=True):
    turns: int
    tokens: int
    cost: float


class BudgetExceeded(Struct, kw_only=True):
    """A key that has used up its budget. It may be used again at ``renews``, or never."""

    key: StoredKey
    spent: Spent
    renews: float | None


class StoredKeys:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._watch = Watch(database, select(schema.keys).order_by(schema.keys.c.created))
        self._marker = KeyMarker(database.file, database.shown)

    def had_keys(self) -> bool:
        """Whether this store ever had keys, according to the marker file beside it."""
        return self._marker.is_set()

    async def add(self, name: str, **limits: Any) -> tuple[StoredKey, str]:  # Any: fields of a StoredKey
        """Adds a key. Returns it with its secret, which cannot be read again."""
        fault = fault_of_key_name(name)
        if fault:
            raise RequestError(fault)
        secret = PREFIX + secrets.token_urlsafe(32)
        key = StoredKey(
            id=secrets.token_hex(8),
            name=name,
            hash=hashlib.sha256(secret.encode()).hexdigest(),
            shown=secret[:SHOWN_CHARS],
            created=time.time(),
            **limits,
        )
        _check_limits(key)
        row = {**msgspec.structs.asdict(key), "models": _text(key.models)}
        row["tools"] = None if key.tools is None else _text(key.tools)
        try:
            await self._database.execute(insert(schema.keys), row)
        except IntegrityError:
            raise RequestError(f"a key named {name!r} exists or existed; choose another name") from None
        self._watch.forget()
        self._marker.set()
        return key, secret

    async def all(self, *, revoked: bool = False) -> list[StoredKey]:
        """All valid keys, and with ``revoked`` also those that were revoked."""
        table = schema.keys
        question = select(table).order_by(table.c.created)
        return [
            _key(row) for row in await self._database.fetch(question if revoked else question.where(table.c.revoked.is_(None)))
        ]

    async def changes(self) -> list[StoredKey] | None:
        """All keys, valid or revoked; None if nothing changed since the last call."""
        rows = await self._watch.look()
        if rows:
            self._marker.set()
        return None if rows is None else [_key(row) for row in rows]

    async def find(self, secret: str) -> StoredKey | None:
        """The valid key with this secret."""
        table = schema.keys
        mark = hashlib.sha256(secret.encode()).hexdigest()
        rows = await self._database.fetch(select(table).where(table.c.hash == mark, table.c.revoked.is_(None)))
        return _key(rows[0]) if rows else None

    async def revoke(self, name: str) -> bool:
        """Makes the key invalid. Its turns stay."""
        table = schema.keys
        valid = update(table).where(table.c.name == name, table.c.revoked.is_(None))
        found = await self._database.execute(valid.values(revoked=time.time()))
        self._watch.forget()
        return found > 0

    async def spent(self, key: StoredKey, now: float | None = None) -> Spent:
        """The used part of the key's budget."""
        row = (await self._database.fetch(_used(*_SUMS, now=now).where(schema.keys.c.id == key.id)))[0]
        return _spent(row)

    async def charged(self, which: ColumnElement[bool]) -> list[str]:
        """The names of the valid keys whose budgets these turns count for."""
        keys = schema.keys
        counts = or_(and_(keys.c.budget_cost.is_not(None), _COST > 0), and_(keys.c.budget_tokens.is_not(None), _TOKENS > 0))
        question = _used(keys.c.name, now=None).where(keys.c.revoked.is_(None), counts, which).distinct()
        return [row.name for row in await self._database.fetch(question.order_by(keys.c.name))]

    async def balances(self, now: float | None = None) -> list[tuple[StoredKey, Spent]]:
        """The valid keys that have a budget, with what was used of it."""
        keys = schema.keys
        budgeted = or_(keys.c.budget_cost.is_not(None), keys.c.budget_tokens.is_not(None))
        question = (
            _used(*keys.c, *_SUMS, now=now, all_keys=True)
            .where(keys.c.revoked.is_(None), budgeted)
            .group_by(*keys.c)
            .order_by(keys.c.created)
        )
        return [(_key(row), _spent(row)) for row in await self._database.fetch(question)]

    async def budget_exceeded(self, now: float | None = None) -> list[BudgetExceeded]:
        """The valid keys that have used up their budget."""
        return [
            BudgetExceeded(key=key, spent=spent, renews=await self._renews(key, spent, now))
            for key, spent in await self.balances(now)
            if (key.budget_cost is not None and spent.cost >= key.budget_cost)
            or (key.budget_tokens is not None and spent.tokens >= key.budget_tokens)
        ]

    async def _renews(self, key: StoredKey, spent: Spent, now: float | None) -> float | None:
        """When enough of the oldest turns leave the period for the use to fall below the budget."""
        at = now or time.time()
        for amount, used, limit in ((_COST, spent.cost, key.budget_cost), (_TOKENS, spent.tokens, key.budget_tokens)):
            if limit is None or used < limit:
                continue
            turns = schema.turns
            gone = func.sum(amount).over(order_by=(turns.c.started, turns.c.id)).label("gone")
            each = _used(turns.c.started, gone, now=now).where(schema.keys.c.id == key.id).subquery()
            rows = await self._database.fetch(select(func.min(each.c.started)).where(used - each.c.gone < limit))
            if key.budget_seconds is None or rows[0][0] is None:
                return None
            at = max(at, rows[0][0] + key.budget_seconds)
        return at


_TOKENS: Final = func.coalesce(cast(schema.endings.c.input_tokens, BigInteger), 0) + func.coalesce(
    schema.endings.c.output_tokens, 0
)
"""The sum is a BigInteger, because two values of the column may exceed its type."""
_COST: Final = func.coalesce(schema.endings.c.cost, 0.0)
_SUMS: Final = (
    func.count(schema.endings.c.turn_id).label("turns"),
    func.coalesce(func.sum(_TOKENS), 0).label("tokens"),
    func.coalesce(func.sum(_COST), 0.0).label("cost"),
)


def _used(*columns: ColumnElement[SqlValue], now: float | None, all_keys: bool = False) -> Query:
    """Selects these columns of the turns that count for the budget of their key. ``all_keys`` includes keys without such
    turns."""
    keys, turns, endings = schema.keys, schema.turns, schema.endings
    at = now or time.time()
    counted = and_(turns.c.caller == keys.c.name, turns.c.started >= at - func.coalesce(keys.c.budget_seconds, at))
    return (
        select(*columns)
        .select_from(keys)
        .join(turns, counted, isouter=all_keys)
        .join(endings, endings.c.turn_id == turns.c.id, isouter=all_keys)
    )


def _check_limits(key: StoredKey) -> None:
    """Refuses limits that make no sense or do not fit the columns, before the database sees them."""
    for what, patterns in (("models", key.models), ("tools", key.tools or [])):
        for pattern in patterns:
            if not pattern or not pattern.isprintable():
                raise RequestError(f"a pattern of {what} must consist of visible characters; {excerpt(pattern)} does not")
    for name in ("requests_per_minute", "tokens_per_minute", "concurrent", "budget_tokens"):
        number = getattr(key, name)
        if number is not None and not 0 <= number <= MAX_LIMIT:
            raise RequestError(f"{name} must be a number from 0 to {MAX_LIMIT}, not {excerpt(number)}; leave it out for no limit")
    if key.budget_cost is not None and not (math.isfinite(key.budget_cost) and key.budget_cost >= 0):
        raise RequestError(f"a budget must be an amount of money, not {key.budget_cost}; leave it out for no limit")
    if key.budget_seconds is None:
        return
    if not (math.isfinite(key.budget_seconds) and key.budget_seconds > 0):
        raise RequestError(
            f"the period of a budget must be longer than {key.budget_seconds:g} seconds; leave it out if the budget never renews"
        )
    if key.budget_cost is None and key.budget_tokens is None:
        raise RequestError("a budget period was given without a budget: set what the key may cost, or how many tokens it may use")


def _spent(row: DatabaseRow) -> Spent:
    return Spent(turns=row.turns, tokens=int(row.tokens), cost=float(row.cost))


def _key(row: DatabaseRow) -> StoredKey:
    known = {name: row._mapping[name] for name in StoredKey.__struct_fields__}
    tools = None if row.tools is None else msgspec.json.decode(row.tools)
    return StoredKey(**{**known, "models": msgspec.json.decode(row.models), "tools": tools})


def _text(patterns: list[str]) -> str:
    return msgspec.json.encode(patterns).decode()
