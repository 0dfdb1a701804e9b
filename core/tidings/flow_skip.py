"""Skipping one update of a flow, which its subscriber fails at: an operator's word, by which publishers leave it out.

Nothing else changes: updates before it that were not acknowledged yet are sent as ever, and so are those after it. A
flow that failed is tried again by its publisher as soon as the word is there.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidings.controls import say
from tidings.errors import InvalidOption, PlanOutdated
from tidings.flow_status import FlowRecord, records_of
from tidings.flows import MAX_SKIPS, Flow, FlowControl
from tidings.log_lookup import row_from
from tidings.log_opening import identity_of
from tidings.logs import Log
from tidings.positions import Position
from tidings.updates import TOMBSTONE, Update, to_updates

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class PlannedSkip:
    """The update that is to be left out of a flow."""

    flow: Flow
    position: Position
    update: Update
    log: str | None = None
    """The identity of the log in which that position is."""
    failed: str | None = None
    """Why the flow has failed at it, if it has."""


def plan_skip(cluster: Catalogue, flow: Flow, position: Position | None = None) -> PlannedSkip:
    """The update that a skip would leave out: the one at this position, or else the one that the flow failed at.

    `InvalidOption` if there is none, if it is acknowledged already, or if the filter leaves it out anyway.
    """
    (record,) = records_of(cluster, [flow]).values()
    at = _failed_at(flow, record) if position is None else position
    stream = cluster.stream(flow.stream)
    with contextlib.closing(stream.log) as log:
        identity = identity_of(log, stream.definition)
        marker = _marker(record, identity)
        if marker is not None and at <= marker:
            raise InvalidOption(f"flow {flow} has acknowledged {at} already: its datamarker is {marker}")
        update = _read(log, flow, at, cluster)
    holder = record.holder
    return PlannedSkip(flow, at, update, identity, holder.failed if holder and holder.failed_at == at else None)


def execute_skip(cluster: Catalogue, plan: PlannedSkip) -> bool:
    """Have the update left out; False if that was said before. `PlanOutdated` if it is acknowledged by now.

    What was skipped and is acknowledged is forgotten.
    """
    (record,) = records_of(cluster, [plan.flow]).values()
    marker = _marker(record, plan.log)
    if marker is not None and plan.position <= marker:
        raise PlanOutdated(f"flow {plan.flow} has acknowledged {plan.position} since: there is nothing to skip")

    def change(flow: Flow, said: FlowControl) -> FlowControl:
        known = said.skipped_in(plan.log)
        ahead = {one for one in known if marker is None or one > marker} | {plan.position}
        if len(ahead) > MAX_SKIPS:
            raise InvalidOption(f"flow {flow} skips {MAX_SKIPS} updates already: stop it, and reset it after them")
        return replace(said, skip=frozenset(ahead), skip_log=plan.log) if plan.position not in known else said

    return bool(say(cluster, [plan.flow], change, action="flows skip"))


def _failed_at(flow: Flow, record: FlowRecord) -> Position:
    if record.holder is None or record.holder.failed_at is None:
        raise InvalidOption(f"it is not known at which update flow {flow} failed, if it did: name it by --position")
    return record.holder.failed_at


def _marker(record: FlowRecord, log: str | None) -> Position | None:
    """Where a flow stands in the log of this identity; None if it does not, or stood in one that was there before."""
    marker = record.datamarker
    return marker.position if marker is not None and marker.stands_in(log) else None


def _read(log: Log, flow: Flow, at: Position, cluster: Catalogue) -> Update:
    rows = row_from(log, flow.shard, at)
    found = to_updates(rows) if rows is not None else []
    if rows is None or not found or found[0].position != at or found[0].kind == TOMBSTONE:
        raise InvalidOption(f"there is no update at {at} in shard {flow.shard} of stream {flow.stream!r}")
    application = cluster.application(flow.application)
    if not application.parsed_filter().mask(rows)[0].as_py():
        raise InvalidOption(f"the filter of application {flow.application!r} leaves the update at {at} out anyway")
    return found[0]
