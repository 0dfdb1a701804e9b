"""Whether a gateway knows what operators have said, although it was cut off from ZooKeeper for a while."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState


class Hearing:
    """Counts how often ZooKeeper was lost: what was looked up before the last time may not be all that was said."""

    def __init__(self, zookeeper: KazooClient) -> None:
        self._zookeeper = zookeeper
        self._known = 0
        self.losses = 0
        zookeeper.add_listener(self._on_state)

    @property
    def connected(self) -> bool:
        """Whether ZooKeeper can be reached."""
        return bool(self._zookeeper.connected)

    @property
    def catching_up(self) -> bool:
        """Whether ZooKeeper is back, and what was said meanwhile is not known yet."""
        return self.connected and self._known != self.losses

    def heard(self, losses: int) -> None:
        """All is known that was said until then: it was looked up after so many losses."""
        self._known = losses

    def _on_state(self, state: str) -> None:
        if state != KazooState.CONNECTED:
            self.losses += 1
