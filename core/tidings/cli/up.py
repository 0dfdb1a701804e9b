"""`tidings up`: everything of a `tidings.yml` on this machine, kept running."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import SERVICE_TIMEOUT_S, Json, Timeout, ZooKeeper, connected, listen_address
from tidings.cli.output import emit, note, print_table, refuse
from tidings.cli.project import project_file
from tidings.cli.signals import SignalCount
from tidings.errors import InvalidOption, PluginMissing
from tidings.hosts import is_loopback

if TYPE_CHECKING:
    from tidings.cluster import Cluster
    from tidings.config.spec import Spec
    from tidings.runtime.child_processes import ChildProcesses
    from tidings.runtime.kept_zookeeper import KeptZooKeeper, ZooKeeperChoice
    from tidings.runtime.log_lines import LogLine, Tell
    from tidings.runtime.processes import ProcessPlan

EXAMPLES = """\b
Examples:
  tidings up                             all of the tidings.yml of this folder or one above
  tidings up --dry-run                   what it would start
  tidings up project/tidings.yml --publishers 2 --no-console
"""

PROGRAM = (sys.executable, "-P", "-m", "tidings.cli.child")
STEP_S = 0.2
CONSOLE_PLACE = ("127.0.0.1", 8090)


def up_command(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="The file; else tidings.yml or tidings.yaml in this folder, or the nearest one above.",
            show_default=False,
        ),
    ] = None,
    publishers: Annotated[int, typer.Option(metavar="N", min=0, max=64, help="How many publishers.")] = 1,
    listen: Annotated[
        Any,
        typer.Option(
            metavar="[HOST:]PORT",
            parser=listen_address,
            help="Where clients connect: the first gateway there, others at the ports after it. Port 0: free ones.",
        ),
    ] = "127.0.0.1:8080",
    console: Annotated[
        Any,
        typer.Option(
            metavar="[HOST:]PORT",
            parser=listen_address,
            help="Where the web console listens, for this machine alone. Port 0: a free one.",
            show_default="127.0.0.1:8090",
        ),
    ] = None,
    no_console: Annotated[bool, typer.Option("--no-console", help="Run no web console.", show_default=False)] = False,
    zookeeper_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Of the ZooKeeper that is run if none is named; 0: a free one.",
            show_default="as the last time, else 2181 if it is free",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be started, and start nothing.")] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = SERVICE_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Run everything of a tidings.yml on this machine, until Ctrl-C: for development, and for small installations.

    That is: a ZooKeeper, unless --zookeeper, TIDINGS_ZOOKEEPER or the file names one; the streams and applications, as
    `tidings apply` makes them; publishers; all pipelines; a gateway for each Thialfi service; the web console. What
    ZooKeeper knows is kept below the `storage` of the file, so that all goes on after a restart.

    A process that ends is started again, after pauses that grow to a minute. What all of them print goes to stderr, a
    line each, with the name of the process. When all run, a table of what listens where goes to stdout. Ctrl-C and
    SIGTERM end all in good order; a second one ends all at once, which loses nothing.
    """
    from tidings.cli.apply_plan import check_alone
    from tidings.cli.up_plan import plan
    from tidings.config.spec import load
    from tidings.runtime.kept_zookeeper import KeptZooKeeper, ZooKeeperChoice
    from tidings.runtime.project_lock import ProjectLock

    if zookeeper is not None and zookeeper_port is not None:
        raise refuse("--zookeeper-port is for a ZooKeeper that is started, and --zookeeper names one that runs")
    place = _console_place(console, no_console)
    path = project_file(file)
    spec = load(path, partly=True)
    check_alone(spec).check()  # whatever is wrong is told before anything starts
    folder = spec.storage_folder / "up"
    plans = plan(spec, folder, publishers=publishers, listen=listen, console=place)
    choice = ZooKeeperChoice(folder / "zookeeper", zookeeper or os.environ.get("TIDINGS_ZOOKEEPER"), spec.zookeeper)
    if dry_run:
        _print_plan(plans, choice, json)
        return
    _log_as_others()
    with contextlib.ExitStack() as closing:
        closing.enter_context(ProjectLock(folder, path.absolute()))
        ending = closing.enter_context(SignalCount())
        if place is not None:
            _check_free(*place)
        server = None
        if choice.address is None:
            kept = KeptZooKeeper(spec.storage_folder / "zookeeper", choice.ports(zookeeper_port), _tell)
            server = closing.enter_context(kept)
            choice.note(server.address)
        cluster = closing.enter_context(connected(choice.named, timeout, file=file))
        _prepare(spec, cluster, folder, _tell)
        _run(spec, plans, cluster, server, ending, json)
    raise typer.Exit(128 + ending.first)


