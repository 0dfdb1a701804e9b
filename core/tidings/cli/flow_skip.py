"""`tidings flows skip`: leave out one update that a subscriber fails at, once one has seen it."""

from __future__ import annotations

import json as texts
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.flow_options import DryRun, Execute, OneFlow, check_one_way, place
from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected, position
from tidings.cli.output import emit, note, print_fields

if TYPE_CHECKING:
    from tidings.flow_skip import PlannedSkip

SHOWN_BYTES = 1024  # of a payload
SHOWN_ATTRIBUTES = 32
SHOWN_CHARACTERS = 256  # of an attribute
SKIP_EXAMPLES = """\b
Examples:
  tidings flows skip cache/contacts/3 --dry-run               see what it failed at
  tidings flows skip cache/contacts/3 --execute
  tidings flows skip cache/contacts/3 --position 1200 --execute
"""


def skip_command(
    which: OneFlow,
    position: Annotated[
        Any,
        typer.Option(
            metavar="POSITION",
            parser=position,
            help="The update's position; else the one at which the flow failed.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    execute: Execute = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Leave one update out of a flow, and show it first. A flow that failed at it goes on by itself.

    Updates before it that were not acknowledged yet are sent again, as after any failure; those after it are sent as
    ever. The subscriber is told by `on_skipped`. A handler of `on_batch` fails at a batch, and not at an update: then
    name it by --position.
    """
    from tidings.flow_skip import execute_skip, plan_skip
    from tidings.flow_status import check_flow

    check_one_way(dry_run, execute)
    with connected(zookeeper, timeout) as cluster:
        check_flow(cluster, which)
        plan = plan_skip(cluster, which, position)
        if not json:
            print_fields(_fields(plan))
        new = execute_skip(cluster, plan) if execute else False
    done = f"flow {which} leaves out {plan.position}" if execute else "nothing was done (--dry-run)"
    emit({**_json(plan), "skipped": execute, "new": new}, json, lambda: note(done))


def _fields(plan: PlannedSkip) -> dict[str, Any]:
    shown = _json(plan)
    payload = shown.pop("payload")
    text = payload["value"] if payload["as"] != "json" else texts.dumps(payload["value"], ensure_ascii=False)
    cut = " …" if payload["truncated"] else ""
    attributes = ", ".join(f"{key}={value}" for key, value in shown["attributes"].items()) or None
    numbers = {key: None if shown[key] is None else str(shown[key]) for key in ("version", "range")}
    where = {"position": place(plan.position), "attributes": attributes, **numbers}
    return {**shown, **where, f"payload ({payload['as']})": None if text is None else f"{text}{cut}"}


def _json(plan: PlannedSkip) -> dict[str, Any]:
    update = plan.update
    attributes = list((update.attributes or {}).items())[:SHOWN_ATTRIBUTES]
    return {
        "flow": str(plan.flow),
        "position": plan.position.to_json(),
        "failed": plan.failed,
        "object": update.object,
        "version": update.version,
        "kind": update.kind,
        "range": update.range,
        "source": update.source,
        "time": None if update.time is None else update.time.isoformat().replace("+00:00", "Z"),
        "attributes": {key[:SHOWN_CHARACTERS]: (value or "")[:SHOWN_CHARACTERS] for key, value in attributes},
        "payload": shown_payload(update.payload),
    }


def shown_payload(payload: bytes | None) -> dict[str, Any]:
    r"""A payload as a person can read it: JSON or text if it is that, else hexadecimal; the beginning, if it is long.

    >>> shown_payload(b'{"a": 1}')
    {'as': 'json', 'value': {'a': 1}, 'truncated': False}
    >>> shown_payload(b"\xff\x00")
    {'as': 'hex', 'value': 'ff 00', 'truncated': False}
    """
    if payload is None:
        return {"as": "none", "value": None, "truncated": False}
    cut = len(payload) > SHOWN_BYTES
    some = payload[:SHOWN_BYTES]
    try:
        # A character that is cut off in its middle is no reason to call it binary.
        text = some.decode() if not cut else some.decode(errors="ignore")
        if cut and len(text.encode()) < len(some) - 3:
            raise ValueError
    except ValueError:
        return {"as": "hex", "value": some.hex(" "), "truncated": cut}
    if not cut:
        try:
            return {"as": "json", "value": texts.loads(text), "truncated": False}
        except (ValueError, RecursionError):
            pass
    return {"as": "text", "value": text, "truncated": cut}
