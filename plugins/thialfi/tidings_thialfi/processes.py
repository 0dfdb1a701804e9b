"""What `tidings up` runs for Thialfi: a gateway for each service whose pipeline a `tidings.yml` has.

The service is made if it is not there, and so are the keys of its tokens, in a file that nobody else can read.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.runtime.processes import ProcessPlan, Tier
from tidings_thialfi.places import GATEWAYS, PLACE
from tidings_thialfi.protocol.stream_schema import operations_of
from tidings_thialfi.protocol.tokens import MIN_SECRET_BYTES
from tidings_thialfi.service import UnknownService, create, read

if TYPE_CHECKING:
    from tidings.cluster import Cluster
    from tidings.config.spec import Spec

STAGE = "thialfi"
GATEWAY = "up"  # which one it is, among those of the service


def planned(spec: Spec, folder: Path, addresses: Iterator[str]) -> list[ProcessPlan]:
    """The gateways."""
    return [_gateway(service, _keys(folder, service), next(addresses)) for service in _services(spec)]


def _gateway(service: str, keys: Path, listen: str) -> ProcessPlan:
    arguments = ("gateway", "--service", service, "--id", GATEWAY, "--keys", str(keys), "--listen", listen)
    return ProcessPlan(f"gateway-{service}", arguments, Tier.EDGE, ((PLACE, service, GATEWAYS, GATEWAY),))


def prepare(spec: Spec, cluster: Cluster, folder: Path) -> None:
    """Make the services that are not there, and the keys of their tokens."""
    for service, pipeline in _services(spec).items():
        _make_keys(_keys(folder, service))
        try:
            read(cluster, service)
        except UnknownService:
            found = spec.pipelines[pipeline]
            options = {name: value for name, value in found.options.items() if name != "service"}
            streams = [stream for stream in found.input if stream != operations_of(service)]
            create(cluster, service, streams, storage=spec.storage_folder, options=options, pipeline=pipeline)


def _services(spec: Spec) -> dict[str, str]:
    """The pipeline of each service; what is wrong with one is told by who checks pipelines."""
    return {
        one.options["service"]: name
        for name, one in spec.pipelines.items()
        if one.stage == STAGE and isinstance(one.options.get("service"), str)
    }


def _keys(folder: Path, service: str) -> Path:
    return folder / f"gateway-{service}.keys"


def _make_keys(path: Path) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(file, "w") as opened:
        opened.write(f"up {base64.b64encode(secrets.token_bytes(MIN_SECRET_BYTES)).decode()}\n")
