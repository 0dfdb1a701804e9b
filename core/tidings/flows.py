"""A flow: the updates of one shard of one stream for one application; and where ZooKeeper holds what is known of it.

```
/<root>/flows/<app>/<stream>/<shard>/epoch       its data version is the epoch
/<root>/flows/<app>/<stream>/<shard>/owner       ephemeral: the publisher that sends the flow
/<root>/flows/<app>/<stream>/<shard>/datamarker  position, epoch, time
/<root>/flows/<app>/<stream>/<shard>/subscriber  which subscriber holds the flow, since which epoch; what is wrong
/<root>/flows/<app>/<stream>/<shard>/control     the operator's word
```
"""

from __future__ import annotations

from typing import Literal, NamedTuple

FlowState = Literal["unassigned", "waiting", "failing", "running", "parked", "stopped"]
CONTROL, DRAINS = "control", "drains"
"""Where operators' words are: of a flow, below its place; of publishers, below the root."""

NODES = ("epoch", "owner", "datamarker", "subscriber")
"""What every flow has below its place, once it was owned."""


class Flow(NamedTuple):
    """Which flow.

    >>> str(Flow("cache", "contacts", 3))
    'cache/contacts/3'
    """

    application: str
    stream: str
    shard: int

    def __str__(self) -> str:
        return f"{self.application}/{self.stream}/{self.shard}"

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Where the flow is in the cluster's tree."""
        return ("flows", self.application, self.stream, str(self.shard))
