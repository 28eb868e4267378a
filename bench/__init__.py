"""Benchmarks: figures and ratios to something measured in the same run. ``make bench`` runs them."""
