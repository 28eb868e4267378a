"""The store: sessions, turns, messages, API keys, and streams that can be resumed.

Each process has one ``Store``, on SQLite or PostgreSQL. A stream never waits for the store, and the store never raises into a
stream: calls queue their data, a writer commits the queue every fifth of a second, and data that cannot be stored is counted.

    store = await Store.open(StoreSettings(url=..., content=..., raw=...), log)        # when the gateway starts
    hints = session_hints(caller, request, body, headers)                               # the session that the client names
    session = await store.find_session(hints, request)                                  # waits at most one second
    request.messages[:0] = await store.history(session)                                 # only for a previous_response_id
    answers = await store.answers(session)                                              # once, before the first upstream request

    turn = store.start(session, Started(caller=..., request=request, dialect=..., model=..., probe=is_probe(request)))
    asked = restore_echoes(request, answers, provider=maker_of(upstream))               # for each upstream that is tried
    turn.frame("up", seconds, chunk)                                                    # each read, if ``raw`` is on
    turn.finish(Finished(ending=..., response=collected, upstream=..., upstream_request=asked, ...))   # always, in a finally
    await store.close()                                                                 # when the gateway stops: commits the
    queue

``caller`` separates callers: it is the name of a key, or a hash of the credential that the client presented. Every query takes
it; ``None`` stands for the operator, who sees everything. A request must not be changed after it was passed to ``start``. A turn
that was never finished is ended as ``interrupted`` once its process is gone.

    store.buffer.open(id, caller, on_stop); .append(id, number, data); .end(id)         # the producer; none of these waits
    async for chunk in store.buffer.read(id, after, caller): ...                        # any worker, live or after the end
    await store.buffer.stop(id, caller)                                                 # any worker; calls on_stop in the
    producer

``store.responses`` finds stored responses by their id, ``store.queries`` lists, searches and shows turns, ``store.keys`` manages
the callers' keys. Only ``prune_turns`` deletes turns.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .approvals import ClosedApproval, FoundApproval, OpenedApproval, StoredApprovals
    from .conversation import Conversation, hash_conversation
    from .database import Database, StoreUnavailable
    from .database.paths import data_directory, default_url
    from .export import detail_line, export_jsonl, export_markdown, markdown, summary_line
    from .keys import BudgetExceeded, Spent, StoredKey, StoredKeys
    from .provider_state import restore_echoes
    from .queries import Queries
    from .retention import Pruned, prune_turns
    from .search import Filter, RawFrame, SessionSummary, TurnDetail, TurnSummary
    from .sessions import Responses, SessionHints, chat_session, session_hints
    from .store import Store, StoreSettings
    from .streams import Chunk, StreamBuffer
    from .streams.database import DatabaseBuffer
    from .streams.valkey import ValkeyBuffer
    from .turns import ENDINGS, Finished, Session, Started, Turn, is_probe
    from .writer import Report

_NAMES = {
    "approvals": "ClosedApproval FoundApproval OpenedApproval StoredApprovals",
    "streams": "Chunk StreamBuffer",
    "conversation": "Conversation hash_conversation",
    "database": "Database StoreUnavailable",
    "streams.database": "DatabaseBuffer",
    "provider_state": "restore_echoes",
    "export": "detail_line export_jsonl export_markdown markdown summary_line",
    "keys": "BudgetExceeded Spent StoredKey StoredKeys",
    "database.paths": "data_directory default_url",
    "retention": "Pruned prune_turns",
    "queries": "Queries",
    "search": "Filter RawFrame SessionSummary TurnDetail TurnSummary",
    "sessions": "Responses SessionHints chat_session session_hints",
    "store": "Store StoreSettings",
    "turns": "ENDINGS Finished Session Started Turn is_probe",
    "streams.valkey": "ValkeyBuffer",
    "writer": "Report",
}
"""The names of each module."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Imports a module when one of its names is first used: programs that store nothing use parts of the store."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


__all__ = [
    "ENDINGS",
    "BudgetExceeded",
    "Chunk",
    "ClosedApproval",
    "Conversation",
    "Database",
    "DatabaseBuffer",
    "Filter",
    "Finished",
    "FoundApproval",
    "OpenedApproval",
    "Pruned",
    "Queries",
    "RawFrame",
    "Report",
    "Responses",
    "Session",
    "SessionHints",
    "SessionSummary",
    "Spent",
    "Started",
    "Store",
    "StoreSettings",
    "StoreUnavailable",
    "StoredApprovals",
    "StoredKey",
    "StoredKeys",
    "StreamBuffer",
    "Turn",
    "TurnDetail",
    "TurnSummary",
    "ValkeyBuffer",
    "chat_session",
    "data_directory",
    "default_url",
    "detail_line",
    "export_jsonl",
    "export_markdown",
    "hash_conversation",
    "is_probe",
    "markdown",
    "prune_turns",
    "restore_echoes",
    "session_hints",
    "summary_line",
]
