"""Who sends a flow: one publisher at a time, each with a larger epoch than the one before.

*Taking* a flow is one transaction: bump `epoch`, create `owner`. `owner` is ephemeral, so it goes with its session, and
it cannot be created twice. The data version of `epoch` after the transaction is the owner's epoch. Everything an owner
writes afterwards checks that version in the same transaction, so an owner that was replaced changes nothing, however
long it slept.

What an owner may do in each state of its ZooKeeper session:

| state | what holds | what the owner does |
| --- | --- | --- |
| CONNECTED, lease valid | nobody else can have taken the flow | sends, and writes datamarkers |
| CONNECTED, lease expired | the process slept, or ZooKeeper is slow; someone may have taken the flow | sends nothing |
| SUSPENDED | the session may be over without our knowing | sends nothing; keeps its flows |
| LOST | the session is over, and `owner` is gone or will be soon | drops all flows, joins anew |

The *lease* is a clock of our own: it runs for the session's time-out from the moment at which the last request was
*sent* that ZooKeeper answered. ZooKeeper cannot have ended the session before that. A process that was stopped finds
its lease expired before it finds anything else out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import xxhash
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from tidings.coordination import Coordination, encode
from tidings.flows import Flow


@dataclass(frozen=True, slots=True)
class Member:
    """A live publisher: its id, the streams it can read, and whether it gives its flows away."""

    id: str
    streams: frozenset[str]
    draining: bool = False


def plan_ownership(
    members: Collection[Member], flows: Collection[Flow], pins: Mapping[Flow, str] | None = None
) -> dict[Flow, str]:
    """Which publisher should own each flow; a flow that nobody can read is left out.

    An operator's pin wins while the pinned publisher is there and does not drain; otherwise the highest rendezvous hash
    does, so that a publisher which comes or goes moves its own flows and no others.

    >>> one = Member("p1", frozenset({"contacts"}))
    >>> plan_ownership([one], [Flow("cache", "contacts", 0)])
    {Flow(application='cache', stream='contacts', shard=0): 'p1'}
    """
    pins = pins or {}
    able = {stream: [member for member in members if stream in member.streams] for stream in {f.stream for f in flows}}
    target = {}
    for flow in flows:
        present = able[flow.stream]
        pinned = pins.get(flow)
        willing = [member.id for member in present if not member.draining]
        if pinned in willing:
            target[flow] = pinned
        elif willing:
            target[flow] = max(willing, key=lambda member: (_weight(member, flow), member))
    return target


def _weight(member: str, flow: Flow) -> int:
    return xxhash.xxh64_intdigest(f"{member}\0{flow}".encode())


class Ownership:
    """Takes and releases flows for one publisher, through one ZooKeeper session."""

    def __init__(self, coordination: Coordination, member: str) -> None:
        self._coordination = coordination
        self._member = member

    def take(self, flow: Flow, record: dict[str, Any]) -> int | None:
        """Become the owner and return the epoch, or None if the flow has an owner."""
        tree = self._coordination
        record = {"publisher": self._member, **record}
        with tree.speaking():
            if not tree.client.exists(tree.path(*flow.place, "epoch")):
                tree.create({}, *flow.place, "epoch")
            transaction = tree.client.transaction()
            transaction.set_data(tree.path(*flow.place, "epoch"), encode({}))
            transaction.create(tree.path(*flow.place, "owner"), encode(record), ephemeral=True)
            results = transaction.commit()
        failure = next((result for result in results if isinstance(result, KazooException)), None)
        if failure is None:
            return int(results[0].version)
        if any(isinstance(result, NodeExistsError | NoNodeError) for result in results):
            return None  # another one was first, or the application was dropped
        with tree.speaking():
            raise failure

    def release(self, flow: Flow, epoch: int) -> bool:
        """Stop being the owner; False if that was over already."""
        transaction = self._coordination.client.transaction()
        transaction.check(self._coordination.path(*flow.place, "epoch"), epoch)
        transaction.delete(self._coordination.path(*flow.place, "owner"))
        return self._done(transaction)

    def disown(self, flow: Flow) -> bool:
        """Delete an `owner` of this very session, which its taker knows nothing of; False if it is another's.

        So it is when ZooKeeper took the transaction, and the connection broke before the answer came. Only for flows
        that are not being sent.
        """
        path = self._coordination.path(*flow.place, "owner")
        with self._coordination.speaking():
            stat = self._coordination.client.exists(path)
            if stat is not None and stat.owner_session_id == self._coordination.client.client_id[0]:
                self._coordination.delete(*flow.place, "owner")
                return True
        return stat is None

    def write(self, flow: Flow, epoch: int, name: str, value: dict[str, Any]) -> bool:
        """Write one of the flow's nodes; False, and nothing changed, if the epoch is over."""
        tree = self._coordination
        path = tree.path(*flow.place, name)
        with tree.speaking():
            there = tree.client.exists(path)
        transaction = tree.client.transaction()
        transaction.check(tree.path(*flow.place, "epoch"), epoch)
        if there:
            transaction.set_data(path, encode(value))
        else:
            transaction.create(path, encode(value))
        return self._done(transaction)

    def _done(self, transaction: Any) -> bool:
        with self._coordination.speaking():
            results = transaction.commit()
            failures = [result for result in results if isinstance(result, KazooException)]
            if not failures:
                return True
            if any(isinstance(failure, BadVersionError | NoNodeError | NodeExistsError) for failure in failures):
                return False
            raise failures[0]
