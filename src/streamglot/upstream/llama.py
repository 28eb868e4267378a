"""The process that runs a local model: its parameters, its first line of output, and how it is started. The only module that
uses llama.cpp's Python package, whose names change between releases.

The process ends when its standard input does. It therefore never outlives the process that started it, even if that one is
killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import IO, Any, Final

import msgspec
from msgspec import Struct

NAME: Final = "local"
ANSWER_TOKENS: Final = 1024
"""The longest answer in tokens if the request sets no limit. A small model that repeats itself would continue for minutes."""
SLOTS: Final = 2
"""Answers in parallel. More would only compete for the processor."""
CACHE_MEBIBYTES: Final = 256
"""Memory for cached prompts in MiB; the library's default is gigabytes."""
TEMPERATURE: Final = 0.2
TOP_P: Final = 0.9
"""The settings that the default model's authors recommend, used if the request does not set them."""
REPEAT_PENALTY: Final = 1.04
"""Prevents endless repetition; with a higher value the default model no longer calls tools."""
START_SECONDS: Final = 120.0
"""How long a start may take, in seconds: a large model on a slow disk. The default model takes less than a second."""


class LaunchParameters(Struct):
    """The parameters of the process, sent as its first input line. ``port`` 0 means any free port. ``lazy``: the model is loaded
    with the first request; until then only the supervisor listens."""

    weights: str
    key: str
    threads: int
    context: int
    template: str = ""
    port: int = 0
    lazy: bool = False


class LaunchReport(Struct):
    """The first output line of the process: where it listens, or why it does not."""

    port: int = 0
    error: str = ""


def launch(module: str, stderr: IO[bytes] | int | None) -> subprocess.Popen[bytes]:
    """Starts a process that waits for its parameters. It ignores an interrupt at the terminal, which is for the parent
    process."""
    return subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
    )


def configure(process: subprocess.Popen[bytes], settings: LaunchParameters) -> LaunchReport:
    """Sends the parameters and waits for the first output line. No port and no error: the process ended without a message."""
    assert process.stdin is not None
    assert process.stdout is not None
    watch = threading.Timer(START_SECONDS, process.kill)
    watch.start()
    try:
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
        process.stdin.flush()
        return msgspec.json.decode(process.stdout.readline(), type=LaunchReport)
    except (OSError, ValueError):  # a broken or closed pipe, or an unexpected line
        return LaunchReport()
    finally:
        watch.cancel()


def send_report(report: LaunchReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


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
