"""Memory that is no longer in use is returned: after many concurrent streams, and after a few very large answers."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from gateway.process import serving
from gateway.scenarios import PLAIN
from gateway.upstream import Seen, Step, head, hostile, piece, sse, streamed
from gateway.worker_client import asked
from streamglot.gateway.observe.memory import ATTEMPTS, FIRST_TICKS, GROWTH_BYTES, HEAPS, LONGEST_TICKS, MAX_RUNNING, Memory
from waiting import until

MEGABYTE = 2**20
LARGE = 24 * MEGABYTE


class Process:
    """The memory of a process: ``used`` can be given back no more, ``spare`` can."""

    def __init__(self) -> None:
        self.used, self.spare = 100 * MEGABYTE, 0
        self.given = 0
        self.memory = Memory(lambda: self.used + self.spare, self._give_back)

    def _give_back(self) -> None:
        self.given += 1
        self.spare = 0

    def tick(self, under_way: int, ticks: int = FIRST_TICKS) -> int:
        """How often it gave back meanwhile."""
        before = self.given
        for _ in range(ticks):
            self.memory.tick(under_way)
        return self.given - before


def test_memory_is_returned_after_many_exchanges() -> None:
    process = Process()
    assert process.tick(10) == 0
    process.spare = 2 * GROWTH_BYTES
    assert process.tick(10 * MAX_RUNNING, 100) == 0, "not while it is there"
    assert process.tick(2 * MAX_RUNNING, 100) == 0
    assert process.tick(MAX_RUNNING - 1) == 1


def test_memory_is_given_back_after_a_few_large_answers_while_others_continue() -> None:
    process = Process()
    assert process.tick(4) == 0
    process.spare = GROWTH_BYTES
    assert process.tick(3) == 1
    assert process.tick(3, 1000) == 0, "there is nothing more to give"
    process.spare = GROWTH_BYTES - 1
    assert process.tick(3, 1000) == 0, "so much comes and goes"


def test_attempts_to_return_memory_in_use_become_rarer() -> None:
    process = Process()
    process.tick(1)
    process.used += 10 * GROWTH_BYTES
    assert process.tick(1, FIRST_TICKS) == 1
    assert process.tick(1, FIRST_TICKS) == 0
    assert process.tick(1, FIRST_TICKS) == 1
    assert process.tick(1, ATTEMPTS * LONGEST_TICKS) == ATTEMPTS - 2, "then it is taken for what the process needs"
    process.used -= 10 * GROWTH_BYTES
    assert process.tick(1) == 0
    process.spare = GROWTH_BYTES
    assert process.tick(1) == 1, "what it needs may become less"


def test_memory_is_given_back_soon_after_the_exchanges_that_used_it_have_ended() -> None:
    process = Process()
    process.tick(1)
    process.used += 2 * GROWTH_BYTES
    assert process.tick(2, 20 * FIRST_TICKS) > 2, "attempts that do not help make the next one late"
    process.used, process.spare = process.used - GROWTH_BYTES, GROWTH_BYTES
    assert process.tick(0, FIRST_TICKS) == 1
    process.used += 2 * GROWTH_BYTES
    assert process.tick(0, LONGEST_TICKS) < 6, "an idle process does not try all the time either"


def test_the_size_of_a_process_is_reread_after_a_fork() -> None:
    memory = Memory()
    here = memory._resident()
    assert here > MEGABYTE
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            ballast = b"x" * (2 * here)
            os.write(writing, b"%d" % memory._resident())
            status = int(not ballast)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert int(os.read(reading, 100)) > 2 * here
    memory._give_back()


def test_a_gateway_gives_back_the_memory_of_large_answers(tmp_path: Path) -> None:
    """With the bytes of upstreams kept, each of them is in memory several times."""

    def large(_: Seen) -> list[Step]:
        words = sse({"choices": [{"index": 0, "delta": {"content": "word " * 2000}}]})
        end = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]")
        pieces = [piece(words * 20)] * (LARGE // len(words * 20))
        return [head(transfer_encoding="chunked"), *pieces, piece(end), b"0\r\n\r\n"]

    with hostile() as upstream:
        upstream.scripts["large"] = large
        upstream.scripts["small"] = streamed(PLAIN)
        os.environ["STREAMGLOT_STORE__RAW"] = "true"
        try:
            with serving(tmp_path, upstream.url, f"sqlite:///{tmp_path / 'store.db'}") as served:
                size = Path(f"/proc/{served.process.pid}/statm")

                def megabytes() -> float:
                    return int(size.read_text().split()[1]) * resource.getpagesize() / MEGABYTE

                body = {"model": "up/large", "messages": [{"role": "user", "content": "q"}]}
                before = megabytes()
                for stream in (True, False, True, False):
                    status, answer = asked(served.port, "/v1/chat/completions", {**body, "stream": stream})
                    assert status == 200
                    assert len(answer) > 0.9 * LARGE
                for _ in range(5):  # a prepared statement holds what it wrote last
                    assert asked(served.port, "/v1/chat/completions", {**body, "model": "up/small", "stream": True})[0] == 200
                most = before + 3 * LARGE / MEGABYTE
                until(lambda: megabytes() < most, lambda: f"{before:.0f} MB became {megabytes():.0f} MB")
        finally:
            del os.environ["STREAMGLOT_STORE__RAW"]


COUNT_HEAPS = """
import ctypes, sys, threading
from streamglot.gateway.observe.memory import set_allocator

set_allocator()
together = threading.Barrier(8)

def work():
    held = [bytes(10_000) for _ in range(50)]
    together.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""


def test_threads_share_a_few_heaps(tmp_path: Path) -> None:
    """A heap for each thread would keep megabytes, and more of them the longer a process runs."""
    path = tmp_path / "heaps.xml"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    subprocess.run([sys.executable, "-c", COUNT_HEAPS, str(path)], check=True, env=environment)
    assert path.read_text().count("<heap nr=") <= HEAPS
