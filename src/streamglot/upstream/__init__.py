"""Whom we ask: the upstreams, how their bytes are fetched, and which of them a model means."""

from .response import UpstreamResponse
from .settings import Timeouts, Upstream

__all__ = ["Timeouts", "Upstream", "UpstreamResponse"]
