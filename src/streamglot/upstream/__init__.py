"""Whom we ask: the upstreams, how their bytes are fetched, and which of them a model means."""

from .answer import Answer
from .settings import Timeouts, Upstream

__all__ = ["Answer", "Timeouts", "Upstream"]
