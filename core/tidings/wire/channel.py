"""How one connects to a publisher: over gRPC, with or without TLS."""

from __future__ import annotations

import re
from typing import Any

import grpc

from tidings.errors import InvalidOption
from tidings.hosts import is_loopback
from tidings.metrics import parse_address
from tidings.texts import printable
from tidings.wire.flight_data import METHOD, pack_first
from tidings.wire.protocol import MAX_MESSAGE_BYTES, MAX_METADATA_BYTES, MAX_REASON_CHARACTERS, Message
from tidings.wire.security import Security

SAYING_S = 30.0
NO_COMPRESSION = ("grpc.compression_enabled_algorithms_bitset", 1)  # a message is what it is, and no larger


def open_channel(address: str, security: Security) -> Any:
    """A connection of our own, which is made when it is used; no more is read of a message than we take."""
    options = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + 2 * MAX_METADATA_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        NO_COMPRESSION,
    ]
    place = f"dns:///{address}"  # and no other kind of place that gRPC knows: a socket of this machine, say
    if security.authority is None:
        return grpc.insecure_channel(place, options)
    certificate = security.certificate and security.certificate.read_bytes()
    key = security.key and security.key.read_bytes()
    credentials = grpc.ssl_channel_credentials(security.authority.read_bytes(), key, certificate)
    return grpc.secure_channel(place, credentials, options)


def is_address(text: object) -> bool:
    """Whether it is an address that one can connect to.

    >>> is_address("10.0.0.7:7400"), is_address("[::1]:80"), is_address("unix:/run/a.sock"), is_address("127.0.0.1:0")
    (True, True, False, False)
    """
    try:
        return isinstance(text, str) and text.isascii() and ":" in text and parse_address(text)[1] > 0
    except InvalidOption:
        return False


def say(address: str, security: Security, message: Message) -> None:
    """Say one thing to a publisher, and wait until it is heard; OSError if it is not."""
    with open_channel(address, security) as channel:
        try:
            for _ in channel.stream_stream(METHOD)(iter([pack_first(message)]), timeout=SAYING_S):
                pass
        except grpc.RpcError as error:
            raise OSError(f"the publisher at {address} cannot be told: {explain(error, address)}") from None


NOTHING_LISTENS = "nothing listens at its address"
ELSEWHERE = "; that is this very machine: a publisher on another one needs --listen"

_REASONS = (
    (
        re.compile(r"certificate.verify.failed: ([^.:]+)", re.IGNORECASE),
        r"its certificate is not signed by whom we trust (\1)",
    ),
    (re.compile(r"Hostname Verification Check failed"), "its certificate is not for its address"),
    (re.compile(r"wrong.version.number", re.IGNORECASE), "it does not speak TLS, and we do"),
    (re.compile(r"certificate.required", re.IGNORECASE), "it wants a certificate of ours"),
    (
        re.compile(r"Socket closed|Connection reset"),
        "it hung up; perhaps it speaks TLS and we do not, or it wants a certificate of ours",
    ),
    (re.compile(r"Connection refused"), NOTHING_LISTENS),
)


def explain(error: grpc.RpcError, address: str) -> str:
    """Why an exchange with who is at this address has failed, in a sentence for operators."""
    details = str(error.details()) if isinstance(error, grpc.Call) else ""
    first = (details.splitlines() or [""])[0]
    for pattern, reason in _REASONS:
        if found := pattern.search(first):
            more = ELSEWHERE if reason is NOTHING_LISTENS and is_loopback(parse_address(address)[0]) else ""
            return printable(found.expand(reason)[:MAX_REASON_CHARACTERS]) + more
    return printable(first[:MAX_REASON_CHARACTERS]) or "the connection broke"
