"""`tidings subscribe`: a subscriber that prints updates, or hands them to a command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import (
    SERVICE_TIMEOUT_S,
    Application,
    ApplicationKey,
    JsonLines,
    Metrics,
    ProgressTimeout,
    Timeout,
    ZooKeeper,
    connected,
    existing_file,
    subscriber_security,
)
from tidings.cli.output import note, refuse
from tidings.cli.tail import check_reader, json_line, printed_line
from tidings.errors import TidingsError
from tidings.identity.environment import APPLICATION_KEY, CREDENTIALS, SECRET
from tidings.texts import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from tidings.datamarkers import Datamarker
    from tidings.flows import Flow
    from tidings.positions import Position
    from tidings.subscriber.subscriber import Subscriber
    from tidings.updates import Update

EXAMPLES = """\b
Examples:
  tidings subscribe cache                                    print updates as they come
  tidings subscribe cache --json --limit 10
  tidings subscribe cache --exec './load.sh'                 a batch at a time, as JSON lines on stdin
  tidings subscribe cache --id east-1 --application-key key --tls-authority authority.pem
"""

SECRETS = (APPLICATION_KEY, SECRET, CREDENTIALS, "MYSQL_PWD", "PGPASSWORD")
"""What is in our environment for ourselves and our connectors: a command of --exec has no need of it."""

LAST_TOKEN_TIMEOUT_S = 15.0  # after the last update, for the token that acknowledges it
TERMINATION_GRACE_S = 5.0  # for a command to end when it is asked to


def subscribe_command(
    application: Application,
    json: JsonLines = False,
    id: Annotated[
        str | None, typer.Option(help="The subscriber's id, which must be unique.", show_default="made up")
    ] = None,
    capacity: Annotated[
        float, typer.Option(metavar="N", min=0.001, max=1e6, help="Its share of the flows, beside other subscribers'.")
    ] = 1.0,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="Give each batch to this shell command, as JSON lines on stdin, instead of printing it; "
            "exit code 0 acknowledges the batch.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="End after so many updates; a batch is not split for --exec.", show_default=False
        ),
    ] = None,
    application_key: ApplicationKey = None,
    tls_authority: Annotated[
        Any,
        typer.Option(
            metavar="FILE",
            parser=existing_file,
            help="Speak TLS, and trust publishers whose certificate this one signed (PEM).",
            show_default=False,
        ),
    ] = None,
    tls_certificate: Annotated[
        Any,
        typer.Option(
            metavar="FILE",
            parser=existing_file,
            help="Our own certificate, for publishers that want one.",
            show_default=False,
        ),
    ] = None,
    tls_key: Annotated[
        Any, typer.Option(metavar="FILE", parser=existing_file, help="The certificate's key.", show_default=False)
    ] = None,
    metrics: Metrics = None,
    progress_timeout: ProgressTimeout = 60.0,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = SERVICE_TIMEOUT_S,
) -> None:
    """Subscribe as one instance of an application, and print its updates as they come. Ctrl-C ends it.

    Updates that are lost to the log, or skipped for their age or by an operator, are told on stderr. What was printed
    but not yet acknowledged comes again, to this application's next subscriber: at the end of --limit too, if it cuts a
    batch.

    A command that fails is run again with the same batch, a few times; then the flow is parked, where
    `tidings flows list` shows it. It finds TIDINGS_APPLICATION, TIDINGS_STREAM, TIDINGS_SHARD and TIDINGS_EPOCH in its
    environment, and none of our secrets: the key, ZooKeeper's credentials, MYSQL_PWD and PGPASSWORD are left out.
    """
    if (tls_certificate is None) != (tls_key is None):
        raise refuse("TLS needs both --tls-certificate and --tls-key")
    if json and command is not None:
        raise refuse("--json is about printing, and --exec prints nothing: a command always gets JSON")
    known = subscriber_security(application_key, certificate=tls_certificate, key=tls_key, authority=tls_authority)
    line = json_line if command is not None else printed_line(json)
    handler = _BatchSink(application, line, command, limit)
    subscribers: list[Subscriber] = []
    with contextlib.ExitStack() as closing:
        cluster = closing.enter_context(connected(zookeeper, timeout, credentials=known.credentials()))
        if metrics is not None:
            from tidings.subscriber.metrics import serve

            server = serve(metrics, cluster.coordination, subscribers, progress_timeout=progress_timeout)
            closing.enter_context(server)
            note(f"metrics are at http://{server.address}/metrics")
        handler.realtime = cluster.application(application).mode == "realtime"
        subscriber = closing.enter_context(
            cluster.subscribe(application, handler, id=id, capacity=capacity, security=known)
        )
        subscribers.append(subscriber)
        note(f"subscriber {subscriber.id} of {application!r} runs; Ctrl-C ends it")
        try:
            while not handler.ended.wait(1.0):
                cluster.coordination.check_known()
                if command is None:
                    check_reader()
            handler.acknowledged.wait(LAST_TOKEN_TIMEOUT_S)
        finally:
            handler.stop()
    if handler.error is not None:
        raise handler.error


class CommandFailed(TidingsError):
    """The command of --exec ended in another way than with exit code 0."""


class _Ended(BaseException):
    """Nothing more is wanted. It is no Exception, so that it is no failure to be tried again and then parked."""


class _BatchSink:
    """Prints each batch, or gives it to a command. Callbacks come one at a time, from the subscriber's thread."""

    def __init__(
        self, application: str, line: Callable[[Update, str], str], command: str | None, limit: int | None
    ) -> None:
        self.ended = threading.Event()
        """Nothing more is taken: the limit is reached, or nobody reads our output."""
        self.acknowledged = threading.Event()
        """All that can be acknowledged after that is."""
        self.error: BaseException | None = None
        self.realtime = False
        """Whether updates may be too old for the application."""
        self._application = application
        self._line = line
        self._command = command
        self._left = limit
        self._unacknowledged: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def on_batch(self, rows: pa.RecordBatch) -> None:
        """The next updates of a flow."""
        from tidings.updates import to_updates

        about = {key.decode(): value.decode() for key, value in rows.schema.metadata.items()}
        stream, flow = about["stream"], (about["stream"], int(about["shard"]))
        if self.ended.is_set():
            self._settle(flow)  # a token would come after this batch, which is not processed
            raise _Ended
        whole = self._command is not None or self._left is None or rows.num_rows <= self._left
        updates = to_updates(rows if whole else rows.slice(0, self._left))
        text = "".join(f"{self._line(update, stream)}\n" for update in updates)
        if self._command is not None:
            self._run(self._command, text.encode(), about)
        else:
            self._print(text)
        if self._left is not None:
            self._left -= len(updates)
        if whole:
            self._unacknowledged.add(flow)
        if self._left is not None and self._left <= 0:
            self.ended.set()
            if not whole:
                self._settle(flow)
                raise _Ended

    def on_token(self, flow: Flow, datamarker: Datamarker) -> None:
        """All that was taken of the flow is acknowledged."""
        self._settle((flow.stream, flow.shard))

    def on_data_loss(self, flow: Flow, first: Position, last: Position) -> None:
        """The log does not hold these any more."""
        note(f"lost: {flow}: {_place(first)} to {_place(last)}")

    def on_skipped(self, flow: Flow, count: int) -> None:
        """These were left out: for their age, or in an application that gets all by the word of an operator."""
        why = "too old" if self.realtime else "skipped by an operator"
        note(f"skipped: {flow}: {counted(count, 'update')}, {why}")

    def stop(self) -> None:
        """Take nothing more, and end the command that runs: its batch comes again."""
        self.ended.set()
        with self._lock:
            process = self._process
        if process is None:
            return
        self._signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATION_GRACE_S)
        self._signal(process, signal.SIGKILL)

    def _settle(self, flow: tuple[str, int]) -> None:
        self._unacknowledged.discard(flow)
        if self.ended.is_set() and not self._unacknowledged:
            self.acknowledged.set()

    def _print(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:  # nobody reads, or the disk is full
            self.error = error
            self._unacknowledged.clear()
            self.acknowledged.set()
            self.ended.set()
            raise _Ended from error

    def _run(self, command: str, lines: bytes, about: dict[str, str]) -> None:
        names = {f"TIDINGS_{key.upper()}": value for key, value in about.items()}
        ours = {key: value for key, value in os.environ.items() if key not in SECRETS}
        environment = {**ours, "TIDINGS_APPLICATION": self._application, **names}
        with self._lock:
            if self.ended.is_set():
                raise _Ended
            # A session of its own, so that what the shell started can be ended with it.
            self._process = subprocess.Popen(
                command, shell=True, stdin=subprocess.PIPE, env=environment, start_new_session=True
            )
        try:
            self._process.communicate(lines)
            code = self._process.returncode
        finally:
            with self._lock:
                self._process = None
        if code != 0 and self.ended.is_set():
            raise _Ended
        if code:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise CommandFailed(f"the command {how}")

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _place(position: Position) -> str:
    return f"{position.seq}.{position.index}" if position.index else str(position.seq)
