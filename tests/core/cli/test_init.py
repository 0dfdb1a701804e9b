"""`tidings init`, and what it says to type next."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.all_up import all_up
from tests.support.commands import Run, lines, told
from tests.support.places import ROOT
from tidings.cli.init import TEMPLATE
from tidings.config.spec import load

BIN = Path(sys.executable).parent


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the environment that the tests run in were activated."""
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")


def test_a_folder_that_is_there_is_refused_and_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    assert told(run("init", "shop").err) == "error: shop is there already: choose another name, or remove it"
    assert not list((tmp_path / "shop").iterdir())
    assert "'../shop' is no name for a project" in told(run("init", "../shop").err)


def test_what_is_printed_last_are_two_commands_that_a_shell_finds(
    run: Run, shell: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run("init", "shop")
    assert (made.code, made.err) == (0, "")
    assert made.out.splitlines()[-2:] == ["  cd shop && pytest", "  tidings up"]
    assert sorted(one.name for one in (tmp_path / "shop").iterdir()) == [
        "pytest.ini",
        "service.py",
        "test_service.py",
        "tidings.yml",
    ]
    spec = load(tmp_path / "shop" / "tidings.yml")
    assert (spec.name, bool(spec.streams and spec.pipelines and spec.applications)) == ("shop", True)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert run("init", "other").out.splitlines()[-1] == f"  {BIN}/tidings up"


def test_the_files_of_a_project_are_shipped() -> None:
    assert Path(str(TEMPLATE)).is_relative_to(ROOT / "core" / "tidings"), "all of which is in the wheel"


@pytest.mark.slow
def test_the_commands_that_are_told_run_the_tests_and_then_the_project(
    run: Run, shell: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, up = (line.strip() for line in run("init", "shop").out.splitlines()[-2:])
    monkeypatch.delenv("TIDINGS_ZOOKEEPER")
    tested = subprocess.run(
        ["bash", "-c", test], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), tested.stdout
    assert up == "tidings up"  # which is started here at free ports
    with all_up(tmp_path / "shop") as running:
        monkeypatch.setenv("TIDINGS_ZOOKEEPER", running.zookeeper)
        service = subprocess.Popen(
            [sys.executable, "service.py"], cwd=tmp_path / "shop", stdout=subprocess.PIPE, text=True
        )
        try:
            for number, amount in enumerate(("20", "250")):
                order = {
                    "object": f"order/{number}",
                    "version": 1,
                    "attributes": {"amount": amount},
                    "payload": {"to": "Ada"},
                }
                assert run("streams", "publish", "orders", stdin=lines(order)).code == 0
            assert service.stdout is not None
            assert select.select([service.stdout], [], [], 180)[0], running.log.read_text()
            assert service.stdout.readline() == "invoice for order/1: 250 from Ada\n"
        finally:
            service.send_signal(signal.SIGTERM)
            service.communicate(timeout=30)
