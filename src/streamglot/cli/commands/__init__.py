"""The commands, one module a group. Each is imported when one of its commands is used."""
