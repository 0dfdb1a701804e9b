"""`tidings thialfi`: make a service, look at it, and drop what it knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected, existing_file, key_values
from tidings.cli.output import emit, note, print_fields, print_table, refuse

if TYPE_CHECKING:
    from tidings.cluster import Cluster
    from tidings_thialfi.service import Service

EXAMPLES = """\b
Examples:
  tidings thialfi create contacts --stream people --log delta:/data/thialfi/contacts --storage /data/state
  tidings thialfi status contacts
  tidings thialfi revoke contacts --user ann
  tidings thialfi drop-state contacts --dry-run
"""

MAX_TOKEN_FILE_BYTES = 4096

thialfi = typer.Typer(no_args_is_help=True, help="Tell clients the latest versions of objects.", epilog=EXAMPLES)

Client = Annotated[
    int | None, typer.Option(metavar="NUMBER", min=0, help="A client, by its number.", show_default=False)
]
User = Annotated[
    str | None, typer.Option(metavar="NAME", help="All clients of a user, as the hooks call it.", show_default=False)
]
Token = Annotated[
    Any,
    typer.Option(metavar="FILE", parser=existing_file, help="One token, which is in this file.", show_default=False),
]
Name = Annotated[str, typer.Argument(metavar="SERVICE", help="The service's name.", show_default=False)]


def add(app: typer.Typer) -> None:
    """Add the commands; the entry point `thialfi` of the group `tidings.commands`."""
    app.add_typer(thialfi, name="thialfi")


@thialfi.command("create", short_help="Make a service for the objects of streams.")
def create_command(
    name: Name,
    stream: Annotated[
        list[str], typer.Option(metavar="STREAM", help="A stream of updates; may be repeated.", show_default=False)
    ],
    storage: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the service keeps what it knows.", show_default=False)
    ],
    log: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where its own streams are put, with .operations and .notifications added; not needed if they exist.",
            show_default=False,
        ),
    ] = None,
    shards: Annotated[int, typer.Option(metavar="N", min=1, help="Of its own streams.")] = 16,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the stage, as in away_days=7.", show_default=False),
    ] = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Make a service. One that exists with the same definition is left unchanged."""
    from tidings.log_opening import resolve_log
    from tidings_thialfi.service import create

    place = None if log is None else resolve_log(log, Path.cwd())
    options = key_values(option)
    with connected(zookeeper, timeout) as cluster:
        service = create(cluster, name, stream, storage=storage, shards=shards, log=place, options=options)
    told = f"service {name!r} tells of {', '.join(service.streams)}, and keeps what it knows in {service.folder}"
    emit({"service": name, **service.to_json()}, json, lambda: note(told))


@thialfi.command("status", short_help="Show a service, who runs it, and how much it knows.")
def status_command(
    name: Name, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False
) -> None:
    """Show a service: its definition, the process that runs it, its gateways, and how many rows its tables have.

    Rows that newer ones have replaced are counted until the tables are compacted.
    """
    from tidings_thialfi.service import read

    with connected(zookeeper, timeout) as cluster:
        service = read(cluster, name)
        found = _status(cluster, service)

    def show() -> None:
        print_fields({"service": name, **{key: value for key, value in found.items() if key != "rows"}})
        typer.echo()
        print_table(["TABLE", "ROWS"], list(found["rows"].items()))

    emit({"service": name, **found}, json, show)


@thialfi.command("drop-state", short_help="Delete the state of a service; its clients rebuild it.")
def drop_state_command(
    name: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go, and drop nothing.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Throw away tables, runs and checkpoint of a service that does not run, and give it another identity.

    Its clients notice, register anew, and are told of all their objects. Takes --dry-run or --execute.
    """
    from tidings_thialfi.service import drop_state, read

    if dry_run == execute:
        raise refuse("drop-state takes either --dry-run, to see what would go, or --execute, to drop it")
    with connected(zookeeper, timeout) as cluster:
        service = read(cluster, name)
        found = _status(cluster, service)
        if execute:
            service = drop_state(cluster, name)
    rows = ", ".join(f"{count:,} {table}" for table, count in found["rows"].items()) or "nothing"
    if execute:
        told = f"service {name!r} has dropped {rows}, and has the identity {service.identity} now"
    else:
        told = f"service {name!r} would drop {rows} in {service.folder}; nothing was dropped (--dry-run)"
    value = {"service": name, "executed": execute, "identity": service.identity, "dropped": found["rows"]}
    emit(value, json, lambda: note(told))


@thialfi.command("revoke", short_help="Revoke tokens: a client's, a user's, or one.")
def revoke_command(
    name: Name,
    client: Client = None,
    user: User = None,
    token: Token = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Make tokens worthless, at all gateways, and disconnect who goes by them. Takes one of --client, --user, --token.

    Whoever shows one is told that it is invalid, and may ask for another as a new client, if hooks let it in. A user's
    tokens from after this are good.
    """
    _say("revoked", name, client, user, token, zookeeper, timeout, json)


@thialfi.command("disconnect", short_help="Close the connections of a client or a user now.")
def disconnect_command(
    name: Name,
    client: Client = None,
    user: User = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Close the connections of a client or a user, at all gateways. Takes one of --client and --user.

    They connect again, and show who they are: hooks are asked once more. To keep them out, change what hooks say first.
    """
    _say("disconnected", name, client, user, None, zookeeper, timeout, json)


def _say(
    what: str,
    name: str,
    client: int | None,
    user: str | None,
    token: Path | None,
    zookeeper: str | None,
    timeout: float,
    json: bool,
) -> None:
    from tidings_thialfi.revocations import Whose, say
    from tidings_thialfi.service import read

    if sum(one is not None for one in (client, user, token)) != 1:
        raise refuse(f"say whose: --client, --user{' or --token' if what == 'revoked' else ''}, and only one of them")
    if client is not None:
        whose, told = Whose.client(client), f"client {client}"
    elif user is not None:
        whose, told = Whose.user(user), f"user {user!r}"
    else:
        assert token is not None
        whose, told = Whose.token(_token_in(token)), "the token"
    with connected(zookeeper, timeout) as cluster:
        read(cluster, name)
        say(cluster.coordination, name, what, whose)
    value = {"service": name, what: whose.kind, "whose": whose.value}
    emit(value, json, lambda: note(f"all gateways of service {name!r} hear that {told} is {what}"))


def _token_in(path: Path) -> str:
    """The token that is in a file; blanks around it, and what editors write before it, do not count."""
    from tidings.errors import InvalidOption
    from tidings_thialfi.protocol.tokens import is_whole

    with path.open("rb") as file:
        found = file.read(MAX_TOKEN_FILE_BYTES).decode("utf-8-sig", errors="replace").strip()
    if not is_whole(found):
        raise InvalidOption(f"{path} holds no token: it has to hold one and nothing else, whole, as its client has it")
    return found


def _status(cluster: Cluster, service: Service) -> dict[str, Any]:
    from tidings.coordination.pipeline_lock import lock_holder
    from tidings_thialfi.server.tables import row_counts

    gateways = cluster.coordination.children("thialfi", service.name, "gateways")
    return {
        "identity": service.identity,
        "streams": ", ".join(service.streams),
        "folder": str(service.folder),
        "running": lock_holder(cluster.coordination, service.pipeline),
        "gateways": ", ".join(gateways) or None,
        "revoked": len(cluster.coordination.children("thialfi", service.name, "revoked")),
        "rows": row_counts(service.folder / "state"),
    }
