"""``streamglot probe``: how an upstream really streams, and where it departs from its dialect."""
