"""Converts database rows to batches and files, and back."""

from __future__ import annotations

import uuid
from typing import Final

import msgspec

from ..store.database.sql import SqlRow
from .model import Batch, File, LineError, Row, Totals

_COLUMNS: Final = ("metadata", "errors", "times", "totals")
"""Columns that hold JSON."""
_errors: Final = msgspec.json.Decoder(list[LineError])
_totals: Final = msgspec.json.Decoder(Totals)


def new_id(prefix: str) -> str:
    """An id that cannot be guessed. A key cannot read the objects of another key, even if it knows their ids."""
    return f"{prefix}{uuid.uuid4().hex}"


def batch_of(row: Row) -> Batch:
    return Batch(
        id=row.id,
        owner=row.owner,
        api=row.api,
        endpoint=row.endpoint,
        input_file=row.input_file,
        status=row.status,
        closing=row.closing,
        completion_window=row.completion_window,
        metadata=msgspec.json.decode(row.metadata) if row.metadata else None,
        errors=_errors.decode(row.errors) if row.errors else [],
        output_file=row.output_file,
        error_file=row.error_file,
        model=row.model,
        total=row.total,
        priority=row.priority,
        created=row.created,
        expires=row.expires,
        results_expire=row.results_expire,
        times=msgspec.json.decode(row.times),
        totals=_totals.decode(row.totals) if row.totals else None,
        ended=row.ended,
    )


def batch_row(batch: Batch) -> SqlRow:
    row: SqlRow = {name: getattr(batch, name) for name in Batch.__struct_fields__}
    for name in _COLUMNS:
        row[name] = as_json(row[name]) if row[name] else None
    row["times"] = as_json(batch.times)
    return row


def file_of(row: Row) -> File:
    return File(**{name: getattr(row, name) for name in File.__struct_fields__})


def file_row(file: File) -> SqlRow:
    return {name: getattr(file, name) for name in File.__struct_fields__}


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
