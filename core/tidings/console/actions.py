"""What operators do: an action is previewed, which makes a plan, and the plan is executed, once and soon.

A plan knows what it was made from. If that has changed meanwhile, nothing is done, and it has to be made again.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidings.audit import acting_as
from tidings.console import flow_actions, position_actions
from tidings.console.flow_actions import ActionPreview, ActionRequest
from tidings.console.reader import ClusterReader
from tidings.console.sign_in import SignedIn
from tidings.errors import InvalidOption, PlanOutdated
from tidings.flows import Flow

if TYPE_CHECKING:
    from tidings.cluster import Cluster

MAX_FLOWS = 10_000  # of one action
MAX_PLANS = 200

OF_FLOWS: dict[str, Callable[[ActionRequest], ActionPreview]] = {
    "move": flow_actions.move,
    "unpin": flow_actions.unpin,
    "pause": flow_actions.pause,
    "resume": flow_actions.resume,
    "stop": flow_actions.stop,
    "reset": position_actions.reset,
    "skip": position_actions.skip,
}
OF_PUBLISHERS: dict[str, Callable[[ActionRequest], ActionPreview]] = {
    "drain": flow_actions.drain,
    "undrain": flow_actions.undrain,
}


@dataclass(frozen=True)
class ActionPlan:
    """What is to be done, in which sign-in, and until when."""

    session: str = field(repr=False)
    until: float
    execute: Callable[[], dict[str, Any]]


class Actions:
    """Makes plans and executes them. May be used from any thread."""

    def __init__(
        self, cluster: Cluster, reader: ClusterReader, plan_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._plan_s = plan_s
        self._clock = clock
        self._plans: dict[str, ActionPlan] = {}
        self._lock = threading.Lock()

    def preview(self, session: SignedIn, body: Mapping[str, Any]) -> dict[str, Any]:
        """What an action would change, and the plan by which it is executed."""
        action, parameters = body.get("action"), body.get("parameters") or {}
        if not isinstance(parameters, Mapping):
            raise InvalidOption("the parameters of an action are a JSON object")
        known = {**OF_FLOWS, **OF_PUBLISHERS}
        if not isinstance(action, str) or action not in known:
            raise InvalidOption(f"{str(action)[:40]!r} is no action; the actions are {', '.join(known)}")
        flows = self._chosen(body.get("flows"), parameters) if action in OF_FLOWS else ()
        found = known[action](ActionRequest(self._cluster, self._reader.view, flows, parameters))
        plan = ActionPlan(session.key, self._clock() + self._plan_s, found.execute)
        return {"plan": self._keep(plan), **found.to_json()}

    def execute(self, session: SignedIn, key: Any, remote: str) -> dict[str, Any]:
        """Do what a plan says; what was done, and what could not be."""
        with self._lock:
            plan = self._plans.get(key) if isinstance(key, str) else None
            if plan is None or plan.session != session.key or plan.until < self._clock():
                raise PlanOutdated("the plan is too old, or was executed already: preview it again")
            del self._plans[key]
        with acting_as(f"{session.user.name} at {remote}", "tidings console"):
            return plan.execute()

    def _chosen(self, named: Any, parameters: Mapping[str, Any]) -> Sequence[Flow]:
        """The flows that are named; if none is, all of an application, and of a stream."""
        known = self._reader.view.by_flow
        if isinstance(named, list) and named:
            found = [_flow(one) for one in named[: MAX_FLOWS + 1]]
            for one in found:
                if one not in known:
                    raise InvalidOption(f"there is no flow {str(one)!r}")
        else:
            application, stream = parameters.get("application"), parameters.get("stream")
            if not isinstance(application, str):
                raise InvalidOption("this action needs flows, or an application whose flows are meant")
            found = [one for one in known if one.application == application and stream in (None, "", one.stream)]
        if not 0 < len(found) <= MAX_FLOWS:
            raise InvalidOption(f"an action is for 1 to {MAX_FLOWS:,} flows, not {len(found):,}")
        return tuple(dict.fromkeys(found))

    def _keep(self, plan: ActionPlan) -> str:
        key = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            self._plans = {one: kept for one, kept in self._plans.items() if kept.until >= now}
            while len(self._plans) >= MAX_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan
        return key


def _flow(text: Any) -> Flow:
    parts = text.split("/") if isinstance(text, str) else []
    if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdecimal() and len(parts[2]) < 6):
        raise InvalidOption(f"{str(text)[:80]!r} is no flow; write app/stream/shard")
    return Flow(parts[0], parts[1], int(parts[2]))
