"""Subscribers that keep what they hear of a stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tidings
from tidings.cluster import Cluster


class Seen(tidings.Handler):
    def __init__(self) -> None:
        self.updates: list[tidings.Update] = []

    def on_update(self, update: tidings.Update) -> None:
        self.updates.append(update)


@contextlib.contextmanager
def hearing(cluster: Cluster, stream: str) -> Iterator[tuple[list[tidings.Update], list[tidings.Update]]]:
    """What two subscribers have heard of a stream from its start: everything, and deletes alone."""
    cluster.create_application("all", [stream], start="earliest")
    cluster.create_application("deletes", [stream], filter="operation = delete", start="earliest")
    everything, deletes = Seen(), Seen()
    with cluster.subscribe("all", everything), cluster.subscribe("deletes", deletes), cluster.publisher():
        yield everything.updates, deletes.updates
