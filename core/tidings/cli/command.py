"""All commands, those of plugins among them, and what is the same for each: logging, signals, errors.

This module imports nothing heavy: Spark, Delta and ZooKeeper come in with the command that needs them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Annotated

import typer

from tidings import __version__
from tidings.cli.applications import applications
from tidings.cli.apply import EXAMPLES as APPLY_EXAMPLES
from tidings.cli.apply import apply_command
from tidings.cli.audit import EXAMPLES as AUDIT_EXAMPLES
from tidings.cli.audit import audit_command
from tidings.cli.backup import BACKUP_EXAMPLES, RESTORE_EXAMPLES, backup_command, restore_command
from tidings.cli.console import console
from tidings.cli.doctor import doctor_command
from tidings.cli.flows import flows
from tidings.cli.formats import CommandGroup
from tidings.cli.init import EXAMPLES as INIT_EXAMPLES
from tidings.cli.init import init_command
from tidings.cli.jars import jars_command
from tidings.cli.keys import keys
from tidings.cli.members import publishers, subscribers
from tidings.cli.output import note
from tidings.cli.plugins import plugins_command
from tidings.cli.publisher import EXAMPLES as PUBLISHER_EXAMPLES
from tidings.cli.publisher import publisher_command
from tidings.cli.run import EXAMPLES as RUN_EXAMPLES
from tidings.cli.run import run_command
from tidings.cli.schema import EXAMPLES as SCHEMA_EXAMPLES
from tidings.cli.schema import schema_command
from tidings.cli.stdout import OutputFailed, whole_output
from tidings.cli.streams import streams
from tidings.cli.subscribe import EXAMPLES as SUBSCRIBE_EXAMPLES
from tidings.cli.subscribe import subscribe_command
from tidings.cli.up import EXAMPLES as UP_EXAMPLES
from tidings.cli.up import up_command
from tidings.cli.zookeeper import zookeeper_command
from tidings.errors import TidingsError
from tidings.identity.environment import INSECURE
from tidings.plugins import installed_names, load

EXAMPLES = """\b
Examples:
  tidings doctor                                  is this machine ready?
  tidings init shop                               a small project that runs
  tidings up                                      everything of a tidings.yml, on this machine
  tidings zookeeper                               a ZooKeeper for development
  tidings streams create contacts --log delta:/data/contacts
  echo '{"object": "alice", "version": 1}' | tidings streams publish contacts
  tidings streams tail contacts --from earliest
  tidings applications create cache --stream contacts
  tidings publisher                               sends streams to applications
  tidings subscribe cache                         receives an application's updates
  tidings flows list --application cache          who sends what to whom, and the lag
  tidings apply tidings.yml --dry-run
  tidings run                                     runs the pipelines of a tidings.yml

\b
Environment:
  TIDINGS_ZOOKEEPER              the cluster's address, when --zookeeper does not name it
  TIDINGS_SECRET                 the secret of the cluster, for publishers and operators; or TIDINGS_SECRET_FILE
  TIDINGS_APPLICATION_KEY        an application's key, for its subscribers; or TIDINGS_APPLICATION_KEY_FILE
  TIDINGS_ZOOKEEPER_CREDENTIALS  what `tidings keys show --role` prints, for others who come to ZooKeeper
  TIDINGS_ZOOKEEPER_AUTHORITY    speak TLS to ZooKeeper: the file of the certificate that signed its own; beside it
                                 TIDINGS_ZOOKEEPER_CERTIFICATE and TIDINGS_ZOOKEEPER_KEY, if it wants one of ours
  TIDINGS_INSECURE               1 is the same as --insecure
  TIDINGS_LOG_HOSTS              the hosts of databases to which we may connect, beside this machine: db1,db2:5433
  PGSSLMODE, MYSQL_SSL_MODE      what is enough for databases on other hosts, if not TLS with a certificate of that host
  NO_COLOR                       when set, nothing is coloured
