"""The versions of the schema, run by ``Database.open``. The database says which one it has."""

HEAD = "0006"
"""The newest."""
