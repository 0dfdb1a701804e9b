"""`tidings gc`: collect the obsolete updates of streams, see what would go, and how much is left."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Name, Timeout, ZooKeeper, connected
from tidings.cli.output import emit, note, print_table
from tidings.errors import InvalidOption, TidingsError
from tidings.texts import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.cluster import Cluster
    from tidings.streams import Stream
    from tidings_gc_tombstones.collector import Collector
    from tidings_gc_tombstones.matching import RefusedEvent

GIVING_WAY = 10  # added to the niceness of a collection: flows on the same machine come first

EXAMPLES = """\b
Examples:
  tidings gc plan contacts
  tidings gc run contacts
  tidings gc status
"""

gc = typer.Typer(no_args_is_help=True, help="Collect the obsolete updates of streams.", epilog=EXAMPLES)

OneStream = Annotated[
    str | None,
    typer.Argument(metavar="STREAM", help="The stream; all that have policies if none.", show_default=False),
]


def give_way() -> None:
    """Let whatever else runs on this machine come first: flows want some of a processor often, and at once."""
    import pyarrow as pa

    os.nice(GIVING_WAY)
    pa.set_cpu_count(1)


def add(app: typer.Typer) -> None:
    """Add the commands; the entry point `gc` of the group `tidings.commands`."""
    app.add_typer(gc, name="gc")


@gc.command("run", short_help="Collect what is obsolete.")
def run_command(
    stream: OneStream = None, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False
) -> None:
    """Collect what is obsolete by the policies of a stream, up to where it ends now.

    What it costs follows what is new since the last time. Readers, producers and flows go on meanwhile, and come first
    where they run on this machine. The command may be ended at any time: what is collected by then is.
    """
    from tidings.runtime.session import session

    give_way()
    done: list[dict[str, Any]] = []
    failed: list[str] = []
    with connected(zookeeper, timeout) as cluster:
        for one in _collected(cluster, stream):
            try:
                done.append(_run(cluster, one, session))
            except Exception as error:  # of Spark, say: it concerns this stream alone
                if stream is not None:
                    raise
                failed.append(f"{one.name}: {error}")
    rows = [tuple(each.values()) for each in done]
    emit(done, json, lambda: print_table(["STREAM", "READ", "COLLECTED", "REFUSED"], rows))
    _end(failed)


@gc.command("plan", short_help="Show what would be collected.")
def plan_command(
    stream: Name, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False
) -> None:
    """Show what `run` would collect now, by policy, and collect nothing. BYTES are about those that it takes up."""
    from tidings.runtime.session import session
    from tidings_gc_tombstones.collector import MAX_REFUSED

    with connected(zookeeper, timeout) as cluster:
        one = cluster.stream(stream)
        with _collector(cluster, one) as collector:
            found = collector.plan(session)
            kept = _kept_for(cluster, collector)
        sizes = _log(one).sizes()
    each = sizes.bytes / sizes.updates if sizes.updates else 0.0
    gone = [*found.by_policy.items(), ("all", found.gone)]
    plans = [{"policy": name, "updates": gone.count, "bytes": int(gone.count * each)} for name, gone in gone]
    rows = [tuple(plan.values()) for plan in plans]
    refused = [{"shard": event.shard, "seq": event.seq, "reason": event.reason} for event in found.refused]
    value = {"stream": stream, "held": sizes.updates, "policies": plans, "refused": refused, "kept_for": kept}

    def show() -> None:
        print_table(["POLICY", "UPDATES", "BYTES"], rows)
        note(f"{counted(sizes.updates, 'update is', 'updates are')} held; nothing was collected")
        for event in found.refused[:MAX_REFUSED]:
            note(f"the gc event at {event.seq} of shard {event.shard} would collect nothing: {event.reason}")
        _tell_kept(kept)

    emit(value, json, show)


@gc.command("status", short_help="Show what is held and what was collected.")
def status_command(
    stream: OneStream = None, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False
) -> None:
    """Show what is held of each stream that has policies, and when it was collected last.

    RATIO is the share of all positions whose updates were collected. COST is of the last step: what it read, and its
    seconds.
    """
    from tidings_gc_tombstones.status import status

    found, failed = list[dict[str, Any]](), list[str]()
    with connected(zookeeper, timeout) as cluster:
        for one in _collected(cluster, stream):
            try:
                found.append(status(one))
            except TidingsError as error:
                if stream is not None:
                    raise
                failed.append(f"{one.name}: {error}")
    columns = ["STREAM", "UPDATES", "COLLECTED", "RATIO", "BYTES", "LAST RUN", "COST", "REFUSED"]
    rows = [
        (
            *(one[key] for key in ("stream", "updates", "collected")),
            f"{one['ratio']:.1%}",
            one["bytes"],
            one["last_run"],
            None if one["seconds"] is None else f"{one['read']:,} in {one['seconds']:.1f} s",
            one["refused_count"],
        )
        for one in found
    ]
    emit(found, json, lambda: print_table(columns, rows, ["COST", "BYTES"]))
    _end(failed)


def _end(failed: list[str]) -> None:
    """Name the streams with which it did not work, if there are any, and end with 1 then."""
    for problem in failed:
        note(f"failed: {problem}")
    if failed:
        raise typer.Exit(1)


def _run(cluster: Cluster, stream: Stream, session: Callable[[], SparkSession]) -> dict[str, Any]:
    """Collect one stream, with a line for each step beyond the first."""
    from tidings_gc_tombstones.collector import MAX_REFUSED

    read = collected = steps = refused_count = 0
    refused: list[RefusedEvent] = []
    with _collector(cluster, stream) as collector:
        for step in collector.run(session):
            steps, read, collected = steps + 1, read + step.read_rows, collected + step.gone.count
            refused_count += len(step.refused)
            refused += step.refused[: MAX_REFUSED - len(refused)]
            if steps > 1:
                note(f"{stream.name}: {counted(read, 'update')} read, {collected:,} collected")
        _tell_kept(_kept_for(cluster, collector), f"{stream.name}: ")
    for one in refused:
        note(f"{stream.name}: the gc event at {one.seq} of shard {one.shard} collects nothing: {one.reason}")
    if refused_count > len(refused):
        note(f"{stream.name}: and {refused_count - len(refused):,} more")
    return {"stream": stream.name, "read": read, "collected": collected, "refused": refused_count}


def _collected(cluster: Cluster, name: str | None) -> list[Stream]:
    """The stream of this name, or all that have policies."""
    if name is not None:
        return [cluster.stream(name)]
    found = [stream for stream in cluster.streams() if stream.definition.collect]
    if not found:
        raise InvalidOption("no stream has a policy: give one `collect: {latest_per_key: true}` in tidings.yml")
    return found


def _collector(cluster: Cluster, stream: Stream) -> Collector:
    from tidings_gc_tombstones.collector import Collector
    from tidings_gc_tombstones.flows import passed_by_flows

    return Collector(stream.definition, _log(stream), passed_by_flows(cluster, stream.name))


def _kept_for(cluster: Cluster, collector: Collector) -> dict[str, int]:
    from tidings_gc_tombstones.flows import kept_for

    return kept_for(cluster, collector.stream.name) if collector.policies.protect_flows else {}


def _tell_kept(kept: dict[str, int], prefix: str = "") -> None:
    for application, count in kept.items():
        protected, them = counted(count, "position is", "positions are"), "it" if count == 1 else "them"
        note(f"{prefix}{protected} protected: application {application!r} has not acknowledged {them}")


def _log(stream: Stream) -> Any:
    from tidings.collection import collectable

    return collectable(stream.definition, stream.log)
