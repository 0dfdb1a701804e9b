"""Resetting flows: an operator says where they go on, in the words that Kafka's tool has for it.

`plan_reset` only reads: it says of each flow where it stands, where it would stand, and what that would mean.
`execute_reset` does what was planned, in one transaction a flow, which checks that nobody has taken the flow or written
its datamarker since. So a plan that is older than what it was made from changes nothing.
"""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)

from tidings.audit import of_each, recorded
from tidings.config.units import parse_duration
from tidings.coordination.values import encode
from tidings.datamarkers import Datamarker
from tidings.errors import FlowOwned, InvalidOption, PlanOutdated, TidingsError
from tidings.flow_status import FlowRecord, check_flow, records_of
from tidings.flows import Flow
from tidings.log_opening import identity_of
from tidings.log_reading import positions_at
from tidings.logs import Log, TailedLog, WritableLog
from tidings.positions import Bounds, Position
from tidings.texts import counted

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue

ResetKind = Literal["earliest", "latest", "current", "datetime", "by-duration", "shift-by", "position", "file"]
COLUMNS = ("application", "stream", "shard", "position", "log")
"""Of an exported plan; the last may be left out. It says in which log the position is, if that can be told."""


class FilePosition(NamedTuple):
    """Where a file has a flow go on, and in which log that is, if it says so."""

    position: Position
    log: str | None = None


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where flows are to go on. Made by `parse`, or `from_file`."""

    kind: ResetKind
    time: dt.datetime | None = None
    shift: int = 0
    position: Position | None = None
    positions: Mapping[Flow, FilePosition] | None = None

    @classmethod
    def parse(cls, kind: str, value: str | None = None, *, now: dt.datetime | None = None) -> ResetTarget:
        """The target of this kind, with its value as people write it. A time without a zone is one of UTC.

        >>> ResetTarget.parse("datetime", "2026-01-01T12:00:00+02:00").time
        datetime.datetime(2026, 1, 1, 12, 0, tzinfo=datetime.timezone(datetime.timedelta(seconds=7200)))
        >>> ResetTarget.parse("shift-by", "-10").shift
        -10
        """
        match kind, value:
            case (("earliest" | "latest" | "current"), None):
                return cls(kind)
            case "datetime", str():
                return cls(kind, time=_time(value))
            case "by-duration", str():
                return cls(kind, time=_earlier(now or dt.datetime.now(dt.UTC), parse_duration(value)))
            case "shift-by", str():
                return cls(kind, shift=_number(value))
            case "position", str():
                return cls(kind, position=Position.parse(value))
        kinds = ", ".join(one for one in get_args(ResetKind) if one != "file")
        if kind not in get_args(ResetKind) or kind == "file":
            raise InvalidOption(f"{kind!r} is nothing that a flow can be reset to; it is one of {kinds}")
        raise InvalidOption(f"a reset to {kind!r} {'takes no value' if value is not None else 'needs a value'}")

    @classmethod
    def from_file(cls, text: str) -> ResetTarget:
        """The positions that an exported plan names, with or without its header."""
        return cls("file", positions=dict(_rows(text)))


@dataclass(frozen=True, slots=True)
class PlannedReset:
    """What is to become of one flow, and what that was planned from.

    `epoch` and `marker_version` are None where ZooKeeper had nothing. `held_by` says who owns the flow, if somebody
    does: then it cannot be executed. `log` tells in which log `after` is.
    """

    flow: Flow
    before: Position | None
    after: Position
    epoch: int | None = None
    marker_version: int | None = None
    log: str | None = None
    held_by: str | None = None
    warnings: tuple[str, ...] = ()


class ResetDone(NamedTuple):
    """What has become of one flow: where it stood, and where ZooKeeper says that it stands now; or why not."""

    flow: Flow
    before: Position | None
    after: Position | None
    error: str | None = None


def plan_reset(cluster: Catalogue, flows: Sequence[Flow], target: ResetTarget) -> list[PlannedReset]:
    """What a reset of these flows would do; for a file, of the flows that it names. Nothing is changed.

    `InvalidOption` if it cannot be: a position after the end of the log, a flow that has none, a log that cannot count.
    """
    chosen = list(target.positions or ()) if target.kind == "file" else list(flows)
    if target.kind == "file":
        for flow in chosen:
            check_flow(cluster, flow)
    records = records_of(cluster, chosen)
    planned: list[PlannedReset] = []
    for stream in dict.fromkeys(flow.stream for flow in chosen):
        known = cluster.stream(stream)
        with contextlib.closing(known.log) as log:
            aim = _Aim(log, identity_of(log, known.definition), target)
            planned += [aim.plan(flow, records[flow]) for flow in chosen if flow.stream == stream]
    for name in dict.fromkeys(flow.application for flow in chosen):
        application = cluster.application(name)
        if application.mode == "realtime" and application.max_age is None:
            raise InvalidOption(
                f"application {name!r} is realtime, and begins at the head whatever its datamarkers say"
            )
    order = {flow: number for number, flow in enumerate(chosen)}
    return sorted(planned, key=lambda one: order[one.flow])


def execute_reset(cluster: Catalogue, plan: Sequence[PlannedReset]) -> list[ResetDone]:
    """Write what was planned, and read it back; a flow that somebody takes meanwhile is left alone, and says so.

    `FlowOwned` if one of the flows is owned, `PlanOutdated` if it was owned or acknowledged since the plan was made;
    then nothing is written at all.
    """
    check_plan(plan, records_of(cluster, [one.flow for one in plan]))
    before = {one.flow: one.before and one.before.to_json() for one in plan}
    after = {one.flow: one.after.to_json() for one in plan}
    with recorded(cluster.coordination, "flows reset", before, before=of_each(before), after=of_each(after)) as entry:
        done = _execute(cluster, plan)
        if left := [one for one in done if one.error]:
            count = f"{len(left):,} of {counted(len(done), 'flow')}"
            entry.problem = f"{count} could not be reset: {left[0].flow}: {left[0].error}"
    return done


def _execute(cluster: Catalogue, plan: Sequence[PlannedReset]) -> list[ResetDone]:
    tree = cluster.coordination
    with tree.translating_errors():
        for place in dict.fromkeys(one.flow.place for one in plan if one.marker_version is None):
            tree.create_path(*place)
        begun = [(one, _begin(cluster, one)) for one in plan]
        failed = [_came_too_late(tree.wait(pending)) for _, pending in begun]
    now = records_of(cluster, [one.flow for one in plan])
    return [_done(one, now[one.flow], lost) for one, lost in zip(plan, failed, strict=True)]


def _came_too_late(results: Sequence[Any]) -> bool:
    """Whether a transaction was refused because something has changed; any other failure is raised."""
    failures = [result for result in results if isinstance(result, KazooException)]
    if failures and not any(isinstance(one, BadVersionError | NodeExistsError | NoNodeError) for one in failures):
        # Of those that were undone with it nothing is to be told.
        raise next(
            (one for one in failures if not isinstance(one, RolledBackError | RuntimeInconsistency)), failures[0]
        )
    return bool(failures)


def check_plan(plan: Sequence[PlannedReset], now: Mapping[Flow, FlowRecord]) -> None:
    """Raise unless the flows are as they were when the plan was made, and nobody owns them."""
    owned = {one.flow: held for one in plan if (held := holder_of(now[one.flow]))}
    if owned:
        flow, held = next(iter(owned.items()))
        more = f" (the first of {len(owned):,} that are owned)" if len(owned) > 1 else ""
        raise FlowOwned(f"flow {flow} is owned by {held}{more}: stop it first, by `tidings flows stop`")
    for one in plan:
        record = now[one.flow]
        if (record.epoch, record.marker_version) != (one.epoch, one.marker_version):
            raise PlanOutdated(f"flow {one.flow} was owned or acknowledged since the plan was made: make it again")


def holder_of(record: FlowRecord) -> str | None:
    """Who has a flow: its publisher, and the subscriber that gets it; None if nobody owns it."""
    if not record.owner:
        return None
    owner = f"publisher {record.owner.get('publisher')!r}"
    place = [f"{key} {record.owner[key]}" for key in ("host", "pid") if record.owner.get(key) is not None]
    held = record.holder is not None and record.holder.epoch == record.epoch
    subscriber = f", for subscriber {record.holder.id!r}" if held and record.holder else ""
    where = f" ({', '.join(place)})" if place else ""
    return f"{owner}{where}{subscriber}"


def to_csv(plan: Iterable[PlannedReset]) -> str:
    """The plan as a file that `ResetTarget.from_file` takes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([*one.flow, str(one.after), one.log or ""] for one in plan)
    return out.getvalue()


