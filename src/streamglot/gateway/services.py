"""What every request of this process uses: the upstreams, the clock, ids, the log, background tasks."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping

from ..config import LoadedConfig
from ..engine.ask import ResponseCache
from ..engine.upstreams import UpstreamPool
from ..tasks import TaskSupervisor, WriteLine
from ..upstream.secrets import hide, hide_in
from .merging import MergingPost, RequestMerger


class GatewayServices:
    """The services of one gateway. ``Lifecycle`` replaces ``server`` and ``cache`` when the configuration is read again."""

    clock = staticmethod(time.monotonic)

    def __init__(self, loaded: LoadedConfig, environment: Mapping[str, str], log: WriteLine) -> None:
        self.log = log
        self.pool = UpstreamPool(loaded, environment=environment, serving=True, log=log)
        self.server = loaded.config.server
        self.new_id = self.pool.new_id
        self.within = self.pool.within
        self.tasks = TaskSupervisor(lambda line: log(hide_in(line, self.pool.secrets())))
        self.cache: ResponseCache | None = None
        """The cache of answers; None if no route caches."""
        self.merger = RequestMerger()
        self.pool.whole_post = MergingPost(self.pool.connections.post, self.merger)

    def log_fault(self, request_id: str, error: BaseException) -> None:
        """Logs an internal error with its place in the code."""
        trace = "".join(traceback.format_exception(error))
        self.log({"event": "fault", "request_id": request_id, "trace": hide(trace, self.pool.secrets())})
