"""Actions that decide what a flow gets: a reset of where it goes on, and an update that is left out."""

from __future__ import annotations

from typing import Any

from tidings.console.flow_actions import ActionPreview, ActionRequest, Answer, done
from tidings.console.queries import position_json
from tidings.console.records import record_json
from tidings.errors import InvalidOption
from tidings.flow_reset import ResetTarget, execute_reset, plan_reset
from tidings.flow_skip import execute_skip, plan_skip
from tidings.log_opening import containing_errors, payload_form
from tidings.positions import Position


def reset(asked: ActionRequest) -> ActionPreview:
    """Say where flows go on, by the targets that Kafka's tool has."""
    kind, value = asked.named("to"), asked.parameters.get("value")
    target = ResetTarget.parse(kind, None if value in (None, "") else str(value))
    plan = plan_reset(asked.cluster, asked.flows, target)
    changes: list[Answer] = []
    for one in plan:
        notes = [*one.warnings, *([f"it is owned by {one.held_by}"] if one.held_by else [])]
        change: Answer = {
            "flow": str(one.flow),
            "before": {"datamarker": _position(one.before)},
            "after": {"datamarker": _position(one.after)},
        }
        changes.append({**change, "warning": "; ".join(notes)} if notes else change)
    owned = sum(one.held_by is not None for one in plan)
    warnings = [f"{owned:,} of them are owned: stop them first, or nothing is reset"] if owned else []

    def execute() -> Answer:
        found = execute_reset(asked.cluster, plan)
        return done(
            [
                {
                    "flow": str(one.flow),
                    "before": {"datamarker": _position(one.before)},
                    "after": {"datamarker": _position(one.after)},
                }
                for one in found
                if one.error is None
            ],
            [{"flow": str(one.flow), "error": one.error} for one in found if one.error is not None],
        )

    return ActionPreview(f"Reset {asked.which} to {kind}", changes, execute, warnings, destructive=True)


def skip(asked: ActionRequest) -> ActionPreview:
    """Leave one update out of a flow; what it is, is shown first."""
    if len(asked.flows) != 1:
        raise InvalidOption("an update is skipped in one flow: name it")
    (flow,) = asked.flows
    plan = plan_skip(asked.cluster, flow, _parsed(asked.parameters.get("position")))
    at = position_json(plan.position)
    with containing_errors(flow.stream):
        form = payload_form(asked.cluster.stream(flow.stream).definition)
    change = {
        "flow": str(flow),
        "before": {"skipped": False},
        "after": {"skipped": True},
        "position": at,
        "update": record_json(plan.update, form),
    }

    def execute() -> Answer:
        execute_skip(asked.cluster, plan)
        return done([{"flow": str(flow), "before": {"skipped": False}, "after": {"skipped": True}, "position": at}])

    told = [f"the flow failed at it: {plan.failed}"] if plan.failed else ["the flow has not failed at it"]
    title = f"Skip {plan.position} of {flow}"
    return ActionPreview(title, [change], execute, told, destructive=True)


def _position(position: Position | None) -> int | list[int] | None:
    return None if position is None else position_json(position)


def _parsed(value: Any) -> Position | None:
    """A position as pages send it: nothing, 7, "7.2" or [7, 2]."""
    if value in (None, ""):
        return None
    return Position.parse(value) if isinstance(value, str) else Position.from_json(value)
