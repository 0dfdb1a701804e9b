"""Whether clients should come to a gateway, or go elsewhere."""

from __future__ import annotations

from tidings_thialfi.gateway.hearing import Hearing
from tidings_thialfi.gateway.routes import Routes


class Readiness:
    """`alone`: the gateway has no secret to show to others, and so no rows from them."""

    def __init__(self, hearing: Hearing, routes: Routes, *, alone: bool) -> None:
        self._hearing = hearing
        self._routes = routes
        self._alone = alone
        self.closing = False
        """Whether the gateway is shutting down."""

    def reasons(self) -> list[str]:
        """Why clients should go elsewhere; nothing if they need not."""
        reasons = []
        if self.closing:
            reasons.append("the gateway is shutting down")
        if not self._hearing.connected:
            reasons.append("ZooKeeper cannot be reached")
        if self._hearing.catching_up:
            reasons.append("what operators have said meanwhile is not known yet")
        if self._alone and self._routes.unrouted and self._routes.elsewhere:
            reasons.append("flows of clients here are with other gateways, and no secret for relays was given")
        return reasons
