"""What follows from what comes in, as data: the parts of a gateway return it, and `Dispatcher` alone carries it out.

So no part holds another that holds it, and what a part does can be seen without a socket. Effects are carried out in
the order in which they stand, before anything else comes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tidings_thialfi.gateway.relay import Link
    from tidings_thialfi.gateway.sessions import Session


class SessionBegan(NamedTuple):
    """A client has come: a route is to be found for its notifications."""

    session: Session


class SessionEnded(NamedTuple):
    """A client is gone: its route is not needed any more, and the stage is to know."""

    session: Session


class SessionDisplaced(NamedTuple):
    """A client has come on another channel, here or elsewhere: the one that it had is to be closed."""

    session: Session


class SessionInvalidated(NamedTuple):
    """The stage does not know a client any more, which was told so: its route is not needed any more."""

    session: Session


class PendingWanted(NamedTuple):
    """There is room again for what was not kept for a client: the stage is to tell it once more."""

    session: Session


class RoomToSend(NamedTuple):
    """A client has acknowledged something, or is to be answered: what waits for it can be sent."""

    session: Session


class MarkOnline(NamedTuple):
    """The stage is to know that a client is here, and that what it is told arrives: it tells all that is pending."""

    session: Session


class MarkOffline(NamedTuple):
    """The stage is to know that a client is gone."""

    session: Session


class OpenLink(NamedTuple):
    """Clients here have their flows with another gateway: this link to it is to be opened."""

    link: Link


class CloseLink(NamedTuple):
    """Nobody needs this link any more."""

    link: Link


Effect = (
    SessionBegan
    | SessionEnded
    | SessionDisplaced
    | SessionInvalidated
    | PendingWanted
    | RoomToSend
    | MarkOnline
    | MarkOffline
    | OpenLink
    | CloseLink
)
Effects = Sequence[Effect]
NOTHING: Effects = ()
