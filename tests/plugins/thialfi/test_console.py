"""What the console is told of services."""

from __future__ import annotations

from pathlib import Path

from tidings.cluster import Cluster
from tidings_thialfi import service
from tidings_thialfi.console import services


def test_services_are_told_of_and_one_that_makes_no_sense_harms_no_other(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_stream("people", 1)
    service.create(cluster, "contacts", ["people"], storage=tmp_path, shards=1)
    told = {"url": "http://10.0.0.7:8080", "pid": 7, "clients": 3, "delay": {"p50": 0.1, "p99": 0.4}}
    cluster.coordination.create(told, "thialfi", "contacts", "gateways", "g1")
    wrong = {"url": "http://10.0.0.8:8080", "clients": "<b>", "delay": {"p50": float("inf"), "p99": True}}
    cluster.coordination.create(wrong, "thialfi", "contacts", "gateways", "g2")
    cluster.coordination.create({"nonsense": 7}, "thialfi", "odd")
    contacts, odd = services(cluster)
    assert (contacts["service"], contacts["running"], contacts["streams"]) == ("contacts", False, ["people"])
    first, second = contacts["gateways"]
    assert (first["name"], first["clients"], first["pid"]) == ("g1", 3, 7)
    assert first["address"] == "http://10.0.0.7:8080"
    assert first["delay_seconds"] == contacts["delay_seconds"] == {"p50": 0.1, "p99": 0.4}
    assert (second["clients"], second["delay_seconds"]) == (None, {"p50": None, "p99": None})
    assert (contacts["clients"], contacts["problem"]) == (None, None)
    assert odd["problem"]
