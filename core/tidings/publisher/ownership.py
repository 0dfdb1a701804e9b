"""Who sends a flow: one publisher at a time, each with a larger epoch than the one before.

*Taking* a flow is one transaction: bump `epoch`, create `owner`, put a `datamarker` if the flow has none. `owner` is
ephemeral, so it goes with its session, and it cannot be created twice. The data version of `epoch` after the
transaction is the owner's epoch. Everything an owner writes afterwards checks that version in the same transaction: the
epoch is a fence, behind which an owner that was replaced changes nothing, however long it slept.

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

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xxhash
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from tidings.coordination.zookeeper import Coordination, decode, encode
from tidings.datamarkers import Datamarker
from tidings.errors import ForeignValue, TidingsError
from tidings.flows import NODES, Flow
from tidings.positions import Position

_READ = ("datamarker", "subscriber")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """A live publisher: its id, the streams it can read, and whether it gives its flows away.

    `ranks` says of streams how far down the list of their replicas is the one that it reads; 0 is the first choice.
    """

    id: str
    streams: frozenset[str]
    draining: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict, hash=False)


def plan_ownership(
    members: Collection[Member], flows: Collection[Flow], pins: Mapping[Flow, str] | None = None
) -> dict[Flow, str]:
    """Which publisher should own each flow; a flow that nobody can read is left out.

    An operator's pin wins while the pinned publisher is there and does not drain; otherwise, among those that read the
    preferred replica, the highest rendezvous hash does, so that a publisher which comes or goes moves its own flows and
    no others.

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
        able_now = [member for member in present if not member.draining]
        if pinned in [member.id for member in able_now]:
            target[flow] = pinned
        elif able_now:
            best = min(member.ranks.get(flow.stream, 0) for member in able_now)
            willing = [member.id for member in able_now if member.ranks.get(flow.stream, 0) == best]
            target[flow] = max(willing, key=lambda member: (_weight(member, flow), member))
    return target


def _weight(member: str, flow: Flow) -> int:
    return xxhash.xxh64_intdigest(f"{member}\0{flow}".encode())


class Wanted(NamedTuple):
    """A flow to be taken.

    `start` says where it goes on, given its datamarker, or begins, given None. That is written with the ownership: if
    we die before the first acknowledgement, the next owner must not start later. `defined` is the version of the
    application's definition; with a newer one the flow is not taken, but looked at again. `log` is the log's identity.
    """

    flow: Flow
    start: Callable[[Position | None], Position]
    defined: int = -1
    log: str | None = None


class Taken(NamedTuple):
    """A flow that was taken: its epoch, where it goes on, where it stood before, and which subscriber held it.

    `log` says in which log it stands there, if that is known.
    """

    epoch: int
    position: Position
    before: Position | None
    holder: str | None
    log: str | None = None


def _holder(path: str, value: dict[str, Any] | None) -> str | None:
    """The subscriber that had the flow; ForeignValue if somebody had it, and it cannot be told who."""
    if value is None:
        return None
    if not isinstance(value.get("id"), str):
        raise ForeignValue(f"what ZooKeeper holds at {path} names no subscriber: mend it, or delete it")
    return str(value["id"])


