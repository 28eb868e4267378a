"""Finds patterns in streams, however the text is cut, and holds as little text as possible."""
