"""Where a subscriber stands: how far its flows are from the end of their logs, as their publishers tell."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidings.applications import Application
from tidings.coordination.values import decode
from tidings.coordination.zookeeper import Coordination, Node
from tidings.flows import Flow
from tidings.positions import Position
from tidings.stream_definition import StreamDefinition, streams_by_name
from tidings.subscriber.workers import HeldFlow
from tidings.wire.protocol import Message, flow_message

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5  # before flows are asked for again
ANSWER_S = 2.0  # for a publisher to answer


class FlowStanding(NamedTuple):
    """Up to where a flow is processed, where its log ends, and how many updates are in between, if they are counted."""

    processed: Position
    head: Position
    lag: int | None


class StandingQuestions:
    """Asks the publishers of flows that are here, which `held` lists."""

    def __init__(self, held: Callable[[], Iterable[HeldFlow]]) -> None:
        self._held = held
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[Flow, FlowStanding]] = {}
        self._changed = threading.Condition()

    def ask(self, timeout: float) -> dict[Flow, FlowStanding]:
        """Where the flows stand that are here; those whose publisher does not answer in time are left out."""
        number, deadline = next(self._numbers), time.monotonic() + timeout
        with self._changed:
            answers = self._answers.setdefault(number, {})
        asked = {
            held.flow for held in self._held() if held.reply(flow_message("ask", held.flow, held.era, number=number))
        }
        with self._changed:
            self._changed.wait_for(lambda: asked <= answers.keys(), max(0.0, deadline - time.monotonic()))
            return self._answers.pop(number)

    def note(self, flow: Flow, message: Message) -> None:
        """A publisher has answered; ValueError, KeyError or TypeError if that makes no sense."""
        lag, places = message["lag"], (Position(*message["processed"]), Position(*message["head"]))
        standing = FlowStanding(*places, lag if type(lag) is int and lag >= 0 else None)
        with self._changed:
            if (answers := self._answers.get(message["number"])) is not None:
                answers[flow] = standing
                self._changed.notify_all()

    def catch_up(self, flows: Callable[[], set[Flow] | None], timeout: float) -> bool:
        """Wait until all is processed that logs hold now; False if it is not in time.

        `flows` tells which flows are to be here, or None while that is not settled.
        """
        deadline, pause = time.monotonic() + timeout, FIRST_PAUSE_S
        ends: dict[Flow, Position] = {}
        while True:
            stands = self.ask(max(0.0, min(ANSWER_S, deadline - time.monotonic())))
            for flow, one in stands.items():
                ends.setdefault(flow, one.head)
            settled = flows()
            if settled is not None and all(flow in stands and stands[flow].processed >= ends[flow] for flow in settled):
                return True
            if (left := deadline - time.monotonic()) <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE_S)


def flows_of(tree: Coordination, application: str, subscriber: str) -> set[Flow] | None:
    """The flows that ZooKeeper gives to a subscriber; None while there are flows of the application that nobody has."""
    defined = tree.read("applications", application)
    if defined is None:
        return None
    found = tree.read_many([("streams", name) for name in tree.children("streams")])
    values = [decode(tree.path("streams"), node.raw) for node in found if isinstance(node, Node)]
    streams = [StreamDefinition.from_json(value) for value in values if value is not None]
    shards = {stream.name: stream.shards for stream in streams}
    read = Application.from_json(defined).reads(streams_by_name(streams))
    flows = [Flow(application, stream, shard) for stream in read for shard in range(shards[stream])]
    own = set()
    for flow, node in zip(flows, tree.read_many([(*flow.place, "subscriber") for flow in flows]), strict=True):
        holder = decode(tree.path(*flow.place), node.raw) if isinstance(node, Node) else None
        if holder is None or "left" in holder:
            return None
        if holder.get("id") == subscriber:
            own.add(flow)
    return own
