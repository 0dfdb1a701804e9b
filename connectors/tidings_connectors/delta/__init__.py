"""The embedded default: a log in a Delta table of our own."""
