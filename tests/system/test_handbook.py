"""The drills of the handbook work as they stand there."""

from __future__ import annotations

import configparser
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tidings.config.spec import load

PAGE = (ROOT / "docs" / "handbook.md").read_text()
DRILLS = PAGE.split("\n## Drills\n")[1]
PATIENCE_S = 500.0  # two cores may be busy with other tests


def commands() -> list[tuple[str, list[str]]]:
    """Each command of the drills, with the lines that it is to print; … stands for anything."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", DRILLS, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def project(folder: Path) -> None:
    spec = re.search(r"```yaml\n(.*?)```", DRILLS, re.DOTALL)
    assert spec is not None
    (folder / "tidings.yml").write_text(spec[1])


@pytest.mark.slow
def test_the_drills_work_as_they_stand_in_the_handbook(tmp_path: Path) -> None:
    project(tmp_path)
    drills = commands()
    lines = ["set -o pipefail", "trap 'kill $(jobs -p)' EXIT"]
    for number, (command, _) in enumerate(drills):
        end = "" if command.endswith("&") else f" || {{ [ $? -ge 128 ] || exit {number % 100 + 1}; }}"
        lines += [f"echo '@@{number}'", f"{command}{end}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(lines)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    try:
        out, _ = shell.communicate(timeout=PATIENCE_S)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGTERM)
            shell.communicate()
    told = {int(number): text for number, text in re.findall(r"@@(\d+)\n(.*?)(?=@@\d|\Z)", out, re.DOTALL)}
    log = (tmp_path / "up.log").read_text()
    assert shell.returncode == 0, f"{drills[max(told)][0]}:\n{out[-2000:]}\n{log[-3000:]}"
    for number, (command, expected) in enumerate(drills):
        for line in expected:
            pattern = ".*".join(map(re.escape, line.split("…")))
            assert re.search(pattern, told[number]), f"{command}: {told[number]}"


def test_the_file_of_a_service_and_the_unit_can_be_read(tmp_path: Path) -> None:
    spec = next(block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "thialfi" in block)
    (tmp_path / "tidings.yml").write_text(spec)
    assert set(load(tmp_path / "tidings.yml").pipelines) == {"contacts"}
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)[0])
    assert unit["Service"]["Restart"] == "always"
