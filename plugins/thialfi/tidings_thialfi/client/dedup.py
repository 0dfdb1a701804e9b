"""Deduplicating notifications: of each object the application gets a version once, and acknowledges what it got."""

from __future__ import annotations

from dataclasses import dataclass

from tidings_thialfi.client.listener import Handle
from tidings_thialfi.protocol.messages import Ack, Notice


@dataclass(slots=True)
class _Known:
    """Versions, or numbers of unknown ones: acknowledged by the application, and on their way to it; -1 for none."""

    acknowledged: int = -1
    delivering: int = -1


class Deduplicator:
    """Knows the objects that the client intends to be registered for, and no others: its memory is bounded by them.

    >>> dedup = Deduplicator()
    >>> dedup.track("alice", 5)
    >>> dedup.take(Notice("alice", 5), client=1)  # the application has it
    Ack(name='alice', version=5, unknown=False)
    >>> handle = dedup.take(Notice("alice", 6), client=1)
    >>> dedup.take(Notice("alice", 6), client=1)  # is being delivered
    >>> dedup.acknowledge(handle, client=1)
    Ack(name='alice', version=6, unknown=False)
    """

    def __init__(self) -> None:
        self._versions: dict[str, _Known] = {}
        self._unknown: dict[str, _Known] = {}

    def track(self, name: str, version: int | None) -> None:
        """An object is of interest, and the application has this version of it."""
        known = self._versions.setdefault(name, _Known())
        if version is not None:
            known.acknowledged = max(known.acknowledged, version)

    def untrack(self, name: str) -> None:
        """An object is of no interest any more."""
        self._versions.pop(name, None)
        self._unknown.pop(name, None)

    def take(self, notice: Notice, client: int) -> Ack | Handle | None:
        """What a notice leads to: an acknowledgement, a handle to deliver it with, or nothing."""
        if notice.name not in self._versions:
            # Not acknowledged: if the application is about to register for it again, it must get it.
            return None
        known = self._unknown.setdefault(notice.name, _Known()) if notice.unknown else self._versions[notice.name]
        if notice.version <= known.acknowledged:
            return Ack(notice.name, notice.version, notice.unknown)
        if notice.version <= known.delivering:
            return None
        known.delivering = notice.version
        return Handle(notice.name, notice.version, notice.unknown, client)

    def current(self, handle: Handle) -> bool:
        """Whether this is still to be delivered: not acknowledged, and not replaced by a later one."""
        known = (self._unknown if handle.unknown else self._versions).get(handle.object)
        return known is not None and known.acknowledged < handle.version == known.delivering

    def acknowledge(self, handle: Handle, client: int | None) -> Ack | None:
        """The application has dealt with a notification; what to tell the service, if it wants to know."""
        known = (self._unknown if handle.unknown else self._versions).get(handle.object)
        if known is None or (handle.unknown and handle.client != client):
            return None  # not registered any more; or the number is of another count
        known.acknowledged = max(known.acknowledged, handle.version)
        return Ack(handle.object, handle.version, handle.unknown)

    def forget_numbers(self) -> None:
        """The service counts anew: numbers of unknown versions mean nothing any more. Versions do."""
        self._unknown.clear()
