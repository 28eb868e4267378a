"""JSON values as policies check them: schemas, paths, and a check while they are written."""
