"""What is wrong with the TLS of a database, in words that say what to do.

That TLS is spoken, and with whom, is up to each datastore's driver. A process says by its environment what is enough;
what ZooKeeper holds of a stream can only ever ask for more.
"""

from __future__ import annotations

import ssl

OTHER_HOST = (62, 64)  # by its name, or by its address
EXPIRED = 10


def no_tls(mode: str) -> str:
    """What is said of a server that speaks no TLS; `mode` is what lets it do without."""
    return (
        f"speaks no TLS, so nothing is sent to it: switch it on there; or, if nobody else is on the way, set {mode} "
        "for this process"
    )


def broken_tls(error: ssl.SSLError, authorities: str) -> str:
    """What is said of a server with which no TLS came about; `authorities` is where one names whom one trusts."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"cannot be spoken to over TLS ({error.reason or 'it broke off'}): see what its own log says of it"
    words = error.verify_message.rstrip(".")
    if error.verify_code in OTHER_HOST:
        return (
            f"has a certificate of another host, so nothing is sent to it ({words}): correct the host in the address, "
            "or give the server a certificate of this one"
        )
    if error.verify_code == EXPIRED:
        return "has a certificate that has expired, so nothing is sent to it: give the server a new one"
    return (
        f"has a certificate that is not signed by whom we trust, so nothing is sent to it ({words}): name the file of "
        f"its authority in {authorities}"
    )
