"""``streamglot batch``: a model asked about every row of a file, here, or by a gateway, or by workers of its store."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...config import DISABLED, load
from ...errors import ConfigError
from ...installation import require
from ...json_types import JsonObject
from ..address import gateway_address
from ..batch import jobs
from ..batch.run import RunOptions, run
from ..options import (
    CONFIG_FILE,
    FILE,
    JSON,
    group,
    text,
    together,
)
from ..question import MAX_TOKENS, MODEL, SCHEMA, SYSTEM, Question, ToolOptions

if TYPE_CHECKING:
    from ...gateway.app import Gateway

READY: Final = "streamglot runs the batches in"
"""The beginning of the line that says that the worker runs."""
batch = group("Ask a model about every row of a file, here or through a gateway.")

GATEWAY = together(
    click.option(
        "--url",
        type=text,
        default="",
        envvar="STREAMGLOT_URL",
        show_envvar=True,
        help="The address of the gateway; by default the configured one.",
    ),
    click.option("--key", type=text, default="", envvar="STREAMGLOT_KEY", show_envvar=True, help="The key for the gateway."),
)
OUTPUT = click.option("-o", "--output", type=FILE, help="The file for the results.")
BATCH = click.argument("id", type=text)
QUIET = click.option("-q", "--quiet", is_flag=True, help="Show no progress, only the result.")


@batch.command(
    "run",
    examples=(
        'streamglot batch run reviews.csv --prompt "Summarise: {text}" -m local',
        "streamglot batch run requests.jsonl -o answers.jsonl --concurrent 32",
    ),
)
@click.argument("file", type=FILE)
@click.option("-p", "--prompt", type=text, default="", help="The prompt for each row. {name} is replaced by that column.")
@MODEL
@SYSTEM
@MAX_TOKENS
@click.option("-t", "--temperature", type=float, help="The sampling temperature.")
@SCHEMA
@click.option(
    "-T",
    "--tools",
    multiple=True,
    type=text,
    help="Tools that are run for the model, without asking: a name or glob. May be repeated.",
)
@OUTPUT
@click.option("--column", type=text, default="answer", show_default=True, help="The column of the output that gets the answer.")
@click.option(
    "-c",
    "--concurrent",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    help="The number of rows that are asked at once.",
)
@click.option("--retries", type=click.IntRange(0, 100), default=3, show_default=True, help="How often a failed row is retried.")
@click.option("--ordered", is_flag=True, help="Write the rows in input order instead of the order of the answers.")
@click.option("--log", is_flag=True, help="Store every row as a turn.")
@QUIET
def batch_run(file: Path, prompt: str, output: Path | None, column: str, **given: Any) -> int:  # Any: options, by name
    """Ask a model about every row of a file, without a server.

    FILE is CSV, TSV, JSON Lines or Parquet. The output is JSON Lines with each row and its answer, in a file beside FILE unless
    -o names another. Lines of the batch API (custom_id, url, body) get result lines of that API. If the run is stopped or killed,
    run the same command again: it continues, and retries the rows that failed.
    """
    question = Question(
        model=given["model"],
        system=given["system"],
        schema=given["schema"],
        max_tokens=given["max_tokens"],
        temperature=given["temperature"],
        tools=ToolOptions(patterns=list(given["tools"]), approve=["always"]),
    )
    return run(
        RunOptions(
            path=file,
            question=question,
            prompt=prompt,
            output=output,
            column=column,
            concurrent=given["concurrent"],
            retries=given["retries"],
            ordered=given["ordered"],
            quiet=given["quiet"],
            log=given["log"],
        )
    )


@batch.command(
    "submit",
    examples=(
        "streamglot batch submit requests.jsonl",
        "streamglot batch submit requests.jsonl --wait -o results.jsonl",
    ),
)
@click.argument("file", type=FILE)
@click.option("--endpoint", type=text, default="", help="The url of all lines; by default that of the first line.")
@click.option("--wait", is_flag=True, help="Wait for the end, with a progress bar.")
@OUTPUT
@QUIET
@GATEWAY
def batch_submit(file: Path, endpoint: str, wait: bool, output: Path | None, quiet: bool, url: str, key: str) -> int:
    """Submit a file of requests to a gateway, which runs it.

    FILE has lines of the batch API: custom_id, method, url, body. The gateway continues after this command has ended.
    """
    return jobs.submit(gateway_address(url, key), file, endpoint, wait=wait, output=output, quiet=quiet)


@batch.command("list", examples=("streamglot batch list", "streamglot batch list -n 5 --json"))
@click.option("-n", "--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="At most this many, the newest.")
@JSON
@GATEWAY
def batch_list(limit: int, json: bool, url: str, key: str) -> int:
    """List the batches of a gateway, the newest first."""
    return jobs.list_batches(gateway_address(url, key), limit, json)


@batch.command("status", examples=("streamglot batch status batch_123", "streamglot batch status batch_123 --wait"))
@BATCH
@click.option("--wait", is_flag=True, help="Wait for the end, with a progress bar.")
@QUIET
@JSON
@GATEWAY
def batch_status(id: str, wait: bool, quiet: bool, json: bool, url: str, key: str) -> int:
    """Show the progress of a batch.

    ID is one that `streamglot batch list` shows.
    """
    return jobs.status(gateway_address(url, key), id, wait=wait, quiet=quiet, as_json=json)


@batch.command("cancel", examples=("streamglot batch cancel batch_123",))
@BATCH
@GATEWAY
def batch_cancel(id: str, url: str, key: str) -> int:
    """Stop a batch.

    ID is one that `streamglot batch list` shows. The results so far stay readable.
    """
    return jobs.cancel(gateway_address(url, key), id)


@batch.command("results", examples=("streamglot batch results batch_123 -o results.jsonl",))
@BATCH
@OUTPUT
@GATEWAY
def batch_results(id: str, output: Path | None, url: str, key: str) -> int:
    """Print or save the results of a batch and the errors of its failed requests.

    ID is one that `streamglot batch list` shows. A running batch gives the results so far, if the gateway has them.
    """
    return jobs.results(gateway_address(url, key), id, output)


@batch.command("retry", examples=("streamglot batch retry batch_123 --wait -o results.jsonl",))
@BATCH
@click.option("--wait", is_flag=True, help="Wait for the end, with a progress bar.")
@OUTPUT
@QUIET
@GATEWAY
def batch_retry(id: str, wait: bool, output: Path | None, quiet: bool, url: str, key: str) -> int:
    """Submit the failed requests of a batch again, as a new batch.

    ID is one that `streamglot batch list` shows.
    """
    return jobs.retry(gateway_address(url, key), id, wait=wait, output=output, quiet=quiet)


@batch.command("worker", examples=("streamglot batch worker", "streamglot batch worker --config gateway.toml --concurrency 64"))
@CONFIG_FILE
@click.option("--concurrency", type=click.IntRange(min=1), help="Calls at once; by default batches.concurrency.")
def batch_worker(config: Path | None, concurrency: int | None) -> int:
    """Run the batches of the store until a signal stops it. Any number of workers can share a PostgreSQL database."""
    require("prometheus_client")
    # the gateway is slow to import, and its packages are optional
    from ...gateway.app import Gateway
    from ...gateway.supervisor import raise_file_limit

    overrides: JsonObject = {"batches.enabled": True, "batches.worker": True, "batches.concurrency": concurrency}
    loaded = load(config, overrides=overrides)
    if loaded.config.store.url == DISABLED:
        raise ConfigError("a worker needs a store, but store.url is none; set store.url to the database of the gateway")
    raise_file_limit()
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(_work(Gateway(loaded)))
    else:
        uvloop.run(_work(Gateway(loaded)))
    return 0


async def _work(gateway: Gateway) -> None:
    """Runs until SIGTERM or SIGINT. Calls in flight may end; the other requests return to the queue."""
    from ...gateway.observe.memory import set_collector

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with gateway.running():
        assert gateway.recording.store is not None
        set_collector()
        print(f"{READY} {gateway.recording.store.database.shown}", file=sys.stderr, flush=True)
        await stop.wait()
