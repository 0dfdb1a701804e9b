"""TLS with a PostgreSQL: `verify-full` for every server that is not on this machine, unless `PGSSLMODE` says otherwise.

The environment, libpq's own files and the services in them say whom to trust and what is enough. The address of a
stream is kept in ZooKeeper, so all that it can say is `sslmode=verify-full`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tidings.errors import InvalidOption
from tidings.hosts import is_local
from tidings_connectors.cdc.tls import broken_tls, no_tls

MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
VERIFIED = "verify-full"
SYSTEM = "system"  # for libpq: the authorities that its OpenSSL knows
SSL_REQUEST = struct.pack("!ii", 8, 80877103)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise if an address says of TLS what only the process may say."""
    if parameters.get("sslmode", VERIFIED) != VERIFIED:
        raise InvalidOption(
            "the address of a postgres log can ask for sslmode=verify-full and for nothing less, since it is kept in "
            "ZooKeeper: leave sslmode out, and set PGSSLMODE for the processes that read it"
        )
    for name in parameters:
        if (name.startswith("ssl") and name != "sslmode") or name == "gssencmode":
            raise InvalidOption(
                f"the address of a postgres log must not hold {name}, since it is kept in ZooKeeper: set "
                f"PG{name.upper().replace('_', '')} for the processes that read it, or name a service that has it"
            )
    if "service" in parameters and {"host", "hostaddr"} & set(parameters):
        raise InvalidOption("the address of a postgres log names a service or a host, not both: the service has it")


def tls_settings(parameters: Mapping[str, Any], hosts: Iterable[str]) -> dict[str, str]:
    """What libpq is told of TLS with the hosts that an address names; nothing if its own rules are to hold."""
    if _mode(parameters, hosts) != VERIFIED:
        return {}
    settings = {"sslmode": VERIFIED, "gssencmode": "disable"}  # Kerberos' encryption would come before TLS
    if "service" not in parameters and not os.environ.get("PGSERVICE"):
        settings["sslrootcert"] = _authorities()
    return settings


def tls_problem(parameters: Mapping[str, Any], host: str, address: str, port: int, patience_s: float) -> str | None:
    """What is wrong with the TLS of a server, which is sent nothing else; None if it is good enough, or not wanted."""
    mode = _mode(parameters, [host, address])
    if mode not in ("require", "verify-ca", VERIFIED) or host.startswith("/"):
        return None
    file = _authorities()
    try:
        trusted = ssl.create_default_context(cafile=None if file == SYSTEM else file)
    except OSError as error:
        return f"is not asked, since no certificate can be read in {file!r} ({error.strerror}): correct PGSSLROOTCERT"
    trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as libpq does
    trusted.check_hostname = mode == VERIFIED
    with contextlib.suppress(OSError), socket.create_connection((address, port), patience_s) as plain:
        plain.sendall(SSL_REQUEST)
        answer = plain.recv(1)
        if answer == b"N":
            return no_tls("PGSSLMODE=disable")
        if answer == b"S" and mode != "require":
            try:
                trusted.wrap_socket(plain, server_hostname=host).close()
            except ssl.SSLError as error:
                return broken_tls(error, "PGSSLROOTCERT")
    return None


def _mode(parameters: Mapping[str, Any], hosts: Iterable[str]) -> str:
    """The sslmode that is to hold; none if nobody asked for one and nothing leaves this machine."""
    said = os.environ.get("PGSSLMODE", "")
    if said and said not in MODES:
        raise InvalidOption(f"PGSSLMODE is {said!r}, which is none of {', '.join(MODES)}")
    named = [*hosts] or os.environ.get("PGHOST", "").split(",")
    elsewhere = "service" in parameters or os.environ.get("PGSERVICE") or os.environ.get("PGHOSTADDR")
    local = not elsewhere and all(is_local(host) for host in named)
    return str(parameters.get("sslmode") or said or ("" if local else VERIFIED))


def _authorities() -> str:
    """The file of those whom we trust: as libpq has it, and else this machine's, which libpq may not find itself."""
    given = os.environ.get("PGSSLROOTCERT")
    own = Path("~/.postgresql/root.crt").expanduser()
    return given or (str(own) if own.exists() else ssl.get_default_verify_paths().cafile or SYSTEM)