class _Aim:
    """Finds where flows would stand in one log."""

    def __init__(self, log: Log, identity: str | None, target: ResetTarget) -> None:
        self._log = log
        self._identity = identity
        self._target = target
        self._bounds = log.bounds()
        self._found: dict[int, Position] = {}

    def plan(self, flow: Flow, record: FlowRecord) -> PlannedReset:
        """What is to become of a flow."""
        if record.problem:
            raise InvalidOption(f"flow {flow} cannot be reset: {record.problem}")
        marker, held = record.datamarker, self._bounds[flow.shard]
        elsewhere = marker is not None and not marker.stands_in(self._identity)
        base = None if marker is None or elsewhere else marker.position
        after = self._after(flow, base, held)
        # One that stands in a log which was there before this one would begin with the first that this one holds.
        warnings = list(self._warnings(flow, held.floor if elsewhere else base, after, held))
        if elsewhere:
            warnings.insert(0, "its datamarker is of another log, which was there before this one")
        before = marker.position if marker else None
        planned = PlannedReset(flow, before, after, record.epoch, record.marker_version, self._identity)
        return replace(planned, held_by=holder_of(record), warnings=tuple(warnings))

    def _after(self, flow: Flow, base: Position | None, held: Bounds) -> Position:
        target, shard = self._target, flow.shard
        if target.kind == "earliest":
            return self._log.earliest() if isinstance(self._log, TailedLog) else held.floor
        if target.kind == "latest":
            return held.head
        if target.time is not None:
            if shard not in self._found:
                self._found[shard] = positions_at(self._log, shard, target.time)
            return self._found[shard]
        if target.kind in ("current", "shift-by"):
            if base is None:
                raise InvalidOption(f"flow {flow} has no datamarker in this log, so there is no {target.kind} of it")
            return base if target.kind == "current" else self._shifted(base, held)
        wanted = target.position
        if target.positions is not None:
            wanted, log = target.positions[flow]
            if None not in (log, self._identity) and log != self._identity:
                raise PlanOutdated(
                    f"the file names a position of flow {flow} in a log that was there before this one: make it again"
                )
        assert wanted is not None
        if wanted > held.head:
            raise InvalidOption(f"flow {flow} cannot go on at {wanted}: the log ends at {held.head}")
        return wanted

    def _shifted(self, base: Position, held: Bounds) -> Position:
        if not isinstance(self._log, WritableLog):
            raise InvalidOption("positions in a database's own log cannot be counted: reset to a time, or a position")
        return Position(min(held.head.seq, max(held.floor.seq, _seq(base) + self._target.shift)))

    def _warnings(self, flow: Flow, base: Position | None, after: Position, held: Bounds) -> Iterator[str]:
        """What an operator should know before it is done."""
        if isinstance(self._log, TailedLog) and self._log.aside(after):
            yield "it begins with a snapshot of its own"
            return
        if after < held.floor:
            yield f"what comes after {after} up to {held.floor} is not held any more: it hears on_data_loss"
        if base is None:
            return
        if not isinstance(self._log, WritableLog):
            if after != base:
                yield "updates are sent again" if after < base else "updates are left out"
            return
        if self._target.kind == "shift-by" and _seq(after) - _seq(base) != self._target.shift:
            empty = held.floor == held.head
            yield "the log holds nothing of this shard" if empty else f"the log holds {held.floor} to {held.head} only"
        if after < base:
            again = min(_seq(base), held.head.seq) - max(_seq(after), held.floor.seq)
            yield f"{counted(max(0, again), 'update is', 'updates are')} sent again"
            if _seq(base) > held.head.seq:  # which was restored
                gone = counted(_seq(base) - max(held.head.seq, _seq(after)), "update")
                yield f"{gone} that it has had cannot be sent again: the log ends at {held.head}"
        elif after > base:
            out = max(0, _seq(after) - max(_seq(base), held.floor.seq))
            yield f"{counted(out, 'update is', 'updates are')} left out"


