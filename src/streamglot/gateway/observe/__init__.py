"""What the gateway reports: logs, metrics, traces, memory."""
