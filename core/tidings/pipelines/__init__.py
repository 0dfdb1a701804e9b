"""Pipelines: a stage that runs as a Spark query, from streams to a stream."""
