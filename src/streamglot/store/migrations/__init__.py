"""The versions of the schema, run by ``Database.open``. The database says which one it has."""

HEAD = "0007"
"""The newest."""
