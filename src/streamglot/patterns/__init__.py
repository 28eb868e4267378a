"""Finds patterns in streams, however the text is cut, and holds as little text as possible."""

from .detectors import detectors, patterns_of
from .scanner import HOLD_CHARS, Found, Overflow, Pattern, PatternSet, Scanner, Segment

__all__ = [
    "HOLD_CHARS",
    "Found",
    "Overflow",
    "Pattern",
    "PatternSet",
    "Scanner",
    "Segment",
    "detectors",
    "patterns_of",
]
