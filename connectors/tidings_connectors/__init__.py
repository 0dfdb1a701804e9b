"""Logs for tidings: one module a kind of log, found by the entry points of `tidings.logs`."""
