"""`tidings gateway`: a gateway in the foreground."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import ssl
from asyncio import sslproto
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import (
    SERVICE_TIMEOUT_S,
    ApplicationKey,
    Timeout,
    ZooKeeper,
    connected,
    existing_file,
    key_texts,
    listen_address,
    secret_file,
    size,
    subscriber_security,
)
from tidings.cli.output import note, refuse
from tidings.errors import InvalidOption, PluginMissing
from tidings_thialfi.gateway.options import GatewayOptions

if TYPE_CHECKING:
    from tidings_thialfi.gateway.gateway import Gateway

EXAMPLES = """\b
Examples:
  tidings gateway --service contacts --keys keys.txt
  tidings gateway --service contacts --keys keys.txt --listen 0.0.0.0:443 \\
      --tls-certificate server.pem --tls-key server.key --origin https://app.example
  tidings gateway --service contacts --keys keys.txt --id east-1 --peer-secret peers.txt --advertise 10.0.0.7:8080
"""

MAX_UNCOLLECTED_CONNECTIONS = 1000  # that are gone, and whose garbage may lie about
TLS_BUFFER_BYTES = 16 * 2**10  # that asyncio keeps for each connection: a record of TLS, and not its 256 KiB
DEFAULTS = GatewayOptions()


def add(app: typer.Typer) -> None:
    """Add the command; the entry point `gateway` of the group `tidings.commands`."""
    app.command("gateway", short_help="Serve the clients of a Thialfi service.", epilog=EXAMPLES)(gateway_command)


def _file(help: str) -> Any:
    return typer.Option(metavar="FILE", parser=existing_file, help=help, show_default=False)


def _secrets(help: str) -> Any:
    return typer.Option(metavar="FILE", parser=secret_file, help=help, show_default=False)


def _seconds(help: str, least: float = 0.1) -> Any:
    return typer.Option(metavar="SECONDS", min=least, max=86_400.0, help=help)


def _entries(whose: str) -> Any:
    return typer.Option(metavar="N", min=1, help=f"Entries a second {whose}; 20 times as many at once.")


def _bytes(whose: str) -> Any:
    return typer.Option(metavar="SIZE", parser=size, help=f"Bytes a second {whose}; 20 times as many at once.")


def gateway_command(
    service: Annotated[str, typer.Option(metavar="NAME", help="The service whose clients it serves.")],
    keys: Annotated[Any, _file("The keys under which client tokens are issued: a line each, id and base64.")],
    listen: Annotated[
        Any,
        typer.Option(metavar="[HOST:]PORT", parser=listen_address, help="Where clients reach it. Port 0: a free one."),
    ] = "127.0.0.1:8080",
    id: Annotated[
        str | None, typer.Option(help="The gateway's id, which must be unique.", show_default="made up")
    ] = None,
    tls_certificate: Annotated[Any, _file("Speak TLS to clients with this certificate.")] = None,
    tls_key: Annotated[Any, _file("The certificate's key.")] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="A page that may connect, as in https://app.example; '*': all."),
    ] = None,
    hooks: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The application's hooks: who its users are, and what they may hear of."),
    ] = None,
    hook_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option for the hooks. May be repeated.")
    ] = None,
    publish_to: Annotated[
        str | None, typer.Option(metavar="STREAM", help="The stream that /v1/publish writes into.", show_default=False)
    ] = None,
    publish_tokens: Annotated[Any, _secrets("The bearer tokens for /v1/publish, a line each.")] = None,
    trunk_tokens: Annotated[Any, _secrets("The bearer tokens for proxies that open /v1/trunk, a line each.")] = None,
    peer_secret: Annotated[Any, _secrets("The secret that gateways of this service show each other.")] = None,
    peer_authority: Annotated[Any, _file("Trust gateways whose certificate this one signed (PEM).")] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where other gateways reach it.", show_default="where it listens"),
    ] = None,
    metrics: Annotated[
        Any,
        typer.Option(
            metavar="[HOST:]PORT",
            parser=listen_address,
            help="Serve /metrics there, and not where clients connect.",
            show_default=False,
        ),
    ] = None,
    token_lifetime: Annotated[float, _seconds("How long a client's token is valid.")] = DEFAULTS.token_lifetime,
    renew_within: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            max=DEFAULTS.renew_within,
            help="How long after it expires a token can be renewed.",
        ),
    ] = DEFAULTS.renew_within,
    heartbeat: Annotated[float, _seconds("How often an idle client sends a heartbeat.")] = DEFAULTS.heartbeat,
    offline_after: Annotated[
        float, _seconds("A client that is silent for so long is offline.")
    ] = DEFAULTS.offline_after,
    resend: Annotated[float, _seconds("When a notification that is not acknowledged is sent again.")] = DEFAULTS.resend,
    ping: Annotated[float, _seconds("How often a WebSocket is pinged; 0: never.", 0.0)] = DEFAULTS.ping,
    poll_gap: Annotated[float, _seconds("A client that has not polled for so long is gone.")] = DEFAULTS.poll_gap,
    request_timeout: Annotated[
        float, _seconds("How long a request may take to arrive, and then its body.")
    ] = DEFAULTS.request_timeout,
    max_message: Annotated[
        Any, typer.Option(metavar="SIZE", parser=size, help="The largest message that a client may send.")
    ] = f"{DEFAULTS.max_message // 2**10}KiB",
    max_poll: Annotated[
        Any, typer.Option(metavar="SIZE", parser=size, help="The largest body of a long poll.")
    ] = f"{DEFAULTS.max_poll // 2**10}KiB",
    stall: Annotated[float, _seconds("A client that reads nothing for so long is disconnected.")] = DEFAULTS.stall,
    max_queue: Annotated[
        Any, typer.Option(metavar="SIZE", parser=size, help="What a client may have been sent and not acknowledged.")
    ] = f"{DEFAULTS.max_queue // 2**10}KiB",
    max_pending: Annotated[
        Any, typer.Option(metavar="SIZE", parser=size, help="What is kept for a client until it is acknowledged.")
    ] = f"{DEFAULTS.max_pending // 2**20}MiB",
    max_pending_total: Annotated[
        Any, typer.Option(metavar="SIZE", parser=size, help="What is kept for all clients.")
    ] = f"{DEFAULTS.max_pending_total // 2**20}MiB",
    max_registrations: Annotated[
        int, typer.Option(metavar="N", min=1, help="Registrations of one client.")
    ] = DEFAULTS.max_registrations,
    rate: Annotated[
        float, typer.Option(metavar="N", min=0.01, help="Messages a second of one client.")
    ] = DEFAULTS.rate,
    burst: Annotated[int, typer.Option(metavar="N", min=1, help="Messages of one client at once.")] = DEFAULTS.burst,
    entries: Annotated[int, _entries("of one client")] = DEFAULTS.entries,
    bytes: Annotated[Any, _bytes("of one client")] = f"{DEFAULTS.bytes // 2**10}KiB",
    user_entries: Annotated[int, _entries("of all clients of a user")] = DEFAULTS.user_entries,
    user_bytes: Annotated[Any, _bytes("of all clients of a user")] = f"{DEFAULTS.user_bytes // 2**20}MiB",
    address_entries: Annotated[int, _entries("of all clients of an address")] = DEFAULTS.address_entries,
    address_bytes: Annotated[Any, _bytes("of all clients of an address")] = f"{DEFAULTS.address_bytes // 2**20}MiB",
    total_entries: Annotated[int, _entries("of all clients, at all gateways")] = DEFAULTS.total_entries,
    total_bytes: Annotated[Any, _bytes("of all clients, at all gateways")] = f"{DEFAULTS.total_bytes // 2**20}MiB",
    max_connections: Annotated[
        int, typer.Option(metavar="N", min=1, help="Connections in all.")
    ] = DEFAULTS.max_connections,
    max_per_address: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Connections from one address, and clients that poll; IPv6 by /64."),
    ] = DEFAULTS.max_per_address,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="A proxy whose X-Forwarded-For says where clients are, as in 10.0.0.0/8."),
    ] = None,
    session_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1.0, max=3600.0, help="How soon others take over its flows if it crashes."),
    ] = 10.0,
    application_key: ApplicationKey = None,
    publisher_authority: Annotated[
        Any, _file("Speak TLS with publishers, and trust those whose certificate this one signed (PEM).")
    ] = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = SERVICE_TIMEOUT_S,
) -> None:
    """Run a gateway: clients connect to it, register for objects and hear of their versions, until Ctrl-C.

    It listens on this machine only, unless --listen names another address. When it is stopped it closes its connections
    so that clients go to another gateway; a second Ctrl-C ends it at once.
    """
    try:
        from tidings_thialfi.gateway.gateway import Gateway, GatewayPlace
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise PluginMissing("a gateway needs aiohttp: pip install 'tidings[gateway]'") from None
    from tidings.wire.security import trusting
    from tidings_thialfi.gateway.hooks import load_hooks
    from tidings_thialfi.protocol.tokens import TokenKeys

    if (tls_certificate is None) != (tls_key is None):
        raise refuse("TLS needs both --tls-certificate and --tls-key")
    if (publish_to is None) != (publish_tokens is None):
        raise refuse("/v1/publish needs both --publish-to and --publish-tokens")
    if hook_option and hooks is None:
        raise refuse("--hook-option is for --hooks, which names none")
    options = GatewayOptions(
        token_lifetime=token_lifetime,
        renew_within=renew_within,
        heartbeat=heartbeat,
        offline_after=offline_after,
        resend=resend,
        ping=ping,
        poll_gap=poll_gap,
        request_timeout=request_timeout,
        max_message=max_message,
        max_poll=max_poll,
        max_queue=max_queue,
        max_pending=max_pending,
        max_pending_total=max_pending_total,
        stall=stall,
        max_registrations=max_registrations,
        rate=rate,
        burst=burst,
        entries=entries,
        bytes=bytes,
        user_entries=user_entries,
        user_bytes=user_bytes,
        address_entries=address_entries,
        address_bytes=address_bytes,
        total_entries=total_entries,
        total_bytes=total_bytes,
        max_connections=max_connections,
        max_per_address=max_per_address,
        trusted_proxies=tuple(trusted_proxy or ()),
        origins=tuple(one.rstrip("/") for one in origin or ()),
    )
    security = subscriber_security(application_key, authority=publisher_authority)
    place = GatewayPlace(
        host=listen[0],
        port=listen[1],
        advertise=advertise,
        tls=_server_tls(tls_certificate, tls_key),
        peer_tls=None if peer_authority is None else trusting(peer_authority),
        peer_secret=peer_secret[0] if peer_secret else None,
        security=security,
    )
    log = logging.getLogger("tidings_thialfi")
    log.setLevel(min(log.level or logging.INFO, logging.INFO))
    known = security.credentials()
    with connected(zookeeper, timeout, session_timeout=session_timeout, credentials=known) as cluster:
        gateway = Gateway(
            cluster,
            service,
            TokenKeys.load(keys),
            id=id,
            place=place,
            options=options,
            hooks=None if hooks is None else load_hooks(hooks, key_texts(hook_option)),
            publish_to=publish_to,
            publish_tokens=publish_tokens or (),
            trunk_tokens=trunk_tokens or (),
            serve_metrics=metrics is None,
        )
        ended = asyncio.run(_until_signalled(gateway, metrics))
    raise typer.Exit(128 + ended)


async def _until_signalled(gateway: Gateway, metrics: tuple[str, int] | None) -> int:
    """Run it until the first Ctrl-C or SIGTERM; the signal. A second one does what it always does."""
    from tidings.metrics import MetricsServer

    loop = asyncio.get_running_loop()
    stop, found = asyncio.Event(), [0]

    def end(number: int) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(one)
            signal.signal(one, signal.SIG_DFL)
        found[0] = number
        note("the gateway stops: its clients are sent elsewhere")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    collector = asyncio.create_task(_collect(gateway))
    server = None if metrics is None else MetricsServer(*metrics, gateway.metrics.collectors, gateway.readiness.reasons)
    try:
        await gateway.run(
            stop, started=lambda: note(f"gateway {gateway.id} listens on {gateway.address}; Ctrl-C ends it")
        )
    finally:
        collector.cancel()
        if server is not None:
            await asyncio.to_thread(server.close)
    return found[0]


async def _collect(gateway: Gateway) -> None:
    """Look for cyclic garbage when many connections have gone, which leave some, and not whenever objects are made.

    With thousands of clients a full collection takes a second or more, and all of them wait; by itself it would come
    again and again while notifications are pushed.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 1_000_000)
    collected = 0
    while True:
        await asyncio.sleep(10.0)
        limits = gateway.http.limits
        if limits.closed - collected >= max(MAX_UNCOLLECTED_CONNECTIONS, limits.open // 2):
            collected = limits.closed
            gc.collect()


def _server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise InvalidOption(f"{certificate} and its key cannot be used for TLS: {error}") from None
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
    return context
