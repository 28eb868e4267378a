"""The schema versions, run by ``Database.open``. The database records its own version."""

HEAD = "0010"
"""The newest version."""