def _console_place(given: tuple[str, int] | None, no_console: bool) -> tuple[str, int] | None:
    """Where the console is to listen; None for no console."""
    if given is not None and no_console:
        raise refuse("--console and --no-console are one or the other")
    if no_console:
        return None
    if importlib.util.find_spec("aiohttp") is None:
        if given is not None:
            raise PluginMissing("the console needs aiohttp: pip install 'tidings[console]'")
        note("there is no console, which needs aiohttp: pip install 'tidings[console]', or add --no-console")
        return None
    host, port = given or CONSOLE_PLACE
    if not is_loopback(host):
        raise refuse(
            f"{host} can be reached from other machines, which takes TLS: leave it out by --no-console, and run "
            "`tidings console`"
        )
    return host, port


def _check_free(host: str, port: int) -> None:
    from tidings.runtime.zookeeper_probes import PortTaken, usable_port

    try:
        usable_port(host, port)
    except PortTaken:
        raise InvalidOption(
            f"port {port} of the console is in use by another program: stop that one, or choose another by --console"
        ) from None


def _prepare(spec: Spec, cluster: Cluster, folder: Path, tell: Tell) -> None:
    """Make the cluster as the file says, and what plugins need beside that."""
    from tidings.cli.apply_plan import carry_out
    from tidings.cli.apply_plan import plan as plan_apply
    from tidings.cli.up_plan import plugins
    from tidings.runtime.log_lines import own_line

    actions = plan_apply(spec, cluster)
    for warning in (warning for action in actions for warning in action.warnings):
        tell(own_line("up", "WARNING", warning))
    carry_out(actions, cluster)
    for action in actions:
        if action.verb in ("create", "change"):
            tell(own_line("up", "INFO", f"{action.kind} {action.name!r} is {action.verb}d"))
    for plugin in plugins():
        plugin.prepare(spec, cluster, folder)


def _run(
    spec: Spec,
    plans: Sequence[ProcessPlan],
    cluster: Cluster,
    server: KeptZooKeeper | None,
    ending: SignalCount,
    json: bool,
) -> None:
    """Keep all running until a signal comes."""
    from tidings.console.users import default_file
    from tidings.runtime.child_processes import ChildProcesses
    from tidings.runtime.log_lines import own_line
    from tidings.runtime.start_watch import StartWatch

    environment = {**os.environ, "TIDINGS_ZOOKEEPER": cluster.address, "PYTHONUNBUFFERED": "1"}
    watch = StartWatch(plans, cluster.coordination, _tell)

    def hear(line: LogLine) -> None:
        _tell(line)
        watch.hear(line)

    children = ChildProcesses(plans, [*PROGRAM, str(os.getpid())], environment, hear)
    made_users = not default_file().exists()
    try:
        while not ending.count:
            children.step(STEP_S)
            if server is not None:
                server.keep()
            if watch.reached():
                _print_table(spec, children, watch.addresses, cluster.address, server, made_users, json)
        _tell(own_line("up", "INFO", "ends all; once more ends all at once"))
    finally:
        children.stop(ending.hurried)


def _log_as_others() -> None:
    """What is logged in this very process has the form of the other lines; its handlers go with the command."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s up: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    for handler in logging.getLogger("tidings").handlers:
        handler.setFormatter(formatter)


def _tell(line: LogLine) -> None:
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    typer.echo(line.render(colour=colour), err=True, color=colour)


def _print_plan(plans: Sequence[ProcessPlan], choice: ZooKeeperChoice, json: bool) -> None:
    rows = [{"process": one.name, "command": " ".join(("tidings", *one.arguments))} for one in plans]

    def show() -> None:
        print_table(["PROCESS", "COMMAND"], [list(row.values()) for row in rows])
        note(f"ZooKeeper is {choice.address or 'started, too'}; nothing was started (--dry-run)")

    emit({"zookeeper": choice.address, "processes": rows}, json, show)


def _print_table(
    spec: Spec,
    children: ChildProcesses,
    addresses: dict[str, str | None],
    cluster: str,
    server: KeptZooKeeper | None,
    made_users: bool,
    json: bool,
) -> None:
    from tidings.cli.up_plan import CONSOLE

    rows: list[tuple[str, int | None, str | None]] = [
        ("zookeeper", server.pid if server else None, cluster),
        *((child.plan.name, child.pid, addresses[child.plan.name]) for child in children.children),
    ]

    def show() -> None:
        print_table(["PROCESS", "PID", "LISTENS ON"], [[name, pid and str(pid), place] for name, pid, place in rows])
        typer.echo(f"\nAll run. In another terminal:\n  export TIDINGS_ZOOKEEPER={cluster}")
        if spec.streams:
            typer.echo(f"  tidings streams tail {next(iter(spec.streams))}")
        typer.echo("  tidings flows list")
        if CONSOLE in addresses:
            who = (
                ": sign in as admin, with the password in the log above, which is shown only once" if made_users else ""
            )
            typer.echo(f"The console is at {addresses[CONSOLE]}{who}. `tidings console users` says who may sign in.")
        typer.echo("Ctrl-C ends all.")

    listed = [{"process": name, "pid": pid, "listens": place} for name, pid, place in rows]
    emit({"zookeeper": cluster, "processes": listed}, json, show)
    sys.stdout.flush()
