"""`tidings console`: the web console in the foreground, and its users."""

from __future__ import annotations

import asyncio
import getpass
import logging
import signal
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidings.cli.options import (
    SERVICE_TIMEOUT_S,
    Json,
    Timeout,
    ZooKeeper,
    connected,
    existing_file,
    listen_address,
)
from tidings.cli.output import emit, note, print_table, refuse, warn
from tidings.errors import InvalidOption, PluginMissing
from tidings.hosts import allow_hosts, is_loopback
from tidings.runtime.limits import take_all_files

if TYPE_CHECKING:
    from tidings.console.server import Console

EXAMPLES = """\b
Examples:
  tidings console                                   http://127.0.0.1:8090, for this machine alone
  tidings console users add ann --role viewer       asks for a password
  tidings console --listen 0.0.0.0:8443 --tls-certificate own.pem --tls-key own.key --allow-host console.example
"""

UsersFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The file of users.",
        show_default="console-users.json in ~/.local/state/tidings",
    ),
]
UserName = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.", show_default=False)]

console = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    short_help="Serve the web console.",
    epilog=EXAMPLES,
)
users = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Manage who may sign in to the console.")
console.add_typer(users, name="users")


@console.callback()
def console_command(
    context: typer.Context,
    listen: Annotated[
        Any,
        typer.Option(
            metavar="[HOST:]PORT",
            parser=listen_address,
            help="Where browsers reach it; only this machine can reach 127.0.0.1. Port 0: a free one.",
        ),
    ] = "127.0.0.1:8090",
    users: UsersFile = None,
    tls_certificate: Annotated[
        Any,
        typer.Option(
            metavar="FILE", parser=existing_file, help="Speak TLS with this certificate (PEM).", show_default=False
        ),
    ] = None,
    tls_key: Annotated[
        Any, typer.Option(metavar="FILE", parser=existing_file, help="The certificate's key.", show_default=False)
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="A name by which browsers may call it, as behind a proxy. May be repeated.",
            show_default=False,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Listen on another address without TLS: passwords travel in clear.", show_default=False
        ),
    ] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Allow no changes, by operators either.", show_default=False)
    ] = False,
    open_metrics: Annotated[
        bool,
        typer.Option("--open-metrics", help="Serve /metrics and /health to other machines, too.", show_default=False),
    ] = False,
    idle_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1.0, max=86_400.0, help="When an unused sign-in expires.")
    ] = 3600.0,
    sign_in_lifetime: Annotated[
        float, typer.Option(metavar="SECONDS", min=1.0, max=30 * 86_400.0, help="When every sign-in expires.")
    ] = 12 * 3600.0,
    log_hosts: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="The hosts of databases that it may connect to, beside this machine, as in db1,db2:5433; "
            "TIDINGS_LOG_HOSTS names more. '*': all that ZooKeeper names.",
            show_default=False,
        ),
    ] = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = SERVICE_TIMEOUT_S,
) -> None:
    """Serve the web console: who owns which flow, what lags and why, live; operators act there. Ctrl-C ends it.

    Whoever uses it signs in. If there is no file of users yet, an operator `admin` is made, and its password is printed
    once. In a cluster with a secret it needs the secret, or it can only be looked at.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        from tidings.console.options import ConsoleOptions
        from tidings.console.server import Console
        from tidings.console.users import default_file
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise PluginMissing("the console needs aiohttp: pip install 'tidings[console]'") from None
    if (tls_certificate is None) != (tls_key is None):
        raise refuse("TLS needs both --tls-certificate and --tls-key")
    host, port = listen
    if not is_loopback(host) and tls_certificate is None:
        if not insecure:
            raise refuse(
                f"{host} can be reached from other machines, and passwords would travel there in clear: give "
                "--tls-certificate and --tls-key, or say that it is meant by --insecure"
            )
        warn(f"passwords travel to {host}:{port} in clear")
    path = (users or default_file()).absolute()
    options = ConsoleOptions(
        path,
        host,
        port,
        tls=_server_tls(tls_certificate, tls_key),
        allowed_hosts=tuple(allow_host or ()),
        read_only=read_only,
        open_metrics=open_metrics,
        idle_s=idle_timeout,
        absolute_s=sign_in_lifetime,
    )
    log = logging.getLogger("tidings")
    log.setLevel(min(log.level, logging.INFO))
    take_all_files()
    allow_hosts((log_hosts or "").split(","))
    with connected(zookeeper, timeout) as cluster:
        ended = asyncio.run(_until_signalled(Console(cluster, options), cluster.address))
    raise typer.Exit(128 + ended)


async def _until_signalled(console: Console, cluster: str) -> int:
    """Run it until the first Ctrl-C or SIGTERM; the signal. A second one does what it always does."""
    loop = asyncio.get_running_loop()
    stop, found = asyncio.Event(), [0]

    def end(number: int) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(one)
            signal.signal(one, signal.SIG_DFL)
        found[0] = number
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    await console.run(stop, lambda: _started(console, cluster))
    return found[0]


def _started(console: Console, cluster: str) -> None:
    """Tell that it listens, and of the first user, who is made only then."""
    from tidings.console.users import FIRST_USER, add_first_user

    path = console.options.users
    password = add_first_user(path)
    if password is not None:
        note(f"user {FIRST_USER!r} was made in {path}, with the password {password}  (it is shown only now)")
    told = ", which can only be looked at" if console.read_only else ""
    note(f"console of {cluster}{told} listens on {console.address}; Ctrl-C ends it")


def _server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise InvalidOption(f"{certificate} and its key cannot be used for TLS: {error}") from None
    return context


@users.command("add", short_help="Add a user, or change its role and password.")
def add_command(
    name: UserName,
    role: Annotated[
        Literal["viewer", "operator"], typer.Option(help="A viewer looks; an operator acts, too.")
    ] = "viewer",
    users: UsersFile = None,
    json: Json = False,
) -> None:
    """Add a user, or change its role and password. The password is asked for; where there is no terminal, it is stdin.

    A console that runs takes it over at once, and signs out who was signed in by that name.
    """
    from tidings.console.users import add_user, default_file

    path = (users or default_file()).absolute()
    add_user(path, name, role, _password())
    emit(
        {"user": name, "role": role, "file": str(path)},
        json,
        lambda: note(f"user {name!r} has the role {role} in {path}"),
    )


@users.command("list")
def list_command(users: UsersFile = None, json: Json = False) -> None:
    """List the users with their roles."""
    from tidings.console.users import default_file, read_users

    path = (users or default_file()).absolute()
    found = [{"user": one.name, "role": one.role} for one in read_users(path).values()]
    emit(found, json, lambda: print_table(["USER", "ROLE"], [list(one.values()) for one in found]))


@users.command("remove", short_help="Remove a user, and sign it out.")
def remove_command(name: UserName, users: UsersFile = None, json: Json = False) -> None:
    """Remove a user. Whoever is signed in by that name is signed out."""
    from tidings.console.users import default_file, remove_user

    path = (users or default_file()).absolute()
    remove_user(path, name)
    emit({"removed": name, "file": str(path)}, json, lambda: note(f"user {name!r} is removed from {path}"))


def _password() -> str:
    """A password, from a terminal or a pipe; never an argument, which other users of the machine could see."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    first = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != first:
        raise refuse("these are two different passwords")
    return first
