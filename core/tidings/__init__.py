"""tidings: publish/subscribe for people who run Spark.

>>> import tidings
>>> tidings.Position(3) < tidings.Position(4)
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tidings.errors import TidingsError
from tidings.runtime.session import configure, session
from tidings.runtime.zookeeper_server import embedded

if TYPE_CHECKING:
    from tidings.cluster import Cluster, connect
    from tidings.coordination.tls import ZooKeeperTls
    from tidings.datamarkers import Datamarker
    from tidings.flows import Flow
    from tidings.handlers import Handler
    from tidings.positions import Bounds, Position, Positions
    from tidings.producers import AsyncProducer, Producer
    from tidings.publisher.publisher import Publisher
    from tidings.spark_reads import read, read_stream
    from tidings.streams import Stream
    from tidings.subscriber.subscriber import Subscriber
    from tidings.updates import Update
    from tidings.wire.security import Security

__version__ = "0.1.0"

# Spark's Python workers import this package in every query: the other names bring their modules in at first use.
_HOMES = {
    "Cluster": "cluster",
    "connect": "cluster",
    "Bounds": "positions",
    "Position": "positions",
    "Positions": "positions",
    "AsyncProducer": "producers",
    "Producer": "producers",
    "Stream": "streams",
    "Handler": "handlers",
    "Subscriber": "subscriber.subscriber",
    "Publisher": "publisher.publisher",
    "Flow": "flows",
    "Datamarker": "datamarkers",
    "Update": "updates",
    "Security": "wire.security",
    "ZooKeeperTls": "coordination.tls",
    "read": "spark_reads",
    "read_stream": "spark_reads",
}

__all__ = [
    "AsyncProducer",
    "Bounds",
    "Cluster",
    "Datamarker",
    "Flow",
    "Handler",
    "Position",
    "Positions",
    "Producer",
    "Publisher",
    "Security",
    "Stream",
    "Subscriber",
    "TidingsError",
    "Update",
    "ZooKeeperTls",
    "configure",
    "connect",
    "embedded",
    "read",
    "read_stream",
    "session",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tidings' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tidings.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
