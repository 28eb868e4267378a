"""Keys of callers, kept by their SHA-256, with their limits and budgets. A key is shown once, when it is made."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from sqlalchemy import Row, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from ..errors import RequestError
from . import schema
from .database import Database
from .rows import clean

PREFIX: Final = "sg-"
SHOWN_CHARS: Final = 8


class StoredKey(Struct, kw_only=True):
    """``name`` tells callers apart and is never given again. A limit of 0 is none. A budget is what the key may cost, or how
    many tokens it may use, in the last ``budget_seconds`` (ever, if that is None)."""

    id: str
    name: str
    hash: str = ""
    shown: str = ""
    models: list[str] = field(default_factory=lambda: ["*"])
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


class StoredKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, name: str, **limits: Any) -> tuple[StoredKey, str]:
        """A new key, and its secret: nobody can see that again."""
        secret = PREFIX + secrets.token_urlsafe(32)
        key = StoredKey(
            id=secrets.token_hex(8),
            name=clean(name),
            hash=hashlib.sha256(secret.encode()).hexdigest(),
            shown=secret[:SHOWN_CHARS],
            created=time.time(),
            **limits,
        )
        row = {**msgspec.structs.asdict(key), "models": msgspec.json.encode(key.models).decode()}
        try:
            async with self._database.writing() as connection:
                await connection.execute(insert(schema.keys), row)
        except IntegrityError:
            raise RequestError(f"there is, or was, a key with the name {name!r}; choose another one") from None
        return key, secret

    async def all(self, *, revoked: bool = False) -> list[StoredKey]:
        """All that are valid, and on demand those that were."""
        table = schema.keys
        question = select(table).order_by(table.c.created)
        return [
            _key(row) for row in await self._database.fetch(question if revoked else question.where(table.c.revoked.is_(None)))
        ]

    async def find(self, secret: str) -> StoredKey | None:
        """The valid key that this secret is."""
        table = schema.keys
        mark = hashlib.sha256(secret.encode()).hexdigest()
        rows = await self._database.fetch(select(table).where(table.c.hash == mark, table.c.revoked.is_(None)))
        return _key(rows[0]) if rows else None

    async def revoke(self, name: str) -> bool:
        """From now on it opens nothing. What was done with it stays."""
        table = schema.keys
        async with self._database.writing() as connection:
            done = await connection.execute(
                update(table).where(table.c.name == name, table.c.revoked.is_(None)).values(revoked=time.time())
            )
        return done.rowcount > 0

    async def spent(self, key: StoredKey, now: float | None = None) -> Spent:
        """What was used of its budget."""
        turns, endings = schema.turns, schema.endings
        tokens = func.coalesce(endings.c.input_tokens, 0) + func.coalesce(endings.c.output_tokens, 0)
        question = (
            select(
                func.count(turns.c.id).label("turns"),
                func.coalesce(func.sum(tokens), 0).label("tokens"),
                func.coalesce(func.sum(endings.c.cost), 0.0).label("cost"),
            )
            .join(endings, endings.c.turn_id == turns.c.id)
            .where(turns.c.caller == key.name)
        )
        if key.budget_seconds is not None:
            question = question.where(turns.c.started >= (now or time.time()) - key.budget_seconds)
        row = (await self._database.fetch(question))[0]
        return Spent(turns=row.turns, tokens=int(row.tokens), cost=float(row.cost))

    async def over_budget(self, key: StoredKey, now: float | None = None) -> bool:
        if key.budget_cost is None and key.budget_tokens is None:
            return False
        spent = await self.spent(key, now)
        over_cost = key.budget_cost is not None and spent.cost >= key.budget_cost
        return over_cost or (key.budget_tokens is not None and spent.tokens >= key.budget_tokens)


def _key(row: Row[Any]) -> StoredKey:
    return StoredKey(**{**row._mapping, "models": msgspec.json.decode(row.models)})
