from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidings.runtime import doctor
from tidings.runtime.doctor import Check

COMMAND = str(Path(sys.executable).with_name("tidings"))


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where something listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDINGS_ZOOKEEPER", raising=False)


def test_a_machine_that_runs_these_tests_is_ready() -> None:
    found = {check.name: check for check in doctor.checks()}
    assert list(found) == ["python", "java", "packages", "jars", "memory", "ports", "zookeeper"]
    needed = [found[name] for name in ("python", "java", "packages", "jars", "memory", "zookeeper")]
    assert [check for check in needed if not check.ok or check.fix] == []


def test_a_java_home_without_java_is_told_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    fix = "Point it to Java 17 or later."
    assert doctor.check_java() == Check("java", False, f"JAVA_HOME is '{tmp_path}', which holds no Java", fix)


def test_jars_that_are_missing_are_told_and_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDINGS_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    check = doctor.check_jars()
    assert (check.ok, check.fix) == (False, "Run 'tidings jars'.")
    assert list(tmp_path.iterdir()) == []


def test_a_ready_folder_without_the_jars_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_JARS", str(tmp_path))
    check = doctor.check_jars()
    assert not check.ok
    assert "delta-storage-4.4.0.jar is missing" in check.found


def test_a_package_that_is_missing_or_of_another_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["pyspark==4.2.0", "pyspark<3,>=2.2", "nonesuch>=1", "unwanted>=1; extra == 'dev'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: required)
    check = doctor.check_packages()
    assert (check.ok, check.found) == (False, "pyspark is 4.2.0, not <3,>=2.2; nonesuch is missing")
    assert "pip install --upgrade tidings" in check.fix


def test_a_free_port_is_well_and_a_silent_one_is_not(free_port: int, silent_port: int) -> None:
    assert doctor.check_ports(free_port) == Check("ports", True, f"{free_port} is free")
    assert not doctor.check_ports(silent_port).ok


def test_a_port_with_a_zookeeper_on_it_is_a_note(zookeeper: str) -> None:
    port = int(zookeeper.partition("/")[0].rpartition(":")[2])
    check = doctor.check_ports(port)
    assert check.ok
    assert f"{port} is in use by a ZooKeeper (3." in check.found


def test_a_zookeeper_that_answers_is_told_with_its_version(zookeeper: str, free_port: int) -> None:
    servers = zookeeper.partition("/")[0]
    check = doctor.check_zookeeper(f"127.0.0.1:{free_port},{servers}/root")
    assert check.ok
    assert f"{servers} answers (3." in check.found
    assert check.found.endswith("standalone)")


def test_a_zookeeper_that_does_not_answer_is_told_with_its_fix(free_port: int, silent_port: int) -> None:
    for port in (free_port, silent_port):
        check = doctor.check_zookeeper(f"127.0.0.1:{port}/tidings")
        assert (check.ok, check.found) == (False, f"127.0.0.1:{port} does not answer")
        assert "tidings zookeeper" in check.fix


@pytest.mark.parametrize("address", ["host:port", ":2181", "host:99999", "/root", ""])
def test_what_is_no_address_is_told_as_such(address: str) -> None:
    check = doctor.check_zookeeper(address)
    assert (check.ok, check.found) == (False, f"'{address}' is no address")


def test_the_command_ends_with_1_and_prints_a_fix_when_something_fails(free_port: int) -> None:
    asked = [COMMAND, "doctor", "--zookeeper", f"127.0.0.1:{free_port}"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ""
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("zookeeper")]
    assert "failed" in line
    assert "Start it" in line


def test_the_command_prints_json_for_programs(zookeeper: str) -> None:
    done = subprocess.run(
        [COMMAND, "doctor", "--json", "--zookeeper", zookeeper], capture_output=True, text=True, check=False
    )
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["zookeeper"]["ok"] is True
    assert done.returncode == (0 if all(check["ok"] for check in checks.values()) else 1)
