from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.thialfi_stage import answers, op, register
from tidings.cli import main
from tidings.cluster import Cluster, connect
from tidings.coordination.pipeline_lock import PipelineLock
from tidings.errors import ForeignValue, InvalidOption, PipelineHeld, UnknownStream
from tidings.testing import eventually, held
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.service import Service, ServiceExists, UnknownService, create, drop_state, read


@pytest.fixture
def service(cluster: Cluster, tmp_path: Path) -> Service:
    cluster.create_stream("contacts", shards=2)
    return create(cluster, "s", ["contacts"], storage=tmp_path / "storage", shards=2)


def told(cluster: Cluster) -> list[tuple[object, ...]]:
    return answers(held(cluster.stream("s.notifications").log))


def test_a_service_is_made_once_and_read(cluster: Cluster, service: Service, tmp_path: Path) -> None:
    again = create(cluster, "s", ["contacts"], storage=tmp_path / "storage", shards=2)
    assert again == read(cluster, "s") == service
    with pytest.raises(ServiceExists, match="service 's' is there already"):
        create(cluster, "s", ["contacts"], storage=tmp_path / "elsewhere")
    with pytest.raises(UnknownService, match=r"there is no service 'other' .*\(services: s\)"):
        read(cluster, "other")
    with pytest.raises(UnknownStream):
        create(cluster, "t", ["none"], storage=tmp_path)
    with pytest.raises(InvalidOption, match="away_days"):
        create(cluster, "t", ["contacts"], storage=tmp_path, options={"away_days": -1})


@pytest.mark.parametrize("value", [{}, {"identity": "x", "streams": 7, "pipeline": "p", "storage": "/s"}])
def test_a_service_that_makes_no_sense_is_told_with_its_node_and_the_cure(cluster: Cluster, value: object) -> None:
    cluster.coordination.create(value, "thialfi", "odd")  # type: ignore[arg-type]
    with pytest.raises(ForeignValue, match=r"/thialfi/odd is no service .*delete it"):
        read(cluster, "odd")


def test_a_service_tells_clients_in_a_pipeline_and_goes_on_after_its_state_was_dropped(
    spark: SparkSession, cluster: Cluster, service: Service
) -> None:
    contacts, operations = cluster.stream("contacts"), cluster.stream("s.operations")
    with contacts.producer() as updates, operations.producer() as ops:
        with service.open(cluster).start(spark) as run:
            ops.publish_many([op(1, stream_schema.CREATED), op(2, stream_schema.CREATED), register(1, "alice", 10)])
            eventually(lambda: (1, "unknown", "alice", 10) in told(cluster), timeout=60)
            updates.publish("alice", version=5, payload=b"five")
            eventually(lambda: (1, "notify", "alice", 5, b"five") in told(cluster), timeout=60)
            ops.publish_many([register(2, "alice", 20)])
            eventually(lambda: (2, "notify", "alice", 5, b"five") in told(cluster), timeout=60)
            with pytest.raises(PipelineHeld), connect(cluster.address) as other:
                drop_state(other, "s")
        run.wait()
        before = len(told(cluster))
        dropped = drop_state(cluster, "s")
        assert dropped == read(cluster, "s")
        assert dropped.identity != service.identity
        assert not service.folder.exists()
        with service.open(cluster).start(spark):
            ops.publish_many([op(1, stream_schema.ONLINE)])
            eventually(lambda: (1, "invalid") in told(cluster), timeout=60)
            ops.publish_many([op(1, stream_schema.CREATED), register(1, "alice", 30), op(1, stream_schema.SYNC, 30)])
            # The updates are read again from the beginning, and so the version is known.
            eventually(lambda: (1, "registered", "alice", 30) in told(cluster), timeout=60)
    assert told(cluster).count((1, "notify", "alice", 5, b"five")) == 2
    assert len(told(cluster)) == before + 4, "nothing that clients wanted before is done once more"


def test_a_service_from_the_command_line(
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", f"{zookeeper}/{uuid.uuid4()}")
    monkeypatch.chdir(tmp_path)
    assert main(["streams", "create", "contacts", "--log", "delta:contacts"]) == 0
    create = ["thialfi", "create", "s", "--stream", "contacts", "--storage", "state", "--log", "delta:s"]
    assert main([*create, "--option", "away_days=7"]) == 0
    assert (tmp_path / "s.operations").is_dir()
    assert "tells of contacts" in capsys.readouterr().err
    assert main(["thialfi", "status", "s", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["running"], status["gateways"], status["rows"]) == (None, None, {})
    assert main(["thialfi", "status", "s"]) == 0
    assert main(["thialfi", "drop-state", "s"]) == 2
    assert main(["thialfi", "drop-state", "s", "--dry-run"]) == 0
    with connect(os.environ["TIDINGS_ZOOKEEPER"]) as cluster:
        assert read(cluster, "s").identity == status["identity"]
        assert read(cluster, "s").options == {"away_days": 7}
        assert main(["thialfi", "drop-state", "s", "--execute"]) == 0
        assert read(cluster, "s").identity != status["identity"]
        claim = PipelineLock(cluster.coordination, "s")
        capsys.readouterr()
        assert main(["thialfi", "drop-state", "s", "--execute"]) == 1
        assert "error: pipeline 's' runs already" in capsys.readouterr().err
        claim.release()
