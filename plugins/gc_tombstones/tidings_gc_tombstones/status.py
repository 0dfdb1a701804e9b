"""How much of a stream was collected, and how much is held: for the command line, and for the console."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any

from tidings.collection import collectable
from tidings.errors import TidingsError
from tidings.streams import Stream
from tidings_gc_tombstones.index import KeyIndex

if TYPE_CHECKING:
    from tidings.cluster import Cluster


def status(stream: Stream) -> dict[str, Any]:
    """What is held of a stream, and when it was collected last."""
    log = collectable(stream.definition, stream.log)
    sizes = log.sizes()
    last = KeyIndex(log.collection_folder).note
    when = last.get("time")
    return {
        "stream": stream.name,
        "updates": sizes.updates,
        "collected": sizes.collected,
        "ratio": sizes.collected / max(1, sizes.updates + sizes.collected),
        "bytes": sizes.bytes,
        "last_run": when and dt.datetime.fromtimestamp(when, dt.UTC).isoformat(timespec="seconds"),
        "read": last.get("read"),
        "seconds": last.get("seconds"),
        "refused": last.get("refused", []),
        "refused_count": last.get("refused_count", 0),
    }


def for_console(cluster: Cluster) -> list[dict[str, Any]]:
    """The same of all streams that have policies; the entry point `gc` of the group `tidings.console`."""
    found = []
    for stream in cluster.streams():
        if stream.definition.collect:
            policies = [f"{name}: {options}" for name, options in stream.definition.collect.items()]
            try:
                with contextlib.closing(stream.log):
                    now = status(stream)
                # What is held are those that survived.
                found.append({**now, "policies": policies, "survivors": now["updates"], "problem": None})
            except TidingsError as error:  # of the others there is more to tell
                found.append({"stream": stream.name, "policies": policies, "problem": str(error)})
    return found
