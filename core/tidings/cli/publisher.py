"""`tidings publisher`: a publisher in the foreground."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import (
    SERVICE_TIMEOUT_S,
    Metrics,
    ProgressTimeout,
    SecretFile,
    Timeout,
    ZooKeeper,
    connected,
    existing_file,
    publisher_security,
)
from tidings.cli.output import note, refuse
from tidings.hosts import allow_hosts
from tidings.runtime.limits import take_all_files
from tidings.runtime.session import session

if TYPE_CHECKING:
    from tidings.publisher.publisher import Publisher

EXAMPLES = """\b
Examples:
  tidings publisher                                 all streams of the cluster
  tidings publisher --streams contacts,clicks --name east-1
  tidings publisher --listen 10.0.0.7:7400 --secret-file secret --tls-certificate own.pem --tls-key own.key
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
        str | None, typer.Option(help="The publisher's name, which must be unique.", show_default="made up")
    ] = None,
    replica: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Read this replica of streams that have it, and no others.", show_default=False
        ),
    ] = None,
    log_hosts: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="The hosts of databases that it may connect to, beside this machine, as in db1,db2:5433; "
            "TIDINGS_LOG_HOSTS names more. '*': all that ZooKeeper names.",
            show_default=False,
        ),
    ] = None,
    token_interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.01, max=3600.0, help="How often a flow's datamarker is moved.")
    ] = 5.0,
    session_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1.0, max=3600.0, help="How soon others take over its flows if it crashes."),
    ] = 10.0,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where subscribers come to; only this machine can reach 127.0.0.1. Port 0: a free one.",
        ),
    ] = "127.0.0.1:0",
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The address that subscribers are told, if it is another than --listen.",
            show_default=False,
        ),
    ] = None,
    secret_file: SecretFile = None,
    tls_certificate: Annotated[
        Any,
        typer.Option(
            metavar="FILE", parser=existing_file, help="Speak TLS with this certificate (PEM).", show_default=False
        ),
    ] = None,
    tls_key: Annotated[
        Any, typer.Option(metavar="FILE", parser=existing_file, help="The certificate's key.", show_default=False)
    ] = None,
    tls_authority: Annotated[
        Any,
        typer.Option(
            metavar="FILE",
            parser=existing_file,
            help="Let in only subscribers whose certificate this one signed (PEM).",
            show_default=False,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Let in everybody who can reach --listen, though there is no secret.",
            show_default=False,
        ),
    ] = False,
    metrics: Metrics = None,
    metrics_by_shard: Annotated[
        bool,
        typer.Option("--metrics-by-shard", help="Report the lag of each shard: many series.", show_default=False),
    ] = False,
    progress_timeout: ProgressTimeout = 60.0,
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
    if (tls_certificate is None) != (tls_key is None):
        raise refuse("TLS needs both --tls-certificate and --tls-key")
    known = publisher_security(
        secret_file, certificate=tls_certificate, key=tls_key, authority=tls_authority, insecure=insecure
    )
    logger = logging.getLogger("tidings")
    logger.setLevel(min(logger.level, logging.INFO))  # what it takes and releases is what one wants to see
    take_all_files()
    allow_hosts((log_hosts or "").split(","))
    publishers: list[Publisher] = []
    with contextlib.ExitStack() as closing:
        cluster = closing.enter_context(
            connected(
                zookeeper,
                timeout,
                session_timeout=session_timeout,
                credentials=known.credentials("publisher"),
                insecure=insecure,
            )
        )
        if metrics is not None:
            from tidings.publisher.metrics import serve

            server = serve(
                metrics,
                cluster.coordination,
                publishers,
                by_shard=metrics_by_shard,
                progress_timeout=progress_timeout,
            )
            closing.enter_context(server)  # to the end: what happens while flows are given away is seen
            note(f"metrics are at http://{server.address}/metrics")
        publisher = closing.enter_context(
            cluster.publisher(
                session,
                streams=chosen,
                name=name,
                replica=replica,
                token_interval=token_interval,
                listen=listen,
                advertise=advertise,
                security=known,
            )
        )
        publishers.append(publisher)
        note(f"publisher {publisher.name} of {cluster.address} listens on {publisher.address}; Ctrl-C stops it")
        if insecure and not known.secret:
            note(f"warning: whoever can reach {listen} gets every update")
        publisher.run()
