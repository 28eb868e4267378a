"""What was said, kept: sessions, turns, messages, keys, and streams that can be resumed."""

from .buffer import Chunk, DatabaseBuffer, StreamBuffer
from .conversation import Conversation, conversation
from .database import Database, StoreUnavailable
from .echoes import restore_echoes
from .export import export_jsonl, export_markdown, markdown, summary_line
from .keys import Spent, StoredKey, StoredKeys
from .place import data_directory, default_url
from .prune import Pruned, prune
from .queries import Filter, Queries, RawFrame, SessionSummary, TurnDetail, TurnSummary
from .sessions import Wanted, wanted
from .store import Store, StoreSettings
from .turn import ENDINGS, Finished, Session, Started, Turn, is_probe
from .valkey_buffer import ValkeyBuffer
from .writer import Report

__all__ = [
    "ENDINGS",
    "Chunk",
    "Conversation",
    "Database",
    "DatabaseBuffer",
    "Filter",
    "Finished",
    "Pruned",
    "Queries",
    "RawFrame",
    "Report",
    "Session",
    "SessionSummary",
    "Spent",
    "Started",
    "Store",
    "StoreSettings",
    "StoreUnavailable",
    "StoredKey",
    "StoredKeys",
    "StreamBuffer",
    "Turn",
    "TurnDetail",
    "TurnSummary",
    "ValkeyBuffer",
    "Wanted",
    "conversation",
    "data_directory",
    "default_url",
    "export_jsonl",
    "export_markdown",
    "is_probe",
    "markdown",
    "prune",
    "restore_echoes",
    "summary_line",
    "wanted",
]
