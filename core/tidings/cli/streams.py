"""`tidings streams`: make, show and drop streams, and what is in them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import (
    COMMAND_TIMEOUT_S,
    Json,
    Name,
    Timeout,
    ZooKeeper,
    connected,
    duration,
    key_texts,
    key_values,
    logs,
    size,
    tell_of_nothing,
)
from tidings.cli.output import emit, note, print_fields, print_table, refuse, warn
from tidings.cli.publish import EXAMPLES as PUBLISH_EXAMPLES
from tidings.cli.publish import publish_command
from tidings.cli.shard_bounds import Held, held, total
from tidings.cli.snapshot import EXAMPLES as SNAPSHOT_EXAMPLES
from tidings.cli.snapshot import sentence, snapshot_command
from tidings.cli.tail import EXAMPLES as TAIL_EXAMPLES
from tidings.cli.tail import tail_command
from tidings.cli.truncate import EXAMPLES as TRUNCATE_EXAMPLES
from tidings.cli.truncate import truncate_command
from tidings.errors import InvalidOption, TidingsError
from tidings.texts import counted

if TYPE_CHECKING:
    from tidings.cluster import Cluster
    from tidings.stream_definition import StreamDefinition

streams = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Make, show and drop streams; publish and read."
)


@streams.command("list")
def list_command(zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False) -> None:
    """List the streams of the cluster."""
    with connected(zookeeper, timeout) as cluster:
        definitions = [stream.definition for stream in cluster.streams()]
        if not definitions:
            tell_of_nothing(cluster)
    _list(definitions, json)


def _list(definitions: list[StreamDefinition], json: bool) -> None:
    columns = ["STREAM", "SHARDS", "LOG", "SECONDS KEPT", "BYTES KEPT"]
    rows = [(one.name, one.shards, one.log, one.retention_seconds, one.retention_bytes) for one in definitions]
    emit([one.to_json() for one in definitions], json, lambda: print_table(columns, rows))


@streams.command(
    "create",
    epilog="""\b
Examples:
  tidings streams create contacts --shards 16 --log delta:/data/contacts
  tidings streams create clicks --log delta:clicks --retention-age P7D --retention-size 10GiB
  tidings streams create orders --log postgres:service=shop --option publication=tidings
  tidings streams create shop --log east=postgres:service=east --log west=postgres:service=west --option publication=p
""",
)
def create_command(
    name: Name,
    log: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]SCHEME:PLACE",
            help="Where its updates live, as in delta:FOLDER; a relative folder starts at the working directory. With "
            "names it may be repeated, for a family of streams.",
            show_default=False,
        ),
    ],
    shards: Annotated[int, typer.Option(metavar="N", help="How many shards; it cannot be changed later.")] = 16,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of its log; may be repeated.", show_default=False),
    ] = None,
    replica: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SCHEME:PLACE", help="Another log with the same updates; may be repeated.", show_default=False
        ),
    ] = None,
    retention_age: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", parser=duration, help="Keep updates this long, as in P7D or PT12H.", show_default=False
        ),
    ] = None,
    retention_size: Annotated[
        int | None,
        typer.Option(metavar="SIZE", parser=size, help="Keep this much, as in 10GiB or 500MB.", show_default=False),
    ] = None,
    collect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY[=VALUE]",
            help="Collect what is obsolete, as in latest_per_key or keep_last=1000; may be repeated.",
            show_default=False,
        ),
    ] = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Make a stream. One that exists with the same definition is left unchanged.

    With several logs it is a family: a stream for each, called NAME.<name of the log>. An application that reads the
    family reads them all, also those that are added later.
    """
    from tidings.log_opening import resolve_log

    places = {key: resolve_log(where, Path.cwd()) for key, where in logs(log).items()}
    given: dict[str, Any] = {
        "retention_seconds": retention_age,
        "retention_bytes": retention_size,
        "options": key_values(option),
        "collect": key_values([one if "=" in one else f"{one}=true" for one in collect or ()]),
    }
    if replica:
        given["replicas"] = {key: resolve_log(where, Path.cwd()) for key, where in key_texts(replica).items()}
    with connected(zookeeper, timeout) as cluster:
        if "" in places:
            stream = cluster.create_stream(name, shards, places[""], **given).definition
            emit(stream.to_json(), json, lambda: _tell_made([stream]))
            return
        made = [one.definition for one in cluster.create_family(name, places, shards, **given)]
    emit([one.to_json() for one in made], json, lambda: _tell_made(made))


