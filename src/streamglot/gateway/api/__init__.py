"""The management API: models, stored turns, streams, approvals, forwarded requests."""
