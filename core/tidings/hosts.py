"""Hosts: which are this machine, and which this process may connect to for the logs of streams.

The addresses of logs are kept in ZooKeeper, and whoever can write there could have the password of a database sent to a
host of theirs. So a process connects only to hosts that it was told itself: in `TIDINGS_LOG_HOSTS`, by `--log-hosts` of
a publisher, or because the address was given to it, as to `tidings streams create`. This machine is always one of them.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable

from tidings.errors import LogUnavailable

DEFAULT_ADDRESS = "127.0.0.1:2181/tidings"  # of a cluster, where nobody names another

VARIABLE = "TIDINGS_LOG_HOSTS"
EVERY_HOST = "*"

_allowed: set[str] = set()
_given: set[str] = set()


def allow_hosts(hosts: Iterable[str]) -> None:
    """Let this process connect to these hosts; `host:port` is that port alone."""
    _allowed.update(host.strip().lower() for host in hosts if host.strip())


def trust_addresses(locations: Iterable[str]) -> None:
    """These addresses were given to this process, and not read in ZooKeeper; without their schemes."""
    _given.update(locations)


def check_hosts(location: str, hosts: Iterable[tuple[str, int]]) -> None:
    """Raise unless this process may connect to all hosts of an address."""
    if location in _given:
        return
    allowed = _allowed | {one.strip().lower() for one in os.environ.get(VARIABLE, "").split(",")}
    for host, port in hosts:
        known = {EVERY_HOST, host.lower(), f"{host}:{port}".lower()} & allowed
        if not known and not is_local(host):
            raise LogUnavailable(
                f"{host}:{port} is named in ZooKeeper alone, so nothing is sent there: if it is the right one, name it "
                f"in {VARIABLE}, or by --log-hosts of a publisher"
            )


def is_local(host: str) -> bool:
    """Whether what is said there does not leave this machine: it is loopback, or the path of a socket."""
    return host.startswith("/") or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it.

    >>> is_loopback("127.0.0.2"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
