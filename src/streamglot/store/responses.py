"""Responses that a client may retrieve or continue by their id. A client can withdraw one; after that it is gone for the client,
but the turn stays in the log."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from .database import Database, StoreUnavailable
from .database.sql import DatabaseRow, insert_row
from .queries import Queries, has_response_id
from .query_results import TurnDetail
from .recent import Recent
from .writer import CLOSE_SECONDS, COMMIT_SECONDS, Writer

OTHER_PROCESS_SECONDS: Final = COMMIT_SECONDS + 0.1
"""Seconds to wait for a turn of another process. After the commit interval it must be in the database."""
POLL_SECONDS: Final = 0.05
RETRIEVABLE: Final = (
    "(turns.retrievable AND (SELECT withdrawals.at FROM withdrawals WHERE withdrawals.turn_id = turns.id) IS NULL)"
)
"""Not with EXISTS, for which PostgreSQL may read all withdrawals once."""
_WITHDRAW: Final = insert_row("withdrawals", ("turn_id", "at"), "ON CONFLICT DO NOTHING")


class Responses:
    def __init__(self, database: Database, queries: Queries, recent: Recent, writer: Writer) -> None:
        self._database = database
        self._queries = queries
        self._recent = recent
        self._writer = writer

    async def find(self, response_id: str, caller: str | None) -> TurnDetail | None:
        """The turn with this response, running or ended. A client may know of the end before the database does, so an ended
        stream waits for the commit; a background response does not."""
        row = await self._row(response_id, caller)
        turn = await self._queries.turn(row.id, caller) if row is not None else None
        if turn is None or turn.client_options.get("background") or self._recent.knows(response_id):
            return turn
        until = time.monotonic() + OTHER_PROCESS_SECONDS
        while turn is not None and not turn.ending and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
            turn = await self._queries.turn(turn.id, caller)
        return turn

    async def withdraw(self, response_id: str, caller: str | None) -> bool:
        """Makes a response unavailable by its id. Returns False if it was not available."""
        row = await self._row(response_id, caller)
        if row is None:
            return False
        await self._database.execute(_WITHDRAW, turn_id=row.id, at=time.time())
        self._recent.withdraw(row.id)
        return True

    async def _row(self, response_id: str, caller: str | None) -> DatabaseRow | None:
        """The row of the turn. It may still be on its way to the database, from this process or from another."""
        question = f"SELECT turns.id, {RETRIEVABLE} AS retrievable FROM turns WHERE {has_response_id(caller)}"
        values = {"response_id": response_id, "caller": caller}
        ours = self._recent.knows(response_id)
        if ours:
            await settled(self._writer)
        rows = await self._database.fetch(question, **values)
        if not rows and not ours:
            await asyncio.sleep(OTHER_PROCESS_SECONDS)
            rows = await self._database.fetch(question, **values)
        return rows[0] if rows and rows[0].retrievable else None


async def settled(writer: Writer) -> None:
    """Waits until everything that was queued before is in the database."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.flush()
    except TimeoutError:
        raise StoreUnavailable("the turn is not in the database yet; try again") from None
