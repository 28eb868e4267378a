"""Documents that are written by the code they describe."""
