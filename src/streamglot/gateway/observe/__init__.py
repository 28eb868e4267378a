"""Observability of the gateway: logs, metrics, traces, memory."""
