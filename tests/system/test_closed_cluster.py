"""A cluster with a secret: every process comes by its own role, everything works, and every node has its rights."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_scene import PROGRAM
from tidings.testing import eventually

PIPELINE = """
storage: .
streams:
  copied: {shards: 2, log: "delta:copied"}
pipelines:
  copy: {input: contacts, stage: filter, options: {filter: "object = 'alice'"}, output: copied}
"""


class Processes:
    """Commands that run in processes, each with the secrets that it should have, and no others."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        hidden = [name for name in os.environ if name.startswith("TIDINGS_")]
        self._environment = {key: value for key, value in os.environ.items() if key not in hidden}
        self._environment["TIDINGS_ZOOKEEPER"] = address
        self._leaving = contextlib.ExitStack()

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> str:
        done = subprocess.run(
            [*PROGRAM, *arguments],
            input=stdin,
            cwd=self._folder,
            env={**self._environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str, *arguments: str, **environment: str) -> Path:
        """Start a command that runs on; the file of what it prints."""
        out, err = self._folder / f"{name}.out", self._folder / f"{name}.err"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                [*PROGRAM, *arguments],
                cwd=self._folder,
                env={**self._environment, **environment},
                stdout=stdout,
                stderr=stderr,
            )
        self._leaving.callback(process.wait, 60)
        self._leaving.callback(process.terminate)
        return out

    def close(self) -> None:
        self._leaving.close()


@pytest.fixture
def processes(zookeeper: str, tmp_path: Path) -> Iterator[Processes]:
    with contextlib.closing(Processes(tmp_path, f"{zookeeper}/{uuid.uuid4()}")) as processes:
        yield processes


def test_each_process_works_with_what_it_has_and_no_more(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(processes.run("keys", "new"))
    operator = {"TIDINGS_SECRET_FILE": "secret"}
    (tmp_path / "tidings.yml").write_text(PIPELINE)
    processes.run("streams", "create", "contacts", "--shards", "2", "--log", "delta:contacts", **operator)
    processes.run("apply", "tidings.yml", **operator)
    processes.run("applications", "create", "cache", "--stream", "copied", "--start", "earliest", **operator)
    made = ("--stream", "contacts", "--storage", "service", "--log", "delta:service", "--shards", "1")
    processes.run("thialfi", "create", "shop", *made, **operator)
    for application in ("cache", "shop.gateways"):
        key = processes.run("keys", "show", "--application", application, **operator)
        (tmp_path / f"{application}.key").write_text(key)
    producer = {"TIDINGS_ZOOKEEPER_CREDENTIALS": processes.run("keys", "show", "--role", "producer", **operator)}
    viewer = {"TIDINGS_ZOOKEEPER_CREDENTIALS": processes.run("keys", "show", "--role", "viewer", **operator)}

    processes.start("publisher", "publisher", "--secret-file", "secret")
    heard = processes.start("cache", "subscribe", "cache", "--application-key", "cache.key", "--json")
    (tmp_path / "keys.txt").write_text(f"k1 {'A' * 43}=\n")
    gateway = ("--service", "shop", "--keys", "keys.txt", "--listen", "127.0.0.1:0")
    told = processes.start("gateway", "gateway", *gateway, "--application-key", "shop.gateways.key")
    processes.start("pipeline", "run", "tidings.yml", **producer)

    processes.run("streams", "publish", "contacts", stdin='{"object": "alice", "version": 1}\n', **producer)
    eventually(lambda: [json.loads(line)["object"] for line in heard.read_text().splitlines()] == ["alice"], timeout=90)

    listening = eventually(lambda: re.findall(r"listens on (\S+);", told.with_suffix(".err").read_text()))
    with urllib.request.urlopen(f"http://{listening[0]}/health/ready", timeout=20) as answer:
        assert answer.status == 200

    flows = json.loads(processes.run("flows", "list", "--application", "cache", "--json", **viewer))
    assert {one["state"] for one in flows} == {"running"}
    checked = json.loads(processes.run("doctor", "--json", **operator))
    assert [one["ok"] for one in checked if one["name"] == "roles"] == [True]
