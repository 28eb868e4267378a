"""Batches: many requests as one."""
