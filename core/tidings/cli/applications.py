"""`tidings applications`: define, show and drop applications."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.members import member_records
from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected, duration, filter_text, starting
from tidings.cli.options import Application as Name
from tidings.cli.output import emit, note, print_fields, print_table, refuse, warn, warnings_told
from tidings.errors import InvalidOption, TidingsError, UnknownApplication
from tidings.texts import counted

if TYPE_CHECKING:
    from tidings.cluster import Cluster

applications = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Define, show, change and drop applications."
)


@applications.command("list")
def list_command(zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False) -> None:
    """List the applications of the cluster."""
    with connected(zookeeper, timeout) as cluster:
        definitions = cluster.applications()
    columns = ["APPLICATION", "STREAMS", "MODE", "START", "FILTER"]
    rows = [(one.name, ", ".join(one.streams), one.mode, _words(one.start), one.filter) for one in definitions]
    emit([one.to_json() for one in definitions], json, lambda: print_table(columns, rows))


@applications.command(
    "create",
    epilog="""\b
Examples:
  tidings applications create cache --stream contacts --start earliest
  tidings applications create mailer --stream contacts --stream clicks --filter 'region = eu or vip exists'
  tidings applications create dashboard --stream clicks --mode realtime --max-age PT30S
  tidings applications create audit --stream contacts --start '{"contacts": {"0": 1200}}'
""",
)
def create_command(
    name: Name,
    stream: Annotated[
        list[str],
        typer.Option(metavar="STREAM", help="A stream that it reads; repeat it for more.", show_default=False),
    ],
    filter: Annotated[
        str | None,
        typer.Option(metavar="TEXT", parser=filter_text, help="Which updates it gets; else all.", show_default=False),
    ] = None,
    start: Annotated[
        Any,
        typer.Option(
            metavar="earliest|latest|TIME|JSON",
            parser=starting,
            help="Where a flow begins that has no datamarker yet; TIME has its zone, as in 2026-01-01T00:00:00Z; "
            'JSON names the first update wanted, {"STREAM": {"SHARD": SEQ, ...}}.',
        ),
    ] = "latest",
    mode: Annotated[
        str, typer.Option(metavar="reliable|realtime", help="Every update, or only those that are not too old.")
    ] = "reliable",
    max_age: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", parser=duration, help="What is too old for realtime, as in PT30S.", show_default=False
        ),
    ] = None,
    balance: Annotated[
        str,
        typer.Option(
            metavar="random|zookeeper|NAME", help="How its flows are shared among its subscribers; NAME is a plugin's."
        ),
    ] = "random",
    on_failure: Annotated[
        str,
        typer.Option(
            metavar="park|skip|stream:NAME",
            help="When a handler keeps failing at an update: stop its flow there, skip the update, or keep the update "
            "in stream NAME and go on.",
        ),
    ] = "park",
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Define an application. One that exists with the same definition is left unchanged.

    Publishers serve it within seconds; none has to be restarted.
    """
    options = {"start": start, "mode": mode, "max_age": max_age, "balance": balance, "on_failure": on_failure}
    with connected(zookeeper, timeout) as cluster, warnings_told():
        application = cluster.create_application(name, stream, filter=filter, **options)
    emit(application.to_json(), json, lambda: note(f"application {name!r} reads {', '.join(stream)}"))


@applications.command("describe", short_help="Show an application, its subscribers and how its flows stand.")
def describe_command(
    name: Name, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False
) -> None:
    """Show an application's definition, its subscribers, and how many of its flows are in which state.

    `tidings flows list --application NAME` shows each flow.
    """
    from tidings.flow_status import status

    with connected(zookeeper, timeout) as cluster:
        definition = cluster.application(name).to_json()
        subscribers = _subscribers(cluster, name)
        flows = status(cluster, application=name)
    states = Counter(one.state for one in flows)
    lags = [one.lag for one in flows if one.lag is not None]
    lag = sum(lags) if len(lags) == len(flows) else None

    def show() -> None:
        shown = {**definition, "streams": ", ".join(definition["streams"]), "start": _words(definition["start"])}
        counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
        print_fields({**shown, "flows": counts or None, "lag": lag})
        typer.echo()
        columns = ("id", "load", "weight")
        print_table(["SUBSCRIBER", "LOAD", "WEIGHT"], [[one.get(key) for key in columns] for one in subscribers])

    emit({**definition, "subscribers": subscribers, "flows": dict(states), "lag": lag}, json, show)


