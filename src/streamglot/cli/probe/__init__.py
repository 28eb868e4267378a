"""``streamglot probe``: tests how an upstream streams, and lists its deviations from the dialect."""
