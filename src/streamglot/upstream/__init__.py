"""Upstreams: their settings, the HTTP client that reads from them, and the routes from models to upstreams."""

from .http import UpstreamResponse
from .settings import Timeouts, Upstream

__all__ = ["Timeouts", "Upstream", "UpstreamResponse"]
