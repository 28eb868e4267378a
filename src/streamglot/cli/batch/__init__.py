"""Batches on the command line: run from a file without a server, or submitted to a gateway."""
