"""What the console shows of Thialfi services: their gateways, and how much they know of clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.errors import TidingsError
from tidings_thialfi.places import GATEWAYS, PLACE
from tidings_thialfi.server.tables import row_counts
from tidings_thialfi.service import read

if TYPE_CHECKING:
    from tidings.cluster import Cluster


def services(cluster: Cluster) -> list[dict[str, Any]]:
    """All services; the entry point `thialfi` of the group `tidings.console`.

    Rows that newer ones have replaced are counted until the tables are compacted. What is kept on another machine is
    not known here.
    """
    return [_service(cluster, name) for name in cluster.coordination.children(PLACE)]


def _service(cluster: Cluster, name: str) -> dict[str, Any]:
    try:
        service = read(cluster, name)
        gateways: list[dict[str, Any]] = [
            {
                "name": id,
                "clients": _number(record.get("clients")),
                "address": record.get("url"),
                "pid": record.get("pid"),
                "delay_seconds": _delays(record.get("delay")),
            }
            for id in cluster.coordination.children(PLACE, name, GATEWAYS)
            if (record := cluster.coordination.read(PLACE, name, GATEWAYS, id)) is not None
        ]
        holder = cluster.coordination.read("pipelines", service.pipeline) or {}
    except TidingsError as error:
        return {"service": name, "problem": str(error)}
    rows = _rows(service.folder / "state")
    return {
        "service": name,
        "clients": rows.get("clients"),
        "registrations": rows.get("registrations"),
        "rows": rows,
        "gateways": gateways,
        "streams": list(service.streams),
        "pipeline": service.pipeline,
        "running": bool(holder),
        "host": holder.get("host"),
        "pid": holder.get("pid"),
        "delay_seconds": _worst([one["delay_seconds"] for one in gateways]),
        "problem": None,
    }


def _number(told: object) -> float | None:
    """A number that a gateway tells, if it is one."""
    return told if isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told < math.inf else None


def _delays(told: object) -> dict[str, float | None]:
    return {name: _number(told.get(name) if isinstance(told, Mapping) else None) for name in ("p50", "p99")}


def _worst(delays: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Those of the gateway that is the slowest."""
    known = {name: [at for one in delays if (at := one[name]) is not None] for name in ("p50", "p99")}
    return {name: max(found, default=None) for name, found in known.items()}


def _rows(folder: Path) -> dict[str, int]:
    try:
        return row_counts(folder)
    except Exception:  # noqa: BLE001 - the tables are being written, or are nowhere near
        return {}
