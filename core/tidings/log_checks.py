"""What is checked of a log before a stream is made, moved or given a replica: that it can be, and that it is its own.

Logs say it by class methods, all of which take a location and the definition of a stream, and may be missing:

| method | |
| --- | --- |
| `preflight` | raise unless `create` could make the log; what its datastore is known by now, if it tells |
| `check_unclaimed` | raise if a datastore keeps for somebody else what it would have to keep for a new stream |
| `claims` | what no two streams may share, in words; the address, if a log does not say it |
| `prove` | as `MovableLog` has it |
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from tidings.errors import InvalidOption, LogMismatch, LogUnavailable, TidingsError
from tidings.log_opening import containing_errors, is_tailed, open_log
from tidings.logs import Log, MovableLog
from tidings.plugins import load
from tidings.positions import Positions
from tidings.stream_definition import StreamDefinition, split_address


def check_new_log(stream: StreamDefinition) -> Mapping[str, Any] | None:
    """Raise unless the log of a new stream could be made, as far as that can be told; nothing is made.

    What is returned is what its datastore is known by now; None if it does not tell.
    """
    known = preflight(stream)
    check_unclaimed(stream)
    return known


def preflight(stream: StreamDefinition) -> Mapping[str, Any] | None:
    """Raise unless a log with these options could be made, or is there; what its datastore is known by now."""
    scheme, location = split_address(stream.log)
    kind = load("tidings.logs", scheme)
    with containing_errors(stream.name):
        if hasattr(kind, "preflight"):
            known: Mapping[str, Any] | None = kind.preflight(location, stream)
            return known
        try:
            log = open_log(stream)
        except LogUnavailable:
            return None  # there is none yet, as it may be; if it cannot be made, that shows when it is
        try:
            return origin_of(log)
        finally:
            log.close()


def check_dead_letters(stream: StreamDefinition, read: Container[str]) -> None:
    """Raise unless an application that reads those streams can keep in this one what its handler fails at."""
    problem = "tails a database" if is_tailed(stream) else "it reads itself" if stream.name in read else None
    if problem is not None:
        raise InvalidOption(f"an application cannot keep what its handler fails at in {stream.name!r}, which {problem}")


def check_unclaimed(stream: StreamDefinition) -> None:
    """Raise if a datastore keeps for somebody else what it would have to keep for a stream that is new."""
    scheme, location = split_address(stream.log)
    if check := getattr(load("tidings.logs", scheme), "check_unclaimed", None):
        check(location, stream)


def check_claims(stream: StreamDefinition, others: Iterable[StreamDefinition]) -> None:
    """Raise if another stream has what is to be this one's alone: a folder, a replication slot, a table."""
    wanted = _claims(stream)
    for other in others:
        if other.name != stream.name and (shared := sorted(wanted & _claims(other))):
            raise LogMismatch(f"{shared[0]} belongs to stream {other.name!r} already: each stream has its own")


def _claims(stream: StreamDefinition) -> set[str]:
    found: set[str] = set()
    for replica in (None, *stream.replicas):
        there = stream.at(replica)
        scheme, location = split_address(there.log)
        try:
            tell = getattr(load("tidings.logs", scheme), "claims", None)
            found |= {there.log} if tell is None else set(tell(location, there))
        except TidingsError:  # its connector is not installed here, or does not know its options
            found.add(there.log)
    return found


def origin_of(log: Log) -> Mapping[str, Any] | None:
    """What the datastore of a log is known by at this moment, though nobody has read it; None if it does not tell."""
    if not isinstance(log, MovableLog):
        return None
    known: Mapping[str, Any] | None = getattr(log, "origin_now", log.origin)()
    return known


def can_prove(stream: StreamDefinition) -> bool:
    """Whether a log of this kind can be known again at another address."""
    return hasattr(load("tidings.logs", split_address(stream.log)[0]), "prove")


def prove_log(stream: StreamDefinition, known: Mapping[str, Any], passed: Positions) -> None:
    """Raise unless the log of a stream, as it is defined here, is in the datastore that `known` tells of."""
    scheme, location = split_address(stream.log)
    if not can_prove(stream):
        raise LogMismatch(f"a {scheme} log cannot tell which one it is, so stream {stream.name!r} stays where it is")
    with containing_errors(stream.name):
        load("tidings.logs", scheme).prove(location, stream, known, passed)


def prove_replica(stream: StreamDefinition, replica: str, known: Mapping[str, Any] | None) -> None:
    """Raise unless a replica of a new stream is one of the datastore that `known` tells of, if its log can tell."""
    there = stream.at(replica)
    if split_address(there.log)[0] != split_address(stream.log)[0]:
        raise LogMismatch(f"the log of stream {stream.name!r} is {stream.log}, and no other kind of log is a replica")
    if not can_prove(there):
        return
    if known is None:
        raise LogUnavailable(
            f"nothing proves that {there.log} is a replica, since there is nothing in {stream.log} yet: let something "
            "be written, or add the replica later, by `tidings apply`"
        )
    prove_log(there, known, Positions({}))
