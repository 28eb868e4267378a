"""Settings for other programs that use the gateway."""
