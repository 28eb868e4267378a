"""``python -m streamglot`` is the command line."""

from __future__ import annotations

from .cli import main

main()
