"""Steps that the tests of databases share that go away for a while."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest

from tests.support.subscribers import Seen
from tidings.cluster import Cluster
from tidings.outages import MAX_REASONS
from tidings.testing import eventually


def loss_and_return_are_logged_once(
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[int], object],
    stop: Callable[[], object],
    start: Callable[[], object],
) -> None:
    """The database of the stream `shop` is stopped, for longer than publishers wait for it, and started again.

    `change` makes a row with this key.
    """
    caplog.set_level(logging.WARNING)
    cluster.create_application("cache", ["shop"], start="latest")
    seen, keys = Seen(), iter(range(1, 1000))

    def heard() -> bool:
        change(next(keys))
        return bool(seen.updates)

    with cluster.publisher(token_interval=0.2, patience=1.0) as publisher, cluster.subscribe("cache", seen):
        eventually(heard)
        stop()
        eventually(lambda: "shop" in publisher.unreadable and "shop" not in publisher.pumps)
        start()
        seen.updates.clear()
        eventually(heard, timeout=60)
        eventually(lambda: not publisher.unreadable)
    *lost, back = [record.getMessage() for record in caplog.records if "'shop'" in record.getMessage()]
    # One that broke off, and one that cannot be connected to, are two reasons; each is worth one line.
    assert 1 <= len(lost) == len(set(lost)) <= MAX_REASONS, lost
    assert all(line.startswith("stream 'shop' cannot be read: ") for line in lost), lost
    assert re.fullmatch(r"stream 'shop' can be read again after \d+\.\d s", back), back
