"""`tidings flows history`: who owned and who held a flow, and why that changed."""

from __future__ import annotations

from dataclasses import asdict

from tidings.cli.flow_options import OneFlow
from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected
from tidings.cli.output import emit, print_table, to_the_second

COLUMNS = ["TIME", "KIND", "EPOCH", "PUBLISHER", "HOST", "PID", "SUBSCRIBER", "REASON"]
SPARE = ["HOST", "PID", "EPOCH"]


def history_command(
    which: OneFlow, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False
) -> None:
    """Show the last ten owners of a flow and why each took it, and the last ten problems of its subscribers.

    The newest comes first. Reasons stay when their subscribers have gone.
    """
    from tidings.flow_history import flow_history
    from tidings.flow_state import time_text
    from tidings.flow_status import check_flow

    with connected(zookeeper, timeout) as cluster:
        check_flow(cluster, which)
        found = flow_history(cluster, which)
    told = [{**asdict(one), "time": time_text(one.time)} for one in found]
    rows = [
        [
            to_the_second(one.time),
            one.kind,
            one.epoch,
            one.publisher,
            one.host,
            None if one.pid is None else str(one.pid),
            one.subscriber,
            one.reason,
        ]
        for one in found
    ]
    emit(told, json, lambda: print_table(COLUMNS, rows, SPARE))