def _tell_made(streams: list[StreamDefinition]) -> None:
    for one in streams:
        note(f"stream {one.name!r} has {counted(one.shards, 'shard')} in {one.log}")


@streams.command("describe", short_help="Show a stream, and what its log holds of each shard.")
def describe_command(
    name: Name, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False
) -> None:
    """Show a stream's definition, and what its log holds of each shard, what was collected included.

    FLOOR is the first update that is held, HEAD the newest; `-` stands where there is none, or it is not known. Of a
    family its streams are listed. Of a stream that tails a database it is shown how
    much of its log is kept for the stream's sake, for which flow, and how the newest snapshot on demand stands.
    """
    from tidings.flow_status import read_records
    from tidings.retention import retained_by, size_text
    from tidings.snapshots import snapshot_status

    with connected(zookeeper, timeout) as cluster:
        stream, *others = cluster.streams_named(name)
        snapshot = snapshot_status(cluster, name) if stream.name == name else None
        markers = {flow: one.datamarker for flow, one in read_records(cluster, stream=name).items()}
    if stream.name != name:
        _list([stream.definition, *(other.definition for other in others)], json)
        return
    from tidings.logs import CollectableLog

    problem: TidingsError | None = None
    shards: list[Held]
    try:
        shards = held(stream.log)
    except TidingsError as error:  # the definition is worth showing all the same
        problem = error
        shards = [{"shard": shard, "floor": None, "head": None, "updates": None} for shard in range(stream.shards)]
    definition = stream.definition.to_json()

    fields = {**definition, "updates_held": total(shards)}
    kept = None
    if problem is None:
        kept = retained_by(stream.log, {flow: one.position for flow, one in markers.items() if one is not None})
    if kept is not None:
        fields |= {"retained": size_text(kept.bytes), "retained_for": str(kept.flow)}
        fields |= {"retained_room": None if kept.room is None else size_text(max(0, kept.room))}
        fields |= {"retained_status": kept.status} if kept.status else {}
        definition["retained"] = kept.to_json()
    if snapshot is not None:
        fields["newest_snapshot"] = sentence(snapshot)
        definition["newest_snapshot"] = snapshot.to_json()
    if problem is None and isinstance(stream.log, CollectableLog):
        sizes = stream.log.sizes()
        fields |= {"updates_held": sizes.updates, "collected": sizes.collected}

    def show() -> None:
        print_fields(fields)
        typer.echo()
        print_table(["SHARD", "FLOOR", "HEAD", "UPDATES"], [list(shard.values()) for shard in shards])

    emit({**definition, "held": shards}, json, show)
    if problem:
        raise problem