"""

# Plain help and errors: one sentence a line can be searched, logged and read aloud; a box drawn around it cannot.
app = typer.Typer(
    name="tidings",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=EXAMPLES,
)
app.command("init", short_help="Make a small project that runs.", epilog=INIT_EXAMPLES)(init_command)
app.command("up", short_help="Run everything of a tidings.yml on this machine.", epilog=UP_EXAMPLES)(up_command)
app.command("apply", short_help="Apply a tidings.yml to the cluster.", epilog=APPLY_EXAMPLES)(apply_command)
app.command("run", short_help="Run the pipelines of a tidings.yml.", epilog=RUN_EXAMPLES)(run_command)
app.command("schema", short_help="Print the JSON Schema of tidings.yml, for editors.", epilog=SCHEMA_EXAMPLES)(
    schema_command
)
app.add_typer(streams, name="streams")
app.add_typer(applications, name="applications")
app.command("subscribe", short_help="Receive an application's updates.", epilog=SUBSCRIBE_EXAMPLES)(subscribe_command)
app.command("publisher", short_help="Send streams to applications.", epilog=PUBLISHER_EXAMPLES)(publisher_command)
app.add_typer(flows, name="flows")
app.add_typer(publishers, name="publishers")
app.add_typer(subscribers, name="subscribers")
app.command("audit", short_help="Show who changed what, and when.", epilog=AUDIT_EXAMPLES)(audit_command)
app.add_typer(console, name="console")
app.add_typer(keys, name="keys")
app.command("backup", short_help="Print what ZooKeeper keeps, to restore it.", epilog=BACKUP_EXAMPLES)(backup_command)
app.command("restore", short_help="Make a cluster from a back-up.", epilog=RESTORE_EXAMPLES)(restore_command)
app.command("plugins", short_help="List the plugins that are installed: logs, stages and others.")(plugins_command)
app.command("doctor", short_help="Is this machine ready, and if not, what to do?")(doctor_command)
app.command("jars", short_help="Fetch the jars that Spark needs, once.")(jars_command)
app.command("zookeeper", short_help="Run a ZooKeeper in the foreground, for development.")(zookeeper_command)


def _broken(problem: TidingsError) -> Callable[[], None]:
    def command() -> None:
        raise problem

    return command


# A plugin's commands: an entry point of the group `tidings.commands` names a function that adds them to this app.
for _name in installed_names("tidings.commands"):
    try:
        load("tidings.commands", _name)(app)
    except TidingsError as error:  # the other commands work all the same
        app.command(_name, short_help="This plugin does not import.")(_broken(error))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidings {__version__}")
        raise typer.Exit


@app.callback()
def _tidings(
    context: typer.Context,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, show_default=False, help="Log more to stderr; twice: ZooKeeper too."
        ),
    ] = 0,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Connect to a ZooKeeper on another machine without credentials: whoever reaches it may change what "
            "is there.",
            show_default=False,
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Publish/subscribe for people who run Spark."""
    context.with_resource(_logging(verbose))
    if insecure:
        context.with_resource(_insecurely())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; see `tidings.cli.main`."""
    with whole_output():
        return _flushed(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    hook = sys.excepthook
    terminated = threading.Event()
    try:
        with _terminable(terminated):
            app(arguments, prog_name="tidings")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except TidingsError as error:
        failed = _failed(error)  # it may be what came of the signal
        return 128 + signal.SIGTERM if terminated.is_set() else failed
    finally:
        sys.excepthook = hook  # typer put its own there, for the whole process
    return 0


def _failed(error: TidingsError) -> int:
    for line in str(error).splitlines():
        note(f"error: {line}")
    return 1


def _flushed(code: int) -> int:
    """The exit code, once all output is out; a reader that went away, as `head` does, is no reason for a trace."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return code or 1
    except OutputFailed as error:
        return code or _failed(error)
    return code


@contextlib.contextmanager
def _insecurely() -> Iterator[None]:
    """What the environment would say; commands that we start are told, too."""
    before = os.environ.get(INSECURE)
    os.environ[INSECURE] = "1"
    try:
        yield
    finally:
        os.environ.pop(INSECURE)
        if before is not None:
            os.environ[INSECURE] = before


@contextlib.contextmanager
def _terminable(terminated: threading.Event) -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that sessions are closed and what is durable is reported."""

    def end(number: int, frame: FrameType | None) -> None:
        terminated.set()
        raise SystemExit(128 + number)

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _logging(verbose: int) -> Iterator[None]:
    """Log to stderr while a command runs: our warnings; not kazoo's, because we tell its errors in our own words.

    How far a snapshot is, is always told: it may take long, and is a part of what somebody asked for.
    """
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    level = [logging.WARNING, logging.INFO, logging.DEBUG][min(verbose, 2)]
    # Below INFO kazoo logs its requests, and the credentials in them.
    levels = {
        "tidings": level,
        "tidings_connectors": level,
        "tidings_thialfi": level,
        "tidings_log_tailing": level,
        "kazoo": logging.INFO if verbose > 1 else logging.CRITICAL,
    }
    snapshots = "tidings_connectors.cdc.snapshot"
    before = {name: logging.getLogger(name).level for name in (*levels, snapshots)}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).addHandler(handler)
    logging.getLogger(snapshots).setLevel(logging.INFO)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
            logging.getLogger(name).removeHandler(handler)
