"""Sees to snapshots on demand: brings each request from one state to the next, as `snapshot_requests` has them.

One publisher does so for a stream, by the plan; if it is gone another goes on. Whatever two of them do at once, each
change of a request is made only if it is still as it was.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidings.coordination.zookeeper import Coordination
from tidings.datamarkers import Datamarker
from tidings.errors import TidingsError
from tidings.flows import Flow
from tidings.log_opening import containing_errors
from tidings.logs import SnapshotLog, SnapshotPlace
from tidings.positions import START
from tidings.publisher.ownership import Ownership
from tidings.publisher.plan import Plan
from tidings.publisher.pump import Pump
from tidings.publisher.reports import read_datamarkers
from tidings.snapshot_requests import CANCELLED, COMPLETE, FAILED, SnapshotRequest, change_request, read_request
from tidings.texts import counted

HOLD_INTERVAL_S = 0.2  # between two looks while flows are held
FOLLOW_INTERVAL_S = 1.0  # and while they come by the rows
TOLD_AFTER_S = 10.0  # for which flows are held without a word
HOLD_TIMEOUT_S = 60.0  # for which they are held at all, though the log could be read
MAX_ATTEMPTS = 10

logger = logging.getLogger(__name__)
Phase = tuple[str, str, int]
"""A stream, a request, and how often it was begun."""


class SnapshotTaker:
    """Sees to the snapshots that one publisher is to see to, in a thread of its own."""

    def __init__(
        self,
        coordination: Coordination,
        publisher: str,
        ownership: Ownership,
        pumps: Mapping[str, Pump],
        plan: Callable[[], Plan],
        may_send: Callable[[], bool],
    ) -> None:
        self.reports: dict[str, dict[str, Any]] = {}
        """What is to be told of the snapshots, by stream."""
        self._coordination = coordination
        self._publisher = publisher
        self._ownership = ownership
        self._pumps = pumps
        self._plan = plan
        self._may_send = may_send
        self._fenced: dict[Phase, dict[Flow, int]] = {}
        self._held_since: dict[Phase, float] = {}
        self._troubles: dict[str, str] = {}
        self._look = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidings-snapshots", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is another plan."""
        if self._plan().snapshots or self.reports:
            self._look.set()

    def close(self) -> None:
        """See to nothing any more; what is under way goes on with others."""
        self._closed.set()
        self._look.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._look.wait()
            self._look.clear()
            plan = self._plan()
            self._forget(plan)
            while plan.snapshots and not self._closed.is_set():
                pauses = [self._see_to(plan, stream) for stream in plan.snapshots]
                self._closed.wait(min(pauses, default=FOLLOW_INTERVAL_S))
                plan = self._plan()
                self._forget(plan)

    def _forget(self, plan: Plan) -> None:
        """Keep nothing of what has ended."""
        for stream in self.reports.keys() - plan.snapshots.keys():
            del self.reports[stream]
        for phase in [phase for phase in self._fenced if phase[0] not in plan.snapshots]:
            stream, request, _ = phase
            pump = self._pumps.get(stream)
            with contextlib.suppress(TidingsError), containing_errors(stream):  # else it is replaced by the next one
                if pump is not None and isinstance(pump.log, SnapshotLog):
                    pump.log.drop_snapshot(request)
            del self._fenced[phase]
            self._held_since.pop(phase, None)

    def _see_to(self, plan: Plan, stream: str) -> float:
        """Do what is to be done for a stream now; how long it has time."""
        pump = self._pumps.get(stream)
        if pump is None or not self._may_send():
            return FOLLOW_INTERVAL_S
        try:
            with containing_errors(stream):
                return self._advance(plan, stream, pump)
        except TidingsError as error:
            self._tell_trouble(stream, str(error))
            return FOLLOW_INTERVAL_S

    def _advance(self, plan: Plan, stream: str, pump: Pump) -> float:
        log, request = pump.log, read_request(self._coordination, stream)
        if request is None or request.ended or not isinstance(log, SnapshotLog):
            return FOLLOW_INTERVAL_S
        if request.cancelled:
            # Each publisher drops it, since another one than is meant to may still be taking it.
            if log.drop_snapshot(request.id) or request.place is None:
                self._change(stream, request, ended=CANCELLED)
                logger.info("the snapshot %s of stream %r is cancelled", request.id, stream)
            return HOLD_INTERVAL_S
        if plan.takers.get(stream) != self._publisher:
            self.reports.pop(stream, None)
            return FOLLOW_INTERVAL_S
        unknown = set(request.applications) - plan.applications.keys()
        if any(self._coordination.read("applications", name) for name in unknown):
            return HOLD_INTERVAL_S  # made after this plan, and its flows may be owned already
        flows = [
            flow
            for application, those in plan.flows.items()
            for flow in those
            if flow.stream == stream and application.name in request.applications
        ]
        if request.place is None:
            self._place(stream, pump, log, request, flows)
            return HOLD_INTERVAL_S
        self._follow(stream, log, request, request.place, flows)
        return FOLLOW_INTERVAL_S

    def _place(
        self, stream: str, pump: Pump, log: SnapshotLog, request: SnapshotRequest, flows: Sequence[Flow]
    ) -> None:
        """Find a place that no flow has passed, once nobody owns one."""
        phase = (stream, request.id, request.attempt)
        fenced = self._fenced.setdefault(phase, {})
        for flow in flows:
            if flow not in fenced and (epoch := self._ownership.fence(flow)) is not None:
                fenced[flow] = epoch
        owned = [flow for flow in flows if flow not in fenced]
        reason = log.snapshot_trouble()
        if reason is None and owned:
            reason = f"{counted(len(owned), 'flow is', 'flows are')} still owned by publishers, {owned[0]} among them"
        held_s = self._held_s(phase, pump)
        self._report(stream, request, trouble=reason if held_s > TOLD_AFTER_S else None)
        if held_s > TOLD_AFTER_S and reason is not None:
            self._tell_trouble(stream, reason)
        if held_s > HOLD_TIMEOUT_S:
            self._fail(stream, request, reason or "transactions that are open in the datastore do not end")
        if owned or held_s > HOLD_TIMEOUT_S:
            return
        markers = {
            flow: marker
            for flow, marker in read_datamarkers(self._coordination, flows).items()
            if marker.log in (None, pump.log_identity)
        }
        since = max((marker.position for marker in markers.values()), default=START)
        place = log.begin_snapshot(request.id, request.tables, since)
        if place is None:
            return
        for flow, marker in markers.items():
            # Between the two there is nothing in the log, so who stands there has not passed the rows.
            if marker.position > place.before:
                back = Datamarker.now(place.before, fenced[flow], marker.log)
                if not self._ownership.move_marker(flow, fenced[flow], marker, back):  # an operator may have reset it
                    del self._fenced[phase]
                    return
        if self._change(stream, request, place=place):
            logger.info(
                "the snapshot %s of stream %r, for %s, stands at %s",
                request.id,
                stream,
                ", ".join(request.applications),
                place.after,
            )

    def _held_s(self, phase: Phase, pump: Pump) -> float:
        """For how long flows have been held that could have been sent."""
        if pump.trouble is not None:
            self._held_since.pop(phase, None)
        return time.monotonic() - self._held_since.setdefault(phase, time.monotonic())

    def _fail(self, stream: str, request: SnapshotRequest, reason: str) -> None:
        """Give it up: the applications are not to wait for it."""
        if self._change(stream, request, ended=FAILED, reason=reason):
            logger.warning("the snapshot %s of stream %r is given up: %s", request.id, stream, reason)

    def _follow(
        self, stream: str, log: SnapshotLog, request: SnapshotRequest, place: SnapshotPlace, flows: Sequence[Flow]
    ) -> None:
        """See whether all rows are there, and every flow has come by them."""
        progress = log.snapshot_progress(request.id, place)
        if progress is None and request.attempt >= MAX_ATTEMPTS:
            reason = log.snapshot_trouble() or "its readers ended"
            self._fail(stream, request, f"it was interrupted {request.attempt} times, at last since {reason}")
            return
        if progress is None:
            if self._change(stream, request, place=None, attempt=request.attempt + 1):
                logger.warning("the snapshot %s of stream %r was interrupted, and begins anew", request.id, stream)
            return
        markers = read_datamarkers(self._coordination, flows)
        left = [flow for flow in flows if flow not in markers or markers[flow].position < place.after]
        self._report(stream, request, rows=progress.rows, read=progress.complete, flows_left=len(left))
        if progress.complete and not left and self._change(stream, request, ended=COMPLETE):
            applications = ", ".join(request.applications)
            logger.info("the snapshot %s of stream %r has come to %s", request.id, stream, applications)

    def _report(self, stream: str, request: SnapshotRequest, **told: Any) -> None:
        self.reports[stream] = {"id": request.id, **told}

    def _change(self, stream: str, request: SnapshotRequest, **changes: Any) -> bool:
        return change_request(self._coordination, stream, request, **changes)

    def _tell_trouble(self, stream: str, reason: str) -> None:
        if self._troubles.get(stream) != reason:
            logger.warning("the snapshot of stream %r waits: %s", stream, reason)
        self._troubles[stream] = reason
