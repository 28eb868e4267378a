"""The readers against a corpus of recorded streams that lies outside the project. ``make conformance`` runs it."""