@applications.command(
    "update",
    short_help="Change an application while it runs.",
    epilog="""\b
Examples:
  tidings applications update cache --filter 'region = eu'
  tidings applications update cache --no-filter
  tidings applications update cache --stream contacts --stream clicks
""",
)
def update_command(
    name: Name,
    stream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STREAM", help="The streams that it reads from now on; repeat it for more.", show_default=False
        ),
    ] = None,
    filter: Annotated[
        str | None,
        typer.Option(metavar="TEXT", parser=filter_text, help="Which updates it gets.", show_default=False),
    ] = None,
    no_filter: Annotated[bool, typer.Option("--no-filter", help="It gets all updates.", show_default=False)] = False,
    max_age: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", parser=duration, help="What is too old for realtime, as in PT30S.", show_default=False
        ),
    ] = None,
    balance: Annotated[
        str | None,
        typer.Option(
            metavar="random|zookeeper|NAME", help="How its flows are shared among its subscribers.", show_default=False
        ),
    ] = None,
    on_failure: Annotated[
        str | None,
        typer.Option(
            metavar="park|skip|stream:NAME",
            help="What to do when a handler keeps failing at an update.",
            show_default=False,
        ),
    ] = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Change what may change while an application runs; publishers follow within seconds, and nothing is restarted.

    A new filter holds from the next read on; a flow that failed is tried again. A stream that it does not read any more
    keeps its datamarkers. Where it starts and its mode stay: its flows have begun by them.
    """
    if filter is not None and no_filter:
        raise refuse("--filter and --no-filter are one or the other")
    given = {
        "streams": stream or None,
        "filter": filter,
        "max_age": max_age,
        "balance": balance,
        "on_failure": on_failure,
    }
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    changes |= {"filter": None} if no_filter else {}
    if not changes:
        raise refuse(
            "nothing is to be changed: say what, by --filter, --no-filter, --stream, --max-age, --balance "
            "or --on-failure"
        )
    with connected(zookeeper, timeout) as cluster, warnings_told():
        application = cluster.update_application(name, **changes)
    emit(application.to_json(), json, lambda: note(f"application {name!r} is changed: {', '.join(changes)}"))


@applications.command("drop", short_help="Drop an application, and its datamarkers.")
def drop_command(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Drop it though subscribers of it run.", show_default=False)
    ] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Drop an application, and where it stood in its streams. Asks first; where nobody can answer, --yes must be given.

    While subscribers of it run, it is dropped only by --force: they would be left without flows. The streams stay as
    they are.
    """
    if not yes and not sys.stdin.isatty():
        raise refuse("drop asks before it drops, and there is no terminal to ask on: add --yes")
    with connected(zookeeper, timeout) as cluster:
        streams = _streams(cluster, name)
        subscribers = cluster.coordination.children("applications", name, "subscribers")
        named = ", ".join(subscribers[:5]) + (
            f" and {counted(len(subscribers) - 5, 'other')}" if len(subscribers) > 5 else ""
        )
        if subscribers and not force:
            raise InvalidOption(f"subscribers of application {name!r} run ({named}): stop them first, or add --force")
        running = f" ({counted(len(subscribers), 'subscriber runs', 'subscribers run')})" if subscribers else ""
        if not yes and not typer.confirm(f"Drop application {name!r} and its datamarkers{running}?", err=True):
            note("nothing was dropped")
            raise typer.Exit(1)
        cluster.drop_application(name)
    done = f"application {name!r} is dropped, with its datamarkers; it read {', '.join(streams) or '?'}"
    emit({"dropped": name, "streams": list(streams)}, json, lambda: note(done))


def _subscribers(cluster: Cluster, application: str) -> list[dict[str, Any]]:
    found = member_records(cluster, "applications", application, "subscribers")
    return [{"id": id, **record} for id, record in found]


def _streams(cluster: Cluster, application: str) -> tuple[str, ...]:
    """What it reads; nothing if its definition cannot be read, which is a reason to drop it."""
    try:
        return cluster.application(application).streams
    except UnknownApplication:
        raise
    except TidingsError as error:
        warn(str(error))
        return ()


def _words(start: Any) -> str:
    return start if isinstance(start, str) else "positions"
