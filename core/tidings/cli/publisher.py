"""`tidings publisher`: a publisher in the foreground."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import typer

from tidings.cli.options import SERVICE_TIMEOUT_S, Timeout, TokenFile, ZooKeeper, connected, existing_file, security
from tidings.cli.output import note, refuse
from tidings.runtime.session import session

EXAMPLES = """\b
Examples:
  tidings publisher                                 all streams of the cluster
  tidings publisher --streams contacts,clicks --name east-1
  TIDINGS_TOKEN=... tidings publisher --tls-authority authority.pem
"""


def publisher_command(
    streams: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="The streams or families it can read, as in contacts,clicks; else all.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Names this publisher; no two may have one name.", show_default="made up")
    ] = None,
    replica: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Read this replica of streams that have it, and no others.", show_default=False
        ),
    ] = None,
    token_interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.01, max=3600.0, help="How often a flow's datamarker is moved.")
    ] = 5.0,
    session_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1.0, max=3600.0, help="How soon others take its flows when it dies without a word."
        ),
    ] = 10.0,
    token_file: TokenFile = None,
    tls_authority: Annotated[
        Any,
        typer.Option(
            metavar="FILE",
            parser=existing_file,
            help="Speak TLS, and trust subscribers whose certificate this one signed (PEM).",
            show_default=False,
        ),
    ] = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = SERVICE_TIMEOUT_S,
) -> None:
    """Run a publisher: it takes flows, reads their logs and sends updates to subscribers, until Ctrl-C.

    It logs to stderr. When it is stopped it lets subscribers acknowledge what was sent and gives its flows away; a
    second Ctrl-C ends it at once, and others go on from the last datamarkers.
    """
    chosen = None if streams is None else [one.strip() for one in streams.split(",")]
    if chosen is not None and not all(chosen):
        raise refuse(f"--streams is a list of names, as in contacts,clicks, not {streams!r}")
    known = security(token_file, authority=tls_authority)
    logger = logging.getLogger("tidings")
    logger.setLevel(min(logger.level, logging.INFO))  # what it takes and releases is what one wants to see
    with (
        connected(zookeeper, timeout, session_timeout=session_timeout) as cluster,
        cluster.publisher(
            session, streams=chosen, name=name, replica=replica, token_interval=token_interval, security=known
        ) as publisher,
    ):
        note(f"publisher {publisher.name} runs at {cluster.address}; Ctrl-C stops it")
        publisher.run()
