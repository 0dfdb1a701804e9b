"""Where services are in ZooKeeper, and what each role may do there: gateways come as an application."""

from __future__ import annotations

from tidings.coordination.roles import Rights

PLACE = "thialfi"
GATEWAYS, REVOKED, DISCONNECTED = "gateways", "revoked", "disconnected"
_HEARD = Rights(application="r", whose="{}.gateways")

PLACES = {
    PLACE: Rights(producer="r", member="r"),
    f"{PLACE}/*": Rights(producer="r", application="r", whose="{}.gateways"),
    f"{PLACE}/*/{GATEWAYS}": Rights(application="rcd", whose="{}.gateways"),
    f"{PLACE}/*/{GATEWAYS}/*": Rights(application="rw", whose="{}.gateways"),
    f"{PLACE}/*/{REVOKED}": _HEARD,
    f"{PLACE}/*/{REVOKED}/*": _HEARD,
    f"{PLACE}/*/{DISCONNECTED}": _HEARD,
    f"{PLACE}/*/{DISCONNECTED}/*": _HEARD,
}


def gateways_of(service: str) -> str:
    """The application whose subscribers are a service's gateways."""
    return f"{service}.gateways"
