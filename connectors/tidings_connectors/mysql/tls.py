"""TLS with a MariaDB: `VERIFY_IDENTITY` for every server that is not on this machine, or what `MYSQL_SSL_MODE` says.

| variable | meaning |
| --- | --- |
| `MYSQL_SSL_MODE` | as MySQL's `ssl-mode`: `DISABLED`, `PREFERRED`, `REQUIRED`, `VERIFY_CA`, `VERIFY_IDENTITY` |
| `MYSQL_SSL_CA` | a file with the authorities that are trusted; else the option file's `ssl-ca`, else the system's |
| `MYSQL_SSL_CERT`, `MYSQL_SSL_KEY` | our own certificate and its key, if one is wanted; else those of the option file |

The option file is named by the stream, that is in ZooKeeper. So it says whom to trust only where the environment does
not, and never that less is enough.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any

from tidings.errors import InvalidOption
from tidings.hosts import is_local

MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
VERIFIED = "VERIFY_IDENTITY"
FILES = ("ca", "cert", "key")


def tls_settings(host: str, option_file: Mapping[str, str]) -> dict[str, Any]:
    """What PyMySQL is told of TLS with a host."""
    said = os.environ.get("MYSQL_SSL_MODE", "").upper()
    if said and said not in MODES:
        raise InvalidOption(f"MYSQL_SSL_MODE is {said!r}, which is none of {', '.join(MODES)}")
    files = {name: file for name in FILES if (file := os.environ.get(f"MYSQL_SSL_{name.upper()}"))}
    match said or ("PREFERRED" if is_local(host) else VERIFIED):
        case "DISABLED":
            return {"ssl_disabled": True}
        case "PREFERRED":
            return {"ssl": files} if files else {}
        case mode:
            in_file = {name: file for name in FILES if (file := option_file.get(f"ssl-{name}"))}
            return {"ssl": _context(mode, {**in_file, **files})}


def _context(mode: str, files: Mapping[str, str]) -> ssl.SSLContext:
    """Not the client library's own, which checks no name if no file of authorities is given."""
    try:
        context = ssl.create_default_context(cafile=files.get("ca"))
        if "cert" in files:
            context.load_cert_chain(files["cert"], files.get("key"))
    except OSError as error:
        raise InvalidOption(
            f"what is needed for TLS cannot be read ({error.strerror or error}): correct MYSQL_SSL_CA, MYSQL_SSL_CERT "
            "and MYSQL_SSL_KEY, or ssl-ca, ssl-cert and ssl-key in the option file"
        ) from None
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which the certificates that MariaDB's tools make do not bear
    context.check_hostname = mode == VERIFIED
    context.verify_mode = ssl.CERT_NONE if mode == "REQUIRED" else ssl.CERT_REQUIRED
    return context