class Ownership:
    """Takes and releases flows for one publisher, through one ZooKeeper session."""

    def __init__(self, coordination: Coordination, member: str) -> None:
        self._coordination = coordination
        self._member = member
        self._complaints: dict[Flow, str] = {}

    def take(self, wanted: Sequence[Wanted], record: dict[str, Any]) -> list[Taken | None]:
        """Become the owner of flows, in one transaction each; None for one that has an owner, or cannot be served.

        All are asked for before the first answer is waited for: thousands of flows take a few round trips. None also
        for one whose answer did not come, though ZooKeeper may have taken the transaction: whoever takes it again finds
        an owner of this very session, and disowns it.
        """
        tree = self._coordination
        with tree.translating_errors():
            asked = [self._ask(one.flow) for one in wanted]
            found = [{name: tree.found(one) for name, one in each.items()} for each in asked]
            for parent in {one.flow.place[:-1] for one, there in zip(wanted, found, strict=True) if not there["place"]}:
                tree.create_path(*parent)
        begun = [self._begin(one, there, record) for one, there in zip(wanted, found, strict=True)]
        return [taken if pending is not None and self._certainly_done(pending) else None for taken, pending in begun]

    def _ask(self, flow: Flow) -> dict[str, Any]:
        tree = self._coordination
        place = {"place": tree.path(*flow.place)} | {name: tree.path(*flow.place, name) for name in NODES}
        return {name: tree.client.get_async(path) for name, path in place.items()}

    def _begin(self, wanted: Wanted, found: dict[str, Any], record: dict[str, Any]) -> tuple[Taken | None, Any]:
        """Begin the transaction; the epoch is known beforehand, because it fails if someone else is first."""
        flow, tree = wanted.flow, self._coordination
        place = {name: tree.path(*flow.place, name) for name in NODES}
        if found["owner"] and not self._disown(flow, found["owner"][1]):
            return None, None
        try:
            known, holder = (decode(place[name], found[name][0]) if found[name] else None for name in _READ)
            stood = Datamarker.from_json(known) if known is not None else None
            before = stood.position if stood else None
            position = wanted.start(before)
            held_by = _holder(place["subscriber"], holder)
        except Exception as error:  # noqa: BLE001 - whatever is in there, the other flows are taken
            complaint = str(error) if isinstance(error, TidingsError) else f"{type(error).__name__}: {error}"
            if self._complaints.get(flow) != complaint:  # it is tried again and again
                logger.warning("flow %s cannot be served: %s", flow, complaint)
            self._complaints[flow] = complaint
            return None, None
        self._complaints.pop(flow, None)
        epoch = found["epoch"][1].version + 1 if found["epoch"] else 1
        transaction = tree.client.transaction()
        transaction.check(tree.path("applications", flow.application), wanted.defined)
        if not found["place"]:
            transaction.create(tree.path(*flow.place), b"", tree.acl(*flow.place))
        rights = tree.acl(*flow.place, "epoch")  # as all nodes of a flow have
        if not found["epoch"]:
            transaction.create(place["epoch"], encode({}), rights)
        transaction.set_data(place["epoch"], encode({}), epoch - 1)
        transaction.create(place["owner"], encode({"publisher": self._member, **record}), rights, ephemeral=True)
        log = stood.log if stood and stood.log is not None and position == before else wanted.log
        marker = encode(Datamarker.now(position, epoch, log).to_json())
        if not found["datamarker"]:
            transaction.create(place["datamarker"], marker, rights)
        elif position != before:
            transaction.set_data(place["datamarker"], marker)
        if not found["subscriber"]:
            transaction.create(place["subscriber"], b"", rights)
        return Taken(epoch, position, before, held_by, log), transaction.commit_async()

    def release(self, flow: Flow, epoch: int) -> bool:
        """Stop being the owner; False if that was over already."""
        transaction = self._coordination.client.transaction()
        transaction.check(self._coordination.path(*flow.place, "epoch"), epoch)
        transaction.delete(self._coordination.path(*flow.place, "owner"))
        return self._done(transaction.commit_async())

    def write(self, flow: Flow, epoch: int, name: str, value: dict[str, Any]) -> bool:
        """Commit one of the flow's nodes; False, and nothing changed, if the epoch is over: the write is fenced."""
        return self.begin_write(flow, epoch, name, value)()

    def begin_write(self, flow: Flow, epoch: int, name: str, value: dict[str, Any]) -> Callable[[], bool]:
        """The same, begun: what is returned waits for the end of it."""
        transaction = self._coordination.client.transaction()
        transaction.check(self._coordination.path(*flow.place, "epoch"), epoch)
        transaction.set_data(self._coordination.path(*flow.place, name), encode(value))
        pending = transaction.commit_async()
        return lambda: self._done(pending)

    def _disown(self, flow: Flow, stat: Any) -> bool:
        """Delete an `owner` of this very session, which its taker knows nothing of; False if it is another's.

        So it is when ZooKeeper took the transaction, and the connection broke before the answer came. Only for flows
        that are not being sent.
        """
        if stat.owner_session_id != self._coordination.client.client_id[0]:
            return False
        self._coordination.delete(*flow.place, "owner")
        return True

    def _certainly_done(self, pending: Any) -> bool:
        try:
            return self._done(pending)
        except TidingsError as error:
            logger.info("a flow was perhaps taken: %s", error)
            return False

    def _done(self, pending: Any) -> bool:
        with self._coordination.translating_errors():
            results = self._coordination.wait(pending)
            failures = [result for result in results if isinstance(result, KazooException)]
            if not failures:
                return True
            if any(isinstance(failure, BadVersionError | NoNodeError | NodeExistsError) for failure in failures):
                return False
            raise failures[0]
