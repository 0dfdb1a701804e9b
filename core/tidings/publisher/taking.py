"""Taking flows that should be ours, and letting go of those that we cannot send: thousands at once, each by its own
transaction."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import socket
from collections.abc import Callable, Sequence

from tidings.coordination.node_cache import NodeCache
from tidings.errors import TidingsError
from tidings.flows import NO_CONTROL, Flow
from tidings.log_opening import containing_errors
from tidings.positions import Position
from tidings.publisher.counters import PublisherCounters
from tidings.publisher.flow_session import FlowSession, SessionOptions
from tidings.publisher.ownership import Ownership, Taken, Wanted
from tidings.publisher.plan import Plan, reason_to_take, starting_position
from tidings.publisher.pump_set import PumpSet

BATCH_FLOWS = 1_000

logger = logging.getLogger(__name__)


class FlowTaker:
    """Takes flows for one publisher. `nodes` is what its plan was made from, and `owners` a cache of their owners.

    What is taken is handed to the pump of its stream.
    """

    def __init__(
        self,
        publisher: str,
        ownership: Ownership,
        pumps: PumpSet,
        options: SessionOptions,
        counters: PublisherCounters,
        *,
        nodes: NodeCache,
        owners: NodeCache,
    ) -> None:
        self._publisher = publisher
        self._ownership = ownership
        self._pumps = pumps
        self._options = options
        self._counters = counters
        self._nodes = nodes
        self._owners = owners
        self._given_up: dict[Flow, int] = {}

    def give_up(self, flow: Flow, epoch: int) -> None:
        """We do not send this flow any more: it is released by the next `release`."""
        self._given_up[flow] = epoch

    def release(self) -> None:
        """Let others have the flows that were given up; what fails is tried again."""
        given_up = dict(self._given_up)
        self._ownership.release_many(list(given_up.items()))
        for flow in given_up:
            del self._given_up[flow]

    def lost(self) -> None:
        """The session is over, and with it all that was owned."""
        self._given_up.clear()

    def take(self, wanted: Sequence[Flow], plan: Plan, on_taken: Callable[[str], None]) -> bool:
        """Become the owner of flows; False if one should be tried again, though nothing in ZooKeeper changes.

        One that has another owner is looked at again when that is gone, which the cache tells. One that is ours, and
        that we do not send, was taken by a transaction whose answer was lost.

        While ZooKeeper is at work for some of them, the next are prepared; and an application whose flows are all taken
        does not wait until those of the others are: `on_taken` is told its name.
        """
        owners = {flow: self._owners.cached(*flow.place, "owner") for flow in wanted}
        free = [flow for flow, owner in owners.items() if owner is None or owner.get("publisher") == self._publisher]
        free.sort(key=lambda flow: flow.application)
        whole = True
        batches = [free[at : at + BATCH_FLOWS] for at in range(0, len(free), BATCH_FLOWS)]
        finish: Callable[[], bool] = lambda: True  # noqa: E731 - until a batch was begun
        for before, batch in itertools.pairwise([[], *batches, []]):
            begun = self._begin(batch, plan) if batch else finish
            whole &= finish()
            finish = begun
            for name in {flow.application for flow in before} - {flow.application for flow in batch}:
                on_taken(name)
        return whole

    def _begin(self, flows: list[Flow], plan: Plan) -> Callable[[], bool]:
        """Begin to take some; what is returned waits for the end of it."""
        bounds, identities = {}, {}
        for stream in {flow.stream for flow in flows} & self._pumps.running.keys():
            try:
                with containing_errors(stream):
                    bounds[stream] = self._pumps.running[stream].look()
                    identities[stream] = self._pumps.running[stream].log_identity
            except TidingsError as error:
                self._pumps.give_up(stream, str(error))
                self.release()
        flows = [flow for flow in flows if flow.stream in bounds]

        def start(flow: Flow, before: Position | None) -> Position:
            pump, held = self._pumps.running[flow.stream], bounds[flow.stream][flow.shard]
            with containing_errors(flow.stream):
                return starting_position(plan.applications[flow.application], flow, pump.log, pump.tailed, held, before)

        wanted = [
            Wanted(
                flow,
                functools.partial(start, flow),
                self._nodes.version("applications", flow.application),
                identities[flow.stream],
                functools.partial(reason_to_take, plan, flow, self._publisher),
            )
            for flow in flows
        ]
        finish = self._ownership.begin_taking(wanted, {"host": socket.gethostname(), "pid": os.getpid()})
        return lambda: self._finish(flows, finish(), plan)

    def _finish(self, flows: Sequence[Flow], taken: Sequence[Taken | None], plan: Plan) -> bool:
        for flow, one in zip(flows, taken, strict=True):
            if one is not None:
                self._own(flow, one, plan)
        left = [flow for flow, one in zip(flows, taken, strict=True) if one is None]
        self._owners.fill([(*flow.place, "owner") for flow in left])
        owners = [self._owners.value(*flow.place, "owner") for flow in left]
        return all(owner is not None and owner.get("publisher") != self._publisher for owner in owners)

    def _own(self, flow: Flow, taken: Taken, plan: Plan) -> None:
        pump, application = self._pumps.running[flow.stream], plan.applications[flow.application]
        skipped = 0
        if application.mode == "realtime" and taken.before is not None:
            skipped = max(0, taken.position.seq - taken.before.seq)
        session = FlowSession(
            flow,
            taken.epoch,
            application,
            taken.position,
            pump.lock,
            self._options,
            holder=taken.holder,
            skipped=skipped,
            log_identity=taken.log,
            control=plan.controls.get(flow, NO_CONTROL),
            history=taken.history,
            counters=self._counters.of(flow),
            detour=taken.detour,
        )
        session.counters.taken += 1
        pump.add(session)
        logger.info("publisher %s owns %s, epoch %d, from %s", self._publisher, flow, taken.epoch, taken.position)
