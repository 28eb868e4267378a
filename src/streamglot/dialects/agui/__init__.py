"""AG-UI 1.0: how agents talk to user interfaces. Clients speak it, no upstream does: it is written, and its requests read."""