@streams.command(
    "move",
    short_help="Read a stream at another address of its datastore.",
    epilog="""\b
Examples:
  tidings streams move shop --log postgres:postgresql://tail@db-2/shop --dry-run
  tidings streams move shop --replica east=mysql:mysql://tail@db-3/shop
""",
)
def move_command(
    name: Name,
    log: Annotated[
        str | None, typer.Option(metavar="SCHEME:PLACE", help="Where its log is now.", show_default=False)
    ] = None,
    replica: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SCHEME:PLACE", help="Where one of its replicas is now; may be repeated.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check whether it can be done, and do nothing.")] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Have a stream be read at another address, if the very same datastore is there; publishers follow within seconds.

    What a datastore is known by was noted when the stream was made and while it was read, so the old address need not
    answer any more.
    """
    from tidings.log_opening import resolve_log

    if log is None and not replica:
        raise refuse("nothing is to be moved: say where the log is now, by --log or --replica")
    with connected(zookeeper, timeout) as cluster:
        places = {key: resolve_log(where, Path.cwd()) for key, where in key_texts(replica).items()}
        told = cluster.move_stream(
            name, None if log is None else resolve_log(log, Path.cwd()), replicas=places, dry_run=dry_run
        )
        stream = cluster.stream(name).definition
    for warning in told:
        warn(warning)
    done = f"stream {name!r} is read from {stream.log}" if not dry_run else "it is the same one (--dry-run)"
    emit({**stream.to_json(), "dry_run": dry_run}, json, lambda: note(done))


@streams.command("drop", short_help="Drop a stream; its updates too, with --purge.")
def drop_command(
    name: Name,
    purge: Annotated[bool, typer.Option("--purge", help="Delete its updates too; otherwise its log stays.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Drop it though applications read it.")] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Drop a stream from the cluster, or all of a family. Asks first; where nobody can answer, --yes must be given.

    While applications read it, it is dropped only by --force: their subscribers would not be told. What a database
    keeps for the sake of a stream that tails it, as a replication slot, goes with the stream.
    """
    if not yes and not sys.stdin.isatty():
        raise refuse("drop asks before it drops, and there is no terminal to ask on: add --yes")
    with connected(zookeeper, timeout) as cluster:
        found = [stream.definition for stream in cluster.streams_named(name)]
        log = ", ".join(stream.log for stream in found)
        readers = _readers(cluster, found)
        if readers and not force:
            raise InvalidOption(
                f"stream {name!r} is used by {', '.join(readers)}: drop or change these first, or add --force"
            )
        what = f"stream {name!r}" if found[0].name == name else f"{', '.join(one.name for one in found)}"
        loss = f"with all updates in {log}" if purge else f"and leave what is in {log}"
        if not yes and not typer.confirm(f"Drop {what} {loss}?", err=True):
            note("nothing was dropped")
            raise typer.Exit(1)
        cluster.drop_stream(name, purge=purge)
    verb = "is" if len(found) == 1 else "are"
    rest = f", with all updates in {log}" if purge else f"; what is in {log} stays"
    emit({"dropped": name, "log": log, "purged": purge}, json, lambda: note(f"{what} {verb} dropped{rest}"))


def _readers(cluster: Cluster, dropped: list[StreamDefinition]) -> list[str]:
    """The applications that read one of these streams, with how many of their flows run, or keep failures in one."""
    from tidings.flow_status import read_records
    from tidings.stream_definition import streams_by_name

    names = {one.name for one in dropped}
    by_name = streams_by_name(dropped)
    applications = cluster.applications()
    reading = [one.name for one in applications if set(one.reads(by_name)) & names]
    keeping = [one.name for one in applications if one.dead_letters in names]
    flows = read_records(cluster)
    held = Counter(flow.application for flow, record in flows.items() if flow.stream in names and record.owner)
    owned = [f"application {name!r} ({counted(held[name], 'flow is', 'flows are')} owned)" for name in reading]
    return owned + [f"application {name!r} (for its failures)" for name in keeping]


@streams.command("collect", short_help="Publish a gc event: what it matches may be collected.")
def collect_command(
    name: Name,
    predicate: Annotated[
        str, typer.Argument(metavar="PREDICATE", help="As in \"object matches 'tmp/.*' and age > P1D\".")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many updates it matches now, and publish nothing.")
    ] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Publish a gc event into each shard: what lies before it and matches the predicate may be collected.

    The stream takes it if `events` is among its policies. Nothing goes before `tidings gc run`, or the stage `collect`;
    but what was published cannot be taken back.
    """
    from tidings.audit import recorded
    from tidings.collection import preview

    with connected(zookeeper, timeout) as cluster:
        stream = cluster.stream(name)
        found = preview(stream.definition, stream.log, predicate)
        for warning in found.warnings:
            note(f"warning: {warning}")
        if dry_run:
            value = {"stream": name, "predicate": predicate, "matching": found.matching}
            match = counted(found.matching, "update matches", "updates match")
            emit(value, json, lambda: note(f"{match}; nothing was published (--dry-run)"))
            return
        said = {"collects": predicate}
        # Who may write to a stream may do it, and need be no operator.
        with (
            recorded(cluster.coordination, "streams collect", [name], after=said, required=False),
            stream.producer() as producer,
        ):
            positions = producer.collect(predicate).result()
    where = "the shard" if stream.shards == 1 else f"all {stream.shards:,} shards"
    emit(
        {"stream": name, "predicate": predicate, "positions": positions.to_json()},
        json,
        lambda: note(f"gc events are in {where} of {name!r}; `tidings gc run {name}` collects"),
    )


streams.command("publish", epilog=PUBLISH_EXAMPLES)(publish_command)
streams.command("tail", epilog=TAIL_EXAMPLES)(tail_command)
streams.command("snapshot", short_help="Send the rows that tables have now to applications.", epilog=SNAPSHOT_EXAMPLES)(
    snapshot_command
)
streams.command("truncate", epilog=TRUNCATE_EXAMPLES)(truncate_command)
