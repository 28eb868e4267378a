"""The process that runs a local model. The only module that uses llama.cpp's Python package, whose names change between
releases."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from . import (
    ANSWER_TOKENS,
    CACHE_MEBIBYTES,
    NAME,
    REPEAT_PENALTY,
    SLOTS,
    TEMPERATURE,
    TOP_P,
    LaunchParameters,
    LaunchReport,
    send_report,
)


def main() -> None:
    """Loads the model, reports where it listens, and waits for the end of standard input."""
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=LaunchParameters)
    try:
        server = _serve(settings)
        report = LaunchReport(int(server.listening_address.rpartition(":")[2]))
    except Exception as error:  # the parent must learn of any failure
        report = LaunchReport(error=f"{type(error).__name__}: {error}")
    send_report(report)
    if not report.error:
        sys.stdin.buffer.read()
    os._exit(0)  # at once: no client waits for an unfinished answer


def _serve(settings: LaunchParameters) -> Any:  # Any: the server of xllamacpp, which has no types
    import xllamacpp  # type: ignore[import-untyped, import-not-found, unused-ignore]  # optional, without types

    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings.weights
    parameters.model_alias = [NAME]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = settings.port
    parameters.reuse_port = True  # the supervisor listens at the same address until the model does
    parameters.api_keys = [settings.key]
    parameters.n_ctx = settings.context
    parameters.n_predict = ANSWER_TOKENS
    parameters.n_parallel = SLOTS
    parameters.kv_unified = True
    parameters.cache_ram_mib = CACHE_MEBIBYTES
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = settings.threads
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = False
    parameters.ui = False
    parameters.use_jinja = True
    if settings.template:
        parameters.chat_template = settings.template
        parameters.sampling.temp, parameters.sampling.top_p = TEMPERATURE, TOP_P
        parameters.sampling.penalty_repeat = REPEAT_PENALTY
    parameters.offline = True
    parameters.verbosity = 1
    server: object = xllamacpp.Server(parameters)
    return server


if __name__ == "__main__":
    main()
