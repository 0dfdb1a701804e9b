"""The actions there are: each says what it would change, and remembers how to do just that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidings import controls
from tidings.console.cluster_view import ClusterView
from tidings.console.flow_map import publisher_state
from tidings.errors import InvalidOption, PlanOutdated
from tidings.flow_status import FlowRecord, records_of
from tidings.flows import DRAINS, Flow, FlowControl

if TYPE_CHECKING:
    from tidings.cluster import Cluster

SHOWN_CHANGES = 1000

Answer = dict[str, Any]


@dataclass(frozen=True)
class ActionPreview:
    """What an action would change; `execute` does it, or raises `PlanOutdated` if things are not as they were."""

    title: str
    changes: Sequence[Answer]
    execute: Callable[[], Answer]
    warnings: Sequence[str] = ()
    destructive: bool = False

    def to_json(self) -> Answer:
        """As pages show it."""
        return {
            "title": self.title,
            "changes": list(self.changes[:SHOWN_CHANGES]),
            "count": len(self.changes),
            "warnings": list(self.warnings),
            "destructive": self.destructive,
        }


@dataclass(frozen=True)
class ActionRequest:
    """What is asked for, and what is known."""

    cluster: Cluster
    view: ClusterView
    flows: Sequence[Flow]
    parameters: Mapping[str, Any]

    def named(self, key: str) -> str:
        """A parameter that is a name."""
        value = self.parameters.get(key)
        if not isinstance(value, str) or not value:
            raise InvalidOption(f"this action needs {key!r}, a name")
        return value

    def running(self, key: str) -> str:
        """A parameter that names a publisher which runs."""
        name, there = self.named(key), self.view.nodes.publishers
        if name not in there:
            raise InvalidOption(f"no publisher {name!r} runs (publishers: {', '.join(there) or 'none'})")
        return name

    @property
    def which(self) -> str:
        """The flows in a title."""
        return str(self.flows[0]) if len(self.flows) == 1 else f"{len(self.flows):,} flows"


def done(those: Sequence[Answer], failed: Sequence[Answer] = ()) -> Answer:
    """What has become of it."""
    return {"done": list(those[:SHOWN_CHANGES]), "count": len(those), "failed": list(failed)}


# What operators say of flows


def move(asked: ActionRequest) -> ActionPreview:
    """Pin flows to a publisher."""
    to = asked.running("to")
    warnings = []
    if publisher_state(asked.view, to) == "draining":
        warnings.append(f"publisher {to!r} drains: it takes them only when it does not any more")
    stopped = sum(asked.view.by_flow[flow].state == "stopped" for flow in asked.flows)
    if stopped:
        warnings.append(f"{stopped:,} of them are stopped: nobody owns those until they are resumed")
    return _saying(
        asked,
        f"Move {asked.which} to {to}",
        lambda said: replace(said, pin=to),
        lambda flows: controls.pin(asked.cluster, flows, to),
        warnings,
    )


def unpin(asked: ActionRequest) -> ActionPreview:
    """Let publishers share flows out again."""
    return _saying(
        asked,
        f"Unpin {asked.which}",
        lambda said: replace(said, pin=None),
        lambda flows: controls.unpin(asked.cluster, flows),
    )


def pause(asked: ActionRequest) -> ActionPreview:
    """Have nothing sent of flows, which keep their owners."""
    failed = [flow for flow in asked.flows if asked.view.by_flow[flow].state == "failed"]
    return _saying(
        asked,
        f"Pause {asked.which}",
        lambda said: replace(said, paused=True, stopped=False),
        lambda flows: controls.pause(asked.cluster, flows),
        [f"{len(failed):,} of them have failed, and are not paused: {failed[0]}"] if failed else [],
    )


def stop(asked: ActionRequest) -> ActionPreview:
    """Have nobody own flows."""
    preview = _saying(
        asked,
        f"Stop {asked.which}",
        lambda said: replace(said, stopped=True, paused=False),
        lambda flows: controls.stop(asked.cluster, flows),
        ["nothing is sent of a flow that is stopped, until it is resumed"],
    )
    return replace(preview, destructive=True)


def resume(asked: ActionRequest) -> ActionPreview:
    """Have flows go on."""
    return _saying(
        asked,
        f"Resume {asked.which}",
        lambda said: replace(said, stopped=False, paused=False),
        lambda flows: controls.resume(asked.cluster, flows),
    )


def _saying(
    asked: ActionRequest,
    title: str,
    change: Callable[[FlowControl], FlowControl],
    say: Callable[[Sequence[Flow]], object],
    warnings: Sequence[str] = (),
) -> ActionPreview:
    """A change of what is said of flows. What was said before is what the plan depends on."""
    records = records_of(asked.cluster, asked.flows)
    told = []
    for flow, record in records.items():
        before, after = _shown(asked.view, flow, record), _shown(asked.view, flow, record, change(record.control))
        told.append({"flow": str(flow), "before": before, "after": after})
    idle = sum(change(record.control) == record.control for record in records.values())
    if idle:
        warnings = [*warnings, f"{idle:,} of them stay as they are" if len(records) > 1 else "it stays as it is"]

    def execute() -> Answer:
        now = records_of(asked.cluster, asked.flows)
        changed = [flow for flow, record in now.items() if record.control != records[flow].control]
        if changed:
            raise PlanOutdated(f"{controls.named(changed)} was changed since it was previewed: preview it again")
        say(asked.flows)
        after = records_of(asked.cluster, asked.flows)
        return done(
            [
                {
                    "flow": str(flow),
                    "before": _shown(asked.view, flow, now[flow]),
                    "after": _shown(asked.view, flow, record),
                }
                for flow, record in after.items()
            ]
        )

    return ActionPreview(title, told, execute, warnings)


def _shown(view: ClusterView, flow: Flow, record: FlowRecord, said: FlowControl | None = None) -> Answer:
    """A flow as it is, or as it would be if this were said of it."""
    known = view.by_flow.get(flow)
    state: str | None = known.state if known else None
    control, owner = said or record.control, (record.owner or {}).get("publisher")
    if control.stopped:
        state = "stopped"
    elif control.paused:
        state = "paused"
    elif state in ("stopped", "paused"):
        state = "running" if said else state
    if said is not None:
        owner = None if said.stopped else said.pin or owner
    return {"state": state, "owner": owner, "pinned_to": control.pin}


# Publishers


def drain(asked: ActionRequest) -> ActionPreview:
    """Have a publisher give its flows away."""
    name = asked.running("publisher")
    others = [
        other
        for other in asked.view.nodes.publishers
        if other != name and publisher_state(asked.view, other) == "running"
    ]
    warnings = [] if others else ["no other publisher runs that could take its flows"]
    before = {"state": publisher_state(asked.view, name), "flows": asked.view.owned[name]}
    return _draining(
        asked, name, before, {"state": "draining", "flows": 0}, lambda: controls.drain(asked.cluster, name), warnings
    )


def undrain(asked: ActionRequest) -> ActionPreview:
    """Let a publisher take flows again."""
    name = asked.named("publisher")
    if name not in asked.cluster.coordination.children(DRAINS):
        raise InvalidOption(f"publisher {name!r} does not drain")
    before = {"state": "draining", "flows": asked.view.owned[name]}
    return _draining(
        asked, name, before, {"state": "running", "flows": None}, lambda: controls.undrain(asked.cluster, name)
    )


def _draining(
    asked: ActionRequest,
    name: str,
    before: Answer,
    after: Answer,
    do: Callable[[], None],
    warnings: Sequence[str] = (),
) -> ActionPreview:
    tree = asked.cluster.coordination
    drained = name in tree.children(DRAINS)

    def execute() -> Answer:
        if (name in tree.children(DRAINS)) != drained:
            raise PlanOutdated(f"publisher {name!r} was changed since it was previewed: preview it again")
        do()
        return done([{"flow": name, "before": before, "after": after}])

    title = f"{'Drain' if after['state'] == 'draining' else 'Undrain'} publisher {name}"
    return ActionPreview(title, [{"flow": name, "before": before, "after": after}], execute, warnings)
