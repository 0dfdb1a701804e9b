"""Who sends a flow: one publisher at a time, each with a larger epoch than the one before.

*Taking* a flow is one transaction: bump `epoch`, create `owner`, put a `datamarker` if the flow has none, or check that
it is the one that was read. `owner` is ephemeral, so it goes with its session, and it cannot be created twice. The data
version of `epoch` after the transaction is the owner's epoch. Everything an owner writes afterwards checks that version
in the same transaction: the epoch is a fence, behind which an owner that was replaced changes nothing, however long it
slept.

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

import contextlib
import datetime as dt
import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xxhash
from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from tidings.coordination.batch import commit_together
from tidings.coordination.values import decode, encode
from tidings.coordination.zookeeper import Coordination, Node
from tidings.datamarkers import Datamarker
from tidings.errors import CoordinationDenied, ForeignValue, TidingsError
from tidings.flows import HISTORY_ENTRIES, NODES, Flow
from tidings.positions import Position
from tidings.snapshot_requests import SnapshotRequest, read_requests

Finish = Callable[[], bool]
"""Waits for the end of a write; False if the epoch is over, and nothing was written."""
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
    staying = [member for member in members if not member.draining]
    able = {
        stream: {member.id: member for member in staying if stream in member.streams}
        for stream in {flow.stream for flow in flows}
    }
    willing = {stream: _willing(stream, present) for stream, present in able.items()}
    target = {}
    for flow in flows:
        pinned = pins.get(flow)
        if pinned is not None and pinned in able[flow.stream]:
            target[flow] = pinned
        elif first_choice := willing[flow.stream]:
            target[flow] = max(first_choice, key=lambda member: (_weight(member, flow), member))
    return target


def _willing(stream: str, able: Mapping[str, Member]) -> list[str]:
    """Those that read the preferred replica of a stream."""
    best = min((member.ranks.get(stream, 0) for member in able.values()), default=0)
    return [member.id for member in able.values() if member.ranks.get(stream, 0) == best]


def _weight(member: str, flow: Flow) -> int:
    return xxhash.xxh64_intdigest(f"{member}\0{flow}".encode())


class Wanted(NamedTuple):
    """A flow to be taken.

    `start` says where it goes on, given its datamarker, or begins, given None. That is written with the ownership: if
    we die before the first acknowledgement, the next owner must not start later. `defined` is the version of the
    application's definition; with a newer one the flow is not taken, but looked at again. `log` is the log's identity.
    `why` tells operators why it is taken, given who owned it before.
    """

    flow: Flow
    start: Callable[[Position | None], Position]
    defined: int = -1
    log: str | None = None
    why: Callable[[str | None], str] = lambda before: ""


class Taken(NamedTuple):
    """A flow that was taken: its epoch, where it goes on, where it stood before, and which subscriber held it.

    `log` says in which log it stands there, if that is known; `history` is what its subscribers have met with.
    `detour` is where it leaves the log for the rows of a snapshot on demand, if there is one.
    """

    epoch: int
    position: Position
    before: Position | None
    holder: str | None
    log: str | None = None
    history: Sequence[Mapping[str, Any]] = ()
    detour: Position | None = None


def entries(value: Mapping[str, Any] | None, name: str) -> tuple[Mapping[str, Any], ...]:
    """A history as ZooKeeper has it, the oldest first; what makes no sense is left out."""
    told = (value or {}).get(name)
    known = told if isinstance(told, list) else []
    return tuple(one for one in known if isinstance(one, Mapping))[-HISTORY_ENTRIES:]


def _holder(path: str, value: dict[str, Any] | None) -> str | None:
    """The subscriber that had the flow; ForeignValue if somebody had it, and it cannot be told who."""
    if value is None:
        return None
    if not isinstance(value.get("id"), str):
        raise ForeignValue(f"what ZooKeeper holds at {path} names no subscriber: mend it, or empty it")
    return str(value["id"])


class WriteBatch:
    """Writes of several flows that are begun together, by `commit`. Each is fenced by the epoch of its own flow."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._transactions: list[TransactionRequest] = []
        self._begun: list[Finish] = []

    def write(self, flow: Flow, epoch: int, name: str, value: dict[str, Any]) -> Finish:
        """Have one of the flow's nodes committed; what is returned waits for the end of it, once all were begun."""
        number = len(self._transactions)
        self._transactions.append(self._ownership.writing(flow, epoch, name, value))
        return lambda: self._begun[number]()

    def commit(self) -> None:
        """Begin them all."""
        self._begun = self._ownership.begin_all(self._transactions)


