"""The process that runs a model: what it is told, what it says, how it is started. The only place that knows the library,
whose names change between releases.

It ends when its standard input does: however the process that started it dies, nothing is left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import IO, Final

import msgspec
from msgspec import Struct

NAME: Final = "local"
ANSWER_TOKENS: Final = 1024
"""The longest answer where the request does not say: a small model that has lost its way would go on for minutes."""
SLOTS: Final = 2
"""Answers at once; more only wait for each other on a processor."""
CACHE_MEBIBYTES: Final = 256
"""Memory for prompts that come again; the library's own default is gigabytes."""
TEMPERATURE: Final = 0.2
TOP_P: Final = 0.9
"""What the makers of the default model advise, where the request does not say."""
REPEAT_PENALTY: Final = 1.04
"""Keeps it from saying one sentence for ever; with more it no longer calls tools."""
START_SECONDS: Final = 120.0
"""A large model on a slow disk; the default one takes less than a second."""


class Order(Struct):
    """What the process is told on its first line. ``port``: 0 is any that is free. ``lazy``: the model is loaded with the first
    request; only the supervising process listens until then."""

    weights: str
    key: str
    threads: int
    context: int
    template: str = ""
    port: int = 0
    lazy: bool = False


class Began(Struct):
    """What it says on its first line: where it listens, or why it does not."""

    port: int = 0
    error: str = ""


def launch(module: str, stderr: IO[bytes] | int | None) -> subprocess.Popen[bytes]:
    """A process that waits for its order. An interrupt at the terminal is not for it, but for the one that started it."""
    return subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
    )


def tell(process: subprocess.Popen[bytes], order: Order) -> Began:
    """Gives it its order, and waits for its first line. No port and no error: it is gone, and did not say why."""
    assert process.stdin is not None
    assert process.stdout is not None
    watch = threading.Timer(START_SECONDS, process.kill)
    watch.start()
    try:
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        return msgspec.json.decode(process.stdout.readline(), type=Began)
    except (OSError, ValueError):  # a pipe that is broken or closed, or a line that is none of ours
        return Began()
    finally:
        watch.cancel()


def say(began: Began) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(began) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Loads the model, says where it listens, and waits for the end of standard input."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    try:
        server = _serve(order)
        began = Began(int(server.listening_address.rpartition(":")[2]))  # type: ignore[attr-defined]
    except Exception as error:  # whatever it is, the other side has to hear of it
        began = Began(error=f"{type(error).__name__}: {error}")
    say(began)
    if not began.error:
        sys.stdin.buffer.read()
    os._exit(0)  # at once: an answer that is being written is not wanted any more


def _serve(order: Order) -> object:
    import xllamacpp  # type: ignore[import-untyped, import-not-found, unused-ignore]

    parameters = xllamacpp.CommonParams()
    parameters.model.path = order.weights
    parameters.model_alias = [NAME]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = order.port
    parameters.reuse_port = True  # the keeper stands in for it there until it has begun
    parameters.api_keys = [order.key]
    parameters.n_ctx = order.context
    parameters.n_predict = ANSWER_TOKENS
    parameters.n_parallel = SLOTS
    parameters.kv_unified = True
    parameters.cache_ram_mib = CACHE_MEBIBYTES
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = order.threads
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = False
    parameters.ui = False
    parameters.use_jinja = True
    if order.template:
        parameters.chat_template = order.template
        parameters.sampling.temp, parameters.sampling.top_p = TEMPERATURE, TOP_P
        parameters.sampling.penalty_repeat = REPEAT_PENALTY
    parameters.offline = True
    parameters.verbosity = 1
    server: object = xllamacpp.Server(parameters)
    return server


if __name__ == "__main__":
    main()
