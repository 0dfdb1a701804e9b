"""What is kept on disk beside the logs: files that are synced, commits of Delta tables, sorted runs."""
