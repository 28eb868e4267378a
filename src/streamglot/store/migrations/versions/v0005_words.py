"""Splits the texts into words independently of the database, and rewrites the existing texts.

The indexes are rebuilt. SQLite's treats marks as parts of words and is filled when the process is idle. PostgreSQL's indexes the
words themselves instead of its own parse of them, which would split ``4e5b`` in two.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ROWS_PER_BATCH = 500
SQLITE_BEFORE = ("DROP TRIGGER texts_gone", "DROP TABLE search")
SQLITE_AFTER = (
    "CREATE VIRTUAL TABLE search USING fts5(body, content='texts', content_rowid='number', "
    "tokenize=\"unicode61 remove_diacritics 0 categories 'L* N* M*'\")",
    "UPDATE indexed SET number = 0",
    "CREATE TRIGGER texts_gone AFTER DELETE ON texts WHEN old.number <= (SELECT number FROM indexed) BEGIN "
    "INSERT INTO search(search, rowid, body) VALUES ('delete', old.number, old.body); "
    "UPDATE indexed SET number = min(number, (SELECT coalesce(max(number), 0) FROM texts)); END",
)
POSTGRESQL_BEFORE = ("DROP INDEX texts_search",)
POSTGRESQL_AFTER = ("CREATE INDEX texts_search ON texts USING gin (string_to_array(body, ' '))",)


def upgrade() -> None:
    connection = op.get_bind()
    sqlite = connection.dialect.name == "sqlite"
    for statement in SQLITE_BEFORE if sqlite else POSTGRESQL_BEFORE:
        connection.exec_driver_sql(statement)
    _rewrite(connection)
    for statement in SQLITE_AFTER if sqlite else POSTGRESQL_AFTER:
        connection.exec_driver_sql(statement)


def _rewrite(connection: sa.Connection) -> None:
    question = sa.text("SELECT number, body FROM texts WHERE number > :after ORDER BY number LIMIT :most")
    change = sa.text("UPDATE texts SET body = :body WHERE number = :number")
    after = 0
    while rows := connection.execute(question, {"after": after, "most": ROWS_PER_BATCH}).all():
        after = rows[-1].number
        changed = [{"number": row.number, "body": body} for row in rows if (body := wording(row.body)) != row.body]
        if changed:
            connection.execute(change, changed)


# --- the tokenizer of this version

MOST_CHARS: Final = 131_072
MAX_WORD_CHARS: Final = 500
"""Characters per word; a longer word is split. An index entry of PostgreSQL takes at most 2.7 KB."""
CACHED_CHARS: Final = 20_000
"""Characters whose normal form is cached. A hostile text could contain all of Unicode."""

_PLAIN: Final = bytes(ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 32 for code in range(256))
_ACCENT: Final = re.compile(
    "[\u0300-\u08ff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U000e0100-\U000e01ef]"
)
"""Ranges of marks that people omit when they type: accents, points, variants. Marks of other scripts are vowels and stay."""
_ALONE: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff]"
)
"""Thai, Lao, Myanmar, Khmer, Chinese and Japanese."""
_FOREIGN: Final = re.compile("[^\x00-\x7f]+")
_LONG: Final = re.compile(f"[^ ]{{{MAX_WORD_CHARS}}}(?=[^ ])")


class _Letters(dict[int, str]):
    """The normal form of each character: a table for ``str.translate`` that grows with use."""

    def __missing__(self, code: int) -> str:
        letters = "".join(map(_letter, unicodedata.normalize("NFKD", chr(code)))).casefold()
        found = _ALONE.sub(r" \g<0> ", unicodedata.normalize("NFC", letters))
        if len(self) < CACHED_CHARS:
            self[code] = found
        return found


def _letter(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cf" or (kind[0] == "M" and _ACCENT.match(character)):
        return ""
    return character if kind[0] in "LNM" else " "


_letters = _Letters()


def wording(text: str) -> str:
    if not text.isascii():
        half_width = "\uff9e" in text or "\uff9f" in text  # half-width voicing marks follow their letter
        text = unicodedata.normalize("NFKC" if half_width else "NFC", text)
        if len(text.encode(errors="replace")) < len(text) * 1.1:  # most answers have few characters outside ASCII
            text = _FOREIGN.sub(lambda found: found[0].translate(_letters), text)
    plain = text.encode().translate(_PLAIN).decode() if text.isascii() else text.translate(_letters)
    words = " ".join(plain.split())
    half = MAX_WORD_CHARS // 2
    if all(" " in words[start : start + half] for start in range(0, len(words) - half, half)):
        return words[:MOST_CHARS]  # no word can be too long
    return _LONG.sub(r"\g<0> ", words)[:MOST_CHARS]
