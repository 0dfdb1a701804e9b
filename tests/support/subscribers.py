"""Subscribers that keep what they hear of a stream."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import tidings
from tidings.cluster import Cluster
from tidings.flows import Flow
from tidings.positions import Position


class Seen(tidings.Handler):
    def __init__(self) -> None:
        self.updates: list[tidings.Update] = []

    def on_update(self, update: tidings.Update) -> None:
        self.updates.append(update)


class Copy(tidings.Handler):
    """A copy of the rows, emptied shard by shard when something was lost."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.lost: list[tuple[int, Position, Position]] = []
        self._shards: dict[str, int] = {}

    def on_update(self, update: tidings.Update) -> None:
        self._shards[update.object] = update.shard
        assert update.attributes is not None
        if update.attributes["operation"] == "delete":
            self.rows.pop(update.object, None)
        else:
            self.rows[update.object] = json.loads(update.payload or b"null")

    def on_data_loss(self, flow: Flow, first: Position, last: Position) -> None:
        self.lost.append((flow.shard, first, last))
        self.rows = {name: row for name, row in self.rows.items() if self._shards[name] != flow.shard}


@contextlib.contextmanager
def hearing(cluster: Cluster, stream: str) -> Iterator[tuple[list[tidings.Update], list[tidings.Update]]]:
    """What two subscribers have heard of a stream from its start: everything, and deletes alone."""
    cluster.create_application("all", [stream], start="earliest")
    cluster.create_application("deletes", [stream], filter="operation = delete", start="earliest")
    everything, deletes = Seen(), Seen()
    with cluster.subscribe("all", everything), cluster.subscribe("deletes", deletes), cluster.publisher():
        yield everything.updates, deletes.updates