class Ownership:
    """Takes and releases flows for one publisher, through one ZooKeeper session."""

    def __init__(self, coordination: Coordination, member: str) -> None:
        self._coordination = coordination
        self._member = member
        self._complaints: dict[Flow, str] = {}

    def take(self, wanted: Sequence[Wanted], record: dict[str, Any]) -> list[Taken | None]:
        """Become the owner of flows, each in a transaction; None for one that has an owner, or cannot be served.

        Transactions of many flows are joined: thousands take a few round trips. None also for one whose answer did not
        come, though ZooKeeper may have taken the transaction: whoever takes it again finds an owner of this very
        session, and disowns it.
        """
        return self.begin_taking(wanted, record)()

    def begin_taking(self, wanted: Sequence[Wanted], record: dict[str, Any]) -> Callable[[], list[Taken | None]]:
        """The same, begun: what is returned waits for the end of it."""
        tree = self._coordination
        found = self._look(wanted)
        # After the epochs, so that one which was not made yet cannot have been overlooked: see `snapshot_requests`.
        requests = read_requests(tree, sorted({one.flow.stream for one in wanted}))
        begun = [
            self._begin(one, there, record, requests.get(one.flow.stream))
            for one, there in zip(wanted, found, strict=True)
        ]
        pending = commit_together(tree.client, [one[1] for one in begun if one is not None])

        def finish() -> list[Taken | None]:
            answers = iter(pending)
            return [one[0] if one is not None and self._certainly_done(next(answers)) else None for one in begun]

        return finish

    def _look(self, wanted: Sequence[Wanted]) -> list[dict[str, Any]]:
        """What is at the places of flows, and whether there are such places at all; the way to those is made."""
        tree = self._coordination
        parents = sorted({one.flow.place[:-1] for one in wanted})
        below = dict(zip(parents, tree.children_of_many(parents), strict=True))
        for parent in [parent for parent, names in below.items() if names is None]:
            tree.create_path(*parent)
        known = {parent: frozenset(names) if isinstance(names, list) else names for parent, names in below.items()}

        def is_there(flow: Flow) -> bool:
            names = known[flow.place[:-1]]  # one of which that may not be listed may have any
            return isinstance(names, CoordinationDenied) or (names is not None and flow.place[-1] in names)

        there = [is_there(one.flow) for one in wanted]
        places = [(*one.flow.place, name) for one, made in zip(wanted, there, strict=True) if made for name in NODES]
        read = iter(tree.read_many(places))
        return [{"place": made, **{name: next(read) if made else None for name in NODES}} for made in there]

    def _begin(
        self, wanted: Wanted, found: dict[str, Any], record: dict[str, Any], request: SnapshotRequest | None
    ) -> tuple[Taken, TransactionRequest] | None:
        """Make the transaction; the epoch is known beforehand, because it fails if someone else is first."""
        flow, tree = wanted.flow, self._coordination
        if request is not None and request.holds(flow.application):
            return None
        detour = request.detour(flow.application) if request is not None else None
        place = {name: tree.path(*flow.place, name) for name in NODES}
        if isinstance(found["owner"], Node) and not self._disown(flow, found["owner"].stat):
            return None
        try:
            for one in found.values():
                if isinstance(one, CoordinationDenied):
                    raise one
            known, holder = (decode(place[name], found[name].raw) if found[name] else None for name in _READ)
            stood = Datamarker.from_json(known) if known is not None else None
            before = stood.position if stood else None
            position = wanted.start(before)
            if before is None and detour is not None:
                position = min(position, detour)  # who has read nothing yet is not to begin after these rows
            held_by = _holder(place["subscriber"], holder)
        except Exception as error:  # noqa: BLE001 - whatever is in there, the other flows are taken
            complaint = str(error) if isinstance(error, TidingsError) else f"{type(error).__name__}: {error}"
            if self._complaints.get(flow) != complaint:  # it is tried again and again
                logger.warning("flow %s cannot be served: %s", flow, complaint)
            self._complaints[flow] = complaint
            return None
        self._complaints.pop(flow, None)
        epoch = found["epoch"].stat.version + 1 if found["epoch"] else 1
        owners = self._owners(place["epoch"], found["epoch"], {"epoch": epoch, **record}, wanted.why)
        transaction = tree.client.transaction()
        transaction.check(tree.path("applications", flow.application), wanted.defined)
        if not found["place"]:
            transaction.create(tree.path(*flow.place), b"", tree.acl(*flow.place))
        rights = tree.acl(*flow.place, "epoch")  # as all nodes of a flow have
        if not found["epoch"]:
            transaction.create(place["epoch"], encode({}), rights)
        transaction.set_data(place["epoch"], encode({"owners": owners}), epoch - 1)
        transaction.create(place["owner"], encode({"publisher": self._member, **record}), rights, ephemeral=True)
        log = stood.log if stood and stood.log is not None and position == before else wanted.log
        marker = encode(Datamarker.now(position, epoch, log).to_json())
        if not found["datamarker"]:
            transaction.create(place["datamarker"], marker, rights)
        elif position != before:
            transaction.set_data(place["datamarker"], marker, found["datamarker"].stat.version)
        else:  # whoever resets it at this moment is not overwritten by who knows nothing of that
            transaction.check(place["datamarker"], found["datamarker"].stat.version)
        if not found["subscriber"]:
            transaction.create(place["subscriber"], b"", rights)
        history = entries(holder, "history")
        return Taken(epoch, position, before, held_by, log, history, detour), transaction

    def _owners(
        self, path: str, node: tuple[bytes, Any] | None, record: dict[str, Any], why: Callable[[str | None], str]
    ) -> list[Mapping[str, Any]]:
        """The last owners of a flow, and with them the one that takes it now."""
        known: tuple[Mapping[str, Any], ...] = ()
        with contextlib.suppress(ForeignValue):  # what was there is history
            known = entries(decode(path, node[0]) if node else None, "owners")
        before = known[-1].get("publisher") if known else None
        reason = why(before if isinstance(before, str) else None)
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        entry = {"time": now, "publisher": self._member, **record, "reason": reason}
        return [*known, entry][-HISTORY_ENTRIES:]

    def fence(self, flow: Flow) -> int | None:
        """Raise the epoch of a flow that nobody owns, so that who is about to take it has to look again.

        The new epoch, by which its nodes can be written as long as nobody takes it; None if it has an owner.
        """
        tree = self._coordination
        tree.create({}, *flow.place, "epoch")
        with tree.translating_errors():
            epoch, owner = (tree.client.get_async(tree.path(*flow.place, name)) for name in ("epoch", "owner"))
            known = tree.found(epoch)
            if known is None or tree.found(owner) is not None:
                return None
            raised = tree.client.transaction()
            raised.set_data(tree.path(*flow.place, "epoch"), known[0], known[1].version)
            return known[1].version + 1 if self._done(raised.commit_async()) else None

    def release(self, flow: Flow, epoch: int) -> bool:
        """Stop being the owner; False if that was over already."""
        return self.release_many([(flow, epoch)])[0]

    def release_many(self, owned: Sequence[tuple[Flow, int]]) -> list[bool]:
        """Stop being the owner of flows, in these epochs; False for one of which that was over already."""
        releasing = [self._releasing(flow, epoch) for flow, epoch in owned]
        return [self._done(one) for one in commit_together(self._coordination.client, releasing)]

    def _releasing(self, flow: Flow, epoch: int) -> TransactionRequest:
        transaction = self._coordination.client.transaction()
        transaction.check(self._coordination.path(*flow.place, "epoch"), epoch)
        transaction.delete(self._coordination.path(*flow.place, "owner"))
        return transaction

    def write(self, flow: Flow, epoch: int, name: str, value: dict[str, Any]) -> bool:
        """Commit one of the flow's nodes; False, and nothing changed, if the epoch is over: the write is fenced."""
        return self.begin_write(flow, epoch, name, value)()

    def move_marker(self, flow: Flow, epoch: int, before: Datamarker, after: Datamarker) -> bool:
        """Put a datamarker in the place of another; False, and nothing changed, if that is not there any more, too."""
        (node,) = self._coordination.read_many([(*flow.place, "datamarker")])
        known = decode(self._coordination.path(*flow.place), node.raw) if isinstance(node, Node) else None
        if not isinstance(node, Node) or known is None or Datamarker.from_json(known) != before:
            return False
        moving = self.writing(flow, epoch, "datamarker", after.to_json(), node.stat.version)
        return self.begin_all([moving])[0]()

    def begin_write(self, flow: Flow, epoch: int, name: str, value: dict[str, Any]) -> Finish:
        """The same, begun: what is returned waits for the end of it."""
        batch = self.batch()
        finish = batch.write(flow, epoch, name, value)
        batch.commit()
        return finish

    def batch(self) -> WriteBatch:
        """For writes of many flows, which are begun together."""
        return WriteBatch(self)

    def writing(
        self, flow: Flow, epoch: int, name: str, value: dict[str, Any], version: int = -1
    ) -> TransactionRequest:
        """The transaction that commits one of the flow's nodes, if it is of this version, or of any."""
        transaction = self._coordination.client.transaction()
        transaction.check(self._coordination.path(*flow.place, "epoch"), epoch)
        transaction.set_data(self._coordination.path(*flow.place, name), encode(value), version)
        return transaction

    def begin_all(self, transactions: Sequence[TransactionRequest]) -> list[Finish]:
        """Begin to commit; what is returned waits for each."""
        pending = commit_together(self._coordination.client, transactions)
        return [functools.partial(self._done, one) for one in pending]

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