def _seq(position: Position) -> int:
    """The last seq that was processed, in a log of ours: Position(7, -1) stands before the update 7."""
    return position.seq - (position.index < 0)


def _begin(cluster: Catalogue, one: PlannedReset) -> Any:
    tree = cluster.coordination
    path = tree.path(*one.flow.place, "datamarker")
    marker = encode(Datamarker.now(one.after, one.epoch or 0, one.log).to_json())
    transaction = tree.client.transaction()
    if one.epoch is not None:
        transaction.check(tree.path(*one.flow.place, "epoch"), one.epoch)
    if one.marker_version is None:  # who takes it first makes one, too, and is not overwritten
        transaction.create(path, marker, tree.acl(*one.flow.place, "datamarker"))
    else:
        transaction.set_data(path, marker, one.marker_version)
    return transaction.commit_async()


def _done(one: PlannedReset, now: FlowRecord, lost: bool) -> ResetDone:
    after = now.datamarker.position if now.datamarker else None
    if lost:
        return ResetDone(one.flow, one.before, after, "it was taken or acknowledged at that moment, and is left alone")
    if after != one.after and now.epoch == one.epoch:
        return ResetDone(one.flow, one.before, after, f"ZooKeeper does not say {one.after} after it was written")
    return ResetDone(one.flow, one.before, after)


def _rows(text: str) -> Iterator[tuple[Flow, FilePosition]]:
    seen: set[Flow] = set()
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and tuple(cells) in (COLUMNS, COLUMNS[:-1])):
            continue
        try:
            application, stream, shard, position, log = cells if len(cells) == len(COLUMNS) else [*cells, ""]
            flow, at = Flow(application, stream, int(shard)), FilePosition(Position.parse(position), log or None)
        except (ValueError, TidingsError):
            raise InvalidOption(f"line {number} is no line of a plan: write {','.join(COLUMNS)}") from None
        if flow in seen or flow.shard < 0:
            raise InvalidOption(f"line {number} names flow {flow} {'twice' if flow in seen else ', which cannot be'}")
        seen.add(flow)
        yield flow, at
    if not seen:
        raise InvalidOption("the file names no flow")


def _time(text: str) -> dt.datetime:
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(f"{text!r} is no time: write ISO 8601, as in 2026-01-01T12:00:00+02:00") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)


def _earlier(now: dt.datetime, seconds: int) -> dt.datetime:
    try:
        return now - dt.timedelta(seconds=seconds)
    except OverflowError:
        raise InvalidOption(f"{seconds:,} seconds ago there was no time that can be told") from None


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidOption(f"{text!r} is no number of updates: write +10 or -10") from None
