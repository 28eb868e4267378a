"""Checks of JSON values for policies: schemas, paths, and a check of JSON that is still being written."""
