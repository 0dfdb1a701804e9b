"""What a client has told its application of each object: so that nothing is told twice, or acknowledged untold."""

from __future__ import annotations

from dataclasses import dataclass

from tidings_thialfi.client.listener import Handle
from tidings_thialfi.protocol.messages import Ack, Notice


@dataclass(slots=True)
class _Known:
    """Versions, or numbers of unknown ones: acknowledged by the application, and on their way to it; -1 for none."""

    told: int = -1
    telling: int = -1


class Told:
    """Knows the objects that the client intends to be registered for, and no others: its memory is bounded by them.

    >>> told = Told()
    >>> told.begin("alice", 5)
    >>> told.hear(Notice("alice", 5), client=1)  # the application has it
    Ack(name='alice', version=5, unknown=False)
    >>> handle = told.hear(Notice("alice", 6), client=1)
    >>> told.hear(Notice("alice", 6), client=1)  # is being told
    >>> told.acknowledge(handle, client=1)
    Ack(name='alice', version=6, unknown=False)
    """

    def __init__(self) -> None:
        self._versions: dict[str, _Known] = {}
        self._unknown: dict[str, _Known] = {}

    def begin(self, name: str, version: int | None) -> None:
        """An object is of interest, and the application has this version of it."""
        known = self._versions.setdefault(name, _Known())
        if version is not None:
            known.told = max(known.told, version)

    def end(self, name: str) -> None:
        """An object is of no interest any more."""
        self._versions.pop(name, None)
        self._unknown.pop(name, None)

    def hear(self, notice: Notice, client: int) -> Ack | Handle | None:
        """What a notice leads to: an acknowledgement, a handle to tell it with, or nothing."""
        if notice.name not in self._versions:
            # Not acknowledged: if the application is about to register for it again, it must hear of it.
            return None
        known = self._unknown.setdefault(notice.name, _Known()) if notice.unknown else self._versions[notice.name]
        if notice.version <= known.told:
            return Ack(notice.name, notice.version, notice.unknown)
        if notice.version <= known.telling:
            return None
        known.telling = notice.version
        return Handle(notice.name, notice.version, notice.unknown, client)

    def current(self, handle: Handle) -> bool:
        """Whether this is still to be told: not acknowledged, and not replaced by a later one."""
        known = (self._unknown if handle.unknown else self._versions).get(handle.object)
        return known is not None and known.told < handle.version == known.telling

    def acknowledge(self, handle: Handle, client: int | None) -> Ack | None:
        """The application has dealt with a notification; what to tell the service, if it wants to know."""
        known = (self._unknown if handle.unknown else self._versions).get(handle.object)
        if known is None or (handle.unknown and handle.client != client):
            return None  # not registered any more; or the number is of another count
        known.told = max(known.told, handle.version)
        return Ack(handle.object, handle.version, handle.unknown)

    def forget_numbers(self) -> None:
        """The service counts anew: numbers of unknown versions mean nothing any more. Versions do."""
        self._unknown.clear()
