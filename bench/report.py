"""docs/benchmarks.md: the machine, the versions, the figures, their ratios, and which targets hold."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sysconfig
from importlib.metadata import version
from pathlib import Path

from .programs import BUILD, CORES, ROOT

Figures = dict[str, float]
PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ("streamglot", "httptools", "uvloop", "aiohttp", "msgspec")
STREAMS = 1000
STORE_TITLE = "## With the store on"

CHAT = "streamglot, chat client"
ANTHROPIC = "streamglot, anthropic client"

COLUMNS: list[tuple[str, list[tuple[str, str, str]]]] = [
    (
        "Requests that do not stream",
        [
            ("requests_s_1", "requests/s, 1 connection", "{:,.0f}"),
            ("requests_s_32", "32", "{:,.0f}"),
            ("requests_s_256", "256", "{:,.0f}"),
            ("added_1", "added latency µs, 1 connection", "{:,.0f}"),
            ("added_32", "32", "{:,.0f}"),
            ("added_256", "256", "{:,.0f}"),
            ("request_cpu", "CPU µs/request (32)", "{:,.1f}"),
        ],
    ),
    (
        "Streams",
        [
            ("burst_chunks_s", "burst chunks/s", "{:,.0f}"),
            ("burst_cpu", "burst CPU µs/chunk", "{:,.2f}"),
            ("paced_chunks_s", "paced chunks/s", "{:,.0f}"),
            ("paced_cpu", "paced CPU µs/chunk", "{:,.1f}"),
            ("paced_delay", "paced delay µs", "{:,.0f}"),
            ("long_chunks_s", "one long stream, chunks/s", "{:,.0f}"),
            ("long_cpu", "CPU µs/chunk", "{:,.2f}"),
            ("added_first", "added time to first chunk µs", "{:,.0f}"),
        ],
    ),
    (
        "Memory",
        [
            ("idle", "RSS idle MB", "{:,.0f}"),
            ("resident", "RSS with 1,000 streams MB", "{:,.0f}"),
            ("per_stream", "kB for each open stream", "{:,.1f}"),
            ("broken", "answers not whole", "{:,.0f}"),
        ],
    ),
]
RATIOS = (("burst_cpu", "burst chunk"), ("paced_cpu", "paced chunk"), ("long_cpu", "long stream"), ("request_cpu", "request"))


def write(results: dict[str, Figures], started: Figures, seconds: float, each: float) -> None:
    derive(results)
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m bench.gateway` (`make bench`). A mock upstream in C and a load generator in C have one core,",
        "what is measured has another; candidates take turns; medians of three repeats (a peer is measured once). Every answer",
        "is checked: all chunks in order and whole, the finish reason, the last event, the end of the body. CPU is that of the",
        "gateway's processes. Added latency and time to first chunk are medians less those of `direct`. Burst: 32 streams of 100",
        "chunks as fast as they go. Paced: 1,000 streams of 20 chunks/s. One long stream: 20,000 chunks. streamglot writes its",
        "log line and its metrics for each request; nginx passes bytes through (`proxy_buffering off`) and logs nothing.",
        "",
        *machine(),
        f"- this run: {seconds:.0f} s, {each:g} s for each measurement (`BENCH_SECONDS`)",
        "",
    ]
    for title, columns in COLUMNS:
        lines += table(title, columns, results)
    lines += ratios(results)
    lines += ["## Targets", "", "| target | measured | holds |", "|---|---|---|"]
    verdicts = targets(results, started)
    lines += [f"| {target} | {measured} | {holds} |" for target, measured, holds in verdicts]
    text = "\n".join(lines) + "\n"
    PAGE.write_text(text + _store_section())
    print(text)
    print(f"written to {PAGE}")


def write_store(compared: list[str], costs: list[str], requests: int, rounds: int) -> None:
    """Writes the section about the store. The rest of the page stays as it is."""
    lines = [
        STORE_TITLE,
        "",
        "Written by `python -m bench.stored` (`make bench-store`), on the machine of that run. The figures above are those of a",
        "gateway without a store. By default it stores every turn in SQLite. One gateway after the other, with a store that is empty:",
        "",
        *compared,
        "What a request that does not stream costs with a store that was filled before. The conversations that requests continue were",
        "stored by a process that has ended, so each of them is searched in the database, except those of `history`, which this process",
        "has in memory. `restart` repeats a conversation, `edited` repeats it with a changed answer, `named` also names its session,",
        "`response id` continues a response of the Responses API. CPU is that of the gateway, and of PostgreSQL, until everything is",
        f"written. Medians of {rounds} rounds of {requests} requests, one at a time. The last two columns are the last size divided by the first.",
        "",
        *machine(),
        "",
        *costs,
    ]
    page = PAGE.read_text().partition(f"\n{STORE_TITLE}")[0].rstrip("\n")
    PAGE.write_text(f"{page}\n\n" + "\n".join(lines).rstrip("\n") + "\n")


def _store_section() -> str:
    """The section about the store as it is on the page."""
    _, title, section = PAGE.read_text().partition(f"\n{STORE_TITLE}")
    return title + section


def derive(results: dict[str, Figures]) -> None:
    direct = results["direct"]
    for name, figures in results.items():
        if name != "direct":
            for connections in (1, 32, 256):
                figures[f"added_{connections}"] = figures[f"latency_{connections}"] - direct[f"latency_{connections}"]
            figures["added_first"] = figures["first_chunk"] - direct["first_chunk"]
            figures["per_stream"] = (figures["resident"] - figures["idle"]) * 1024 / STREAMS
    for own in ("request_cpu", "burst_cpu", "paced_cpu", "long_cpu", "idle", "resident"):
        direct.pop(own)  # the mock's own, which says nothing about a gateway


def table(title: str, columns: list[tuple[str, str, str]], results: dict[str, Figures]) -> list[str]:
    lines = [f"## {title}", "", f"| | {' | '.join(head for _, head, _ in columns)} |", "|---" + "|---:" * len(columns) + "|"]
    for name, figures in results.items():
        cells = [form.format(figures[key]) if key in figures else "" for key, _, form in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def ratios(results: dict[str, Figures]) -> list[str]:
    if "nginx" not in results:
        return []
    heads = " | ".join(head for _, head in RATIOS)
    lines = ["## CPU as a multiple of nginx's", "", f"| | {heads} |", "|---" + "|---:" * len(RATIOS) + "|"]
    for name, figures in results.items():
        if name not in ("direct", "nginx"):
            cells = [f"{figures[key] / results['nginx'][key]:,.1f}" for key, _ in RATIOS]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def targets(results: dict[str, Figures], started: Figures) -> list[tuple[str, str, str]]:
    """Each target, what was measured, and whether it holds. They are shown, not asserted: machines differ."""
    rows: list[tuple[str, str, str]] = []

    def ratio(words: str, key: str, of: str, to: str, most: float) -> None:
        if of in results and to in results:
            value = results[of][key] / results[to][key]
            rows.append((words, f"{value:.3g}", "yes" if value <= most else "NO"))
        else:
            rows.append((words, "not measured", ""))

    def below(words: str, value: float, most: float, unit: str) -> None:
        rows.append((words, f"{value:.2f} {unit}", "yes" if value < most else "NO"))

    chat = results[CHAT]
    ratio("CPU per chunk, burst, at most 8 times nginx's", "burst_cpu", CHAT, "nginx", 8)
    ratio("CPU per chunk, paced, at most 5 times nginx's (the aim is 2.5)", "paced_cpu", CHAT, "nginx", 5)
    ratio("CPU per chunk, burst, anthropic client at most 1.5 times chat client", "burst_cpu", ANTHROPIC, CHAT, 1.5)
    ratio("CPU per request at most 15 times nginx's (the aim is 8)", "request_cpu", CHAT, "nginx", 15)
    ratio("LiteLLM's CPU per chunk, burst, at most 1/40", "burst_cpu", CHAT, "LiteLLM", 1 / 40)
    ratio("LiteLLM's CPU per request, at most 1/40", "request_cpu", CHAT, "LiteLLM", 1 / 40)
    ratio("CPU per chunk, burst, not above TensorZero's", "burst_cpu", CHAT, "TensorZero", 1)
    ratio("CPU per request, not above TensorZero's", "request_cpu", CHAT, "TensorZero", 1)
    below("RSS with 1,000 open streams below 150 MB", chat["resident"], 150, "MB")
    below("idle RSS below 90 MB", chat["idle"], 90, "MB")
    below("`streamglot --help` below 0.3 s CPU", started["help_cpu"], 0.3, "s")
    below("`streamglot serve` ready below 1.5 s", started["ready"], 1.5, "s")
    return rows


def machine() -> list[str]:
    information = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", information)
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    versions = [f"{name} {version(name)}" for name in PACKAGES]
    for name, command in (("nginx", ["nginx", "-v"]), ("gcc", ["gcc", "-dumpfullversion"])):
        versions.append(f"{name} {_output_of(command)}")
    for name in ("litellm", "tensorzero"):
        found = sorted((BUILD / name).glob(f"lib/python*/site-packages/{name}-*.dist-info"))
        if found and os.environ.get("BENCH_PEERS") == "1":
            versions.append(f"{name} {found[-1].name.removeprefix(f'{name}-').removesuffix('.dist-info')}")
    optimized = "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS"))
    built = "optimized build" if optimized else "built without --enable-optimizations, which costs about 15 %"
    gigabytes = int(memory[1]) / 2**20 if memory else 0
    return [
        f"- machine: {model[1] if model else platform.machine()}, {len(CORES)} cores, {gigabytes:.0f} GB, Linux {platform.release()}",
        f"- versions: Python {platform.python_version()} ({built}), {', '.join(versions)}",
        f"- load average at the end: {os.getloadavg()[0]:.1f} (about {min(2, len(CORES))} when nothing else runs)",
    ]


def _output_of(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "not installed"
    return (done.stdout + done.stderr).strip().rpartition("/")[2]
