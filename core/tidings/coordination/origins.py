"""Where a stream is from: what its datastore is known by, whatever its address is.

```
/<root>/streams/<stream>/origin   what the datastore said of itself, the addresses at which it was seen, and up to
                                  where it was read
```

It is noted when a stream is made, and by publishers while they read: when an address is to change, the datastore may be
gone from the old one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from tidings.coordination.values import encode
from tidings.coordination.zookeeper import Coordination
from tidings.positions import Positions
from tidings.stream_definition import StreamDefinition

PLACE = "origin"
NOWHERE = Positions()


def read_origin(tree: Coordination, stream: StreamDefinition) -> dict[str, Any] | None:
    """What is known of the datastore of a stream; None if it was never noted, or for another address."""
    noted = tree.read("streams", stream.name, PLACE) or {}
    known = noted.get("known")
    return known if isinstance(known, dict) and stream.log in (noted.get("logs") or ()) else None


def read_farthest(tree: Coordination, stream: StreamDefinition) -> Positions:
    """The farthest positions that were seen to be sent to flows, whether they were acknowledged or not."""
    noted = tree.read("streams", stream.name, PLACE) or {}
    return Positions.from_json(noted.get("read") or {})


def note_origin(
    tree: Coordination, known: Mapping[str, Any], *streams: StreamDefinition, read: Positions = NOWHERE
) -> None:
    """Note what the datastore of a stream is known by, at the addresses of these definitions of it, and up to where
    it was `read`.

    Nothing is noted of a stream that was dropped meanwhile.
    """
    logs = sorted({log for stream in streams for log in (stream.log, *stream.replicas.values())})
    path, value = (
        tree.path("streams", streams[0].name, PLACE),
        encode({"logs": logs, "known": dict(known), "read": read.to_json()}),
    )
    with tree.translating_errors():
        try:
            tree.wait(tree.client.set_async(path, value))
        except NoNodeError:
            with contextlib.suppress(NoNodeError, NodeExistsError):
                tree.wait(tree.client.create_async(path, value, tree.acl("streams", streams[0].name, PLACE)))
