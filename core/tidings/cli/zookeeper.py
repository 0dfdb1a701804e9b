"""`tidings zookeeper`: the embedded ZooKeeper in the foreground, for development."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from tidings.runtime.zookeeper_server import EmbeddedZooKeeper

DEFAULT_FOLDER = Path(".tidings", "zookeeper")


class _Signalled(BaseException):
    """A request to stop. Like KeyboardInterrupt it is no Exception, so that no handler of those swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def zookeeper_command(
    folder: Annotated[Path, typer.Option(help="Where its data is kept, from one run to the next.")] = DEFAULT_FOLDER,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 2181,
    host: Annotated[str, typer.Option(help="The address to listen on; only this machine can reach 127.0.0.1.")] = (
        "127.0.0.1"
    ),
) -> None:
    """Run a ZooKeeper in the foreground, for development, until Ctrl-C.

    It needs no installation but PySpark's. Its address goes to stdout, everything else to stderr.
    """
    server = EmbeddedZooKeeper(folder, port=port, host=host)
    signal.signal(signal.SIGTERM, _raise)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as it is in the background of a script
        signal.signal(signal.SIGINT, _raise)
    try:
        server.start()
        typer.echo(
            f"ZooKeeper runs, with its data in {folder}. To use it, in another terminal:\n"
            f"  export TIDINGS_ZOOKEEPER={server.address}/tidings\n"
            "Ctrl-C stops it.",
            err=True,
        )
        typer.echo(server.address)  # last: a script that reads it knows that all is said
        server.wait()
    except _Signalled as signalled:
        server.stop()
        raise typer.Exit(128 + signalled.number) from None


def _raise(number: int, frame: FrameType | None) -> None:
    # Stopping takes a moment, which an impatient second Ctrl-C must not cut short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Signalled(number)
