"""`tidings flows move`, `unpin`, `pause`, `stop` and `resume`: what operators say of flows, and publishers go by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.flow_options import OfApplication, OfStream, SomeFlows, chosen_flows
from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected
from tidings.cli.output import emit, fail, note
from tidings.cli.waiting import WaitTimeout, time_limit, wait_until_none
from tidings.texts import counted

if TYPE_CHECKING:
    from tidings.flows import Flow

MOVE_EXAMPLES = """\b
Examples:
  tidings flows move cache/contacts/3 cache/contacts/4 --to east-1
  tidings flows unpin cache/contacts/3 cache/contacts/4
"""
PAUSE_EXAMPLES = """\b
Examples:
  tidings flows pause cache/contacts/3
  tidings flows pause --application cache --stream contacts
  tidings flows resume --application cache
"""
STOP_EXAMPLES = """\b
Examples:
  tidings flows stop cache/contacts/3
  tidings flows stop --application cache                      all of its flows
  tidings flows stop --application cache --wait --timeout 60  and wait until nobody owns them
  tidings flows resume --application cache
"""


def move_command(
    to: Annotated[
        str, typer.Option(metavar="PUBLISHER", help="The publisher that is to own them.", show_default=False)
    ],
    which: SomeFlows = None,
    application: OfApplication = None,
    stream: OfStream = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Pin flows to a publisher. It takes them from whoever owns them, each at a token, so that nothing is repeated.

    While that publisher does not run, drains, or cannot read the stream, others own them; `unpin` ends it.
    """
    from tidings.controls import pin

    with connected(zookeeper, timeout) as cluster:
        chosen = chosen_flows(cluster, which, application, stream)
        pin(cluster, chosen, to)
    told = f"{counted(len(chosen), 'flow is', 'flows are')} pinned to {to!r}"
    emit({"pinned": list(map(str, chosen)), "publisher": to}, json, lambda: note(told))


def unpin_command(
    which: SomeFlows = None,
    application: OfApplication = None,
    stream: OfStream = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Let publishers share out flows again that were moved by `move`."""
    from tidings.controls import unpin

    with connected(zookeeper, timeout) as cluster:
        chosen = chosen_flows(cluster, which, application, stream)
        changed = unpin(cluster, chosen)
    _tell("unpinned", changed, chosen, "not pinned any more", json)


def pause_command(
    which: SomeFlows = None,
    application: OfApplication = None,
    stream: OfStream = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Pause flows: nothing more is sent. They keep their publishers and subscribers, and what was sent is acknowledged.

    It holds whoever owns them next, until `resume`. A flow that failed is not paused.
    """
    from tidings.controls import pause

    with connected(zookeeper, timeout) as cluster:
        chosen = chosen_flows(cluster, which, application, stream)
        changed = pause(cluster, chosen)
    _tell("paused", changed, chosen, "paused now", json)


def stop_command(
    context: typer.Context,
    which: SomeFlows = None,
    application: OfApplication = None,
    stream: OfStream = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until nobody owns them.", show_default=False)] = False,
    zookeeper: ZooKeeper = None,
    timeout: WaitTimeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Stop flows: their publishers give them up at a token, and nobody takes them. Their datamarkers stay.

    Updates that a log deletes meanwhile are lost to them, as to one whose subscribers are away. A flow is given up once
    its subscriber has acknowledged what was sent.
    """
    from tidings.controls import named, not_yet_stopped, stop

    with connected(zookeeper, timeout) as cluster:
        chosen = chosen_flows(cluster, which, application, stream)
        changed = stop(cluster, chosen)
        if not wait:
            _tell("stopped", changed, chosen, "stopped now", json)
            return
        left = wait_until_none(
            lambda: not_yet_stopped(cluster, chosen),
            lambda left: f"{counted(len(left), 'flow is', 'flows are')} still owned: {named(left)}",
            time_limit(context, timeout),
        )
    told = f"{counted(len(chosen) - len(left), 'flow is', 'flows are')} stopped"
    emit({"stopped": list(map(str, changed)), "owned": list(map(str, left))}, json, lambda: note(told))
    if left:
        raise fail(
            f"after {timeout:g} s {counted(len(left), 'flow is', 'flows are')} still owned, {named(left)}: each is "
            "given up once its subscriber has acknowledged what was sent; see `tidings flows describe`"
        )


def resume_command(
    which: SomeFlows = None,
    application: OfApplication = None,
    stream: OfStream = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Resume flows that were paused or stopped, at their datamarkers."""
    from tidings.controls import resume

    with connected(zookeeper, timeout) as cluster:
        chosen = chosen_flows(cluster, which, application, stream)
        changed = resume(cluster, chosen)
    _tell("resumed", changed, chosen, "resumed now", json)


def _tell(key: str, changed: list[Flow], chosen: list[Flow], done: str, json: bool) -> None:
    emit({key: list(map(str, changed))}, json, lambda: note(_told(len(changed), len(chosen), done)))


def _told(changed: int, chosen: int, done: str) -> str:
    """How many of the flows that were meant have changed.

    >>> _told(1, 1, "paused now"), _told(1, 2, "paused now"), _told(0, 1, "not pinned any more")
    ('1 flow is paused now', '1 of 2 flows is paused now', 'no flow has changed')
    """
    if not changed:
        return "no flow has changed"
    count = f"{changed:,}" if changed == chosen else f"{changed:,} of {chosen:,}"
    return f"{count} {'flow' if chosen == 1 else 'flows'} {'is' if changed == 1 else 'are'} {done}"
