"""The commands around batches."""

from __future__ import annotations

from pathlib import Path

import click

from ...extras import require
from ..help import group
from .admin import CONFIG_FILE

batch = group("Run many requests as one.")


@batch.command("worker", examples=("streamglot batch worker", "streamglot batch worker --config gateway.toml --concurrency 64"))
@CONFIG_FILE
@click.option("--concurrency", type=click.IntRange(min=1), help="Calls at once; batches.concurrency unless told.")
def batch_worker(config: Path | None, concurrency: int | None) -> int:
    """Run the batches of the store until it is told to stop. Any number of workers can share a PostgreSQL database."""
    require("starlette", "prometheus_client")
    from .batch_worker import run

    return run(config, concurrency)


GROUPS = {"batch": batch}
