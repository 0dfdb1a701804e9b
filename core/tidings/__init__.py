"""tidings: publish/subscribe for people who run Spark.

>>> import tidings
>>> tidings.Position(3) < tidings.Position(4)
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# These two functions bear the names of their modules: imported first, so that a later import of the module does not
# put it in the function's place. Both modules are light.
from tidings.embedded import embedded
from tidings.errors import TidingsError
from tidings.session import configure, session

if TYPE_CHECKING:
    from tidings.cluster import Cluster, connect
    from tidings.datamarkers import Datamarker
    from tidings.flows import Flow
    from tidings.handlers import Handler
    from tidings.positions import Bounds, Position, Positions
    from tidings.producers import AsyncProducer, Producer
    from tidings.publisher import Publisher
    from tidings.streams import Stream
    from tidings.subscriber import Subscriber
    from tidings.updates import Update

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
    "Subscriber": "subscriber",
    "Publisher": "publisher",
    "Flow": "flows",
    "Datamarker": "datamarkers",
    "Update": "updates",
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
    "Stream",
    "Subscriber",
    "TidingsError",
    "Update",
    "configure",
    "connect",
    "embedded",
    "session",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tidings' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tidings.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
