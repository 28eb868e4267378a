"""Batches that survive the process, in the database."""
