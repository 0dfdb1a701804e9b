"""A stream that is dropped and made anew over another datastore, whose log has come further."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.support.subscribers import Copy
from tidings.cluster import Cluster
from tidings.flow_status import status
from tidings.testing import eventually


class Datastore(NamedTuple):
    """Something with a table: its address, the options of a stream of it, and what adds a row of this number."""

    log: str
    options: Mapping[str, Any]
    insert: Callable[[int], object]


def flows_are_told(cluster: Cluster, old: Datastore, new: Datastore) -> None:
    """Flows that stood in the old log hear of a loss, and then all rows of the new one."""

    def stands() -> list[int]:
        return [one.datamarker.position.seq if one.datamarker else -1 for one in status(cluster)]

    def heard() -> set[int]:
        return {int(name.rpartition("/")[2]) for name in list(copy.rows)}

    def head() -> int:
        return cluster.stream("shop").log.bounds()[0].head.seq

    copy, before = Copy(), {50, 51, 52}
    cluster.create_stream("shop", 2, old.log, options=old.options)
    cluster.create_application("cache", ["shop"], start="earliest")
    with cluster.subscribe("cache", copy):
        with cluster.publisher(token_interval=0.2):
            for number in range(1, 6):
                old.insert(number)
            eventually(lambda: {1, 2, 3, 4, 5} <= heard() and min(stands()) >= head() - 1, timeout=60)
        assert copy.lost == []
        cluster.drop_stream("shop")
        for number in before:
            new.insert(number)
        cluster.create_stream("shop", 2, new.log, options=new.options)
        last = 60
        new.insert(last)
        while head() <= max(stands()) + 8:
            last += 1
            assert last < 500
            new.insert(last)
        with cluster.publisher(token_interval=0.2):
            eventually(lambda: set(range(60, last + 1)) <= heard(), timeout=60)
            assert {shard for shard, *_ in copy.lost} == {0, 1}
            if new.options.get("snapshot"):
                eventually(lambda: before <= heard())
            new.insert(1000)
            eventually(lambda: 1000 in heard())
    assert not heard() & {1, 2, 3, 4, 5}
