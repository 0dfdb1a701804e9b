"""What is on the disk when: where a file system has one journal for all, a power loss alone would not tell."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidings.stream_definition import StreamDefinition
from tidings.testing import make_updates
from tidings_connectors.delta.log import DeltaLog


class Steps:
    """What was done to files, in order: `sync <file or folder>`, `name <file>` and `make <folder>`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self._note(monkeypatch, "fsync", lambda file: f"sync {os.readlink(f'/proc/self/fd/{file}')}")
        self._note(monkeypatch, "mkdir", lambda folder, mode: f"make {folder}")
        self._note(monkeypatch, "link", lambda source, target: f"name {target}")
        self._note(monkeypatch, "replace", lambda source, target: f"name {target}")

    def _note(self, monkeypatch: pytest.MonkeyPatch, name: str, told: Callable[..., str]) -> None:
        real = getattr(os, name)

        def noting(*arguments: Any) -> None:
            step = told(*arguments)
            real(*arguments)
            self.done.append(step)

        monkeypatch.setattr(os, name, noting)

    def include(self, *patterns: str) -> bool:
        """Whether steps like these are there, one after the other, whatever else is between."""
        left = iter(self.done)
        return all(any(re.fullmatch(pattern, step) for step in left) for pattern in patterns)


def test_the_folders_of_a_new_log_are_durable_before_it_has_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "streams" / "contacts"
    steps = Steps(monkeypatch)
    DeltaLog.create(str(folder), StreamDefinition("contacts", 4, f"delta:{folder}")).close()
    version = rf"name {re.escape(str(folder))}/_delta_log/0+\.json"
    for made in (folder.parent, folder, folder / "_delta_log"):
        expected = re.escape(f"make {made}"), re.escape(f"sync {made.parent}")
        assert steps.include(*expected, version), steps.done


def test_what_a_commit_names_is_durable_before_it_and_it_is_in_the_end(
    log: DeltaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)
    log.append(make_updates(20))
    folder = re.escape(str(log.folder))
    commit = [rf"name {folder}/_delta_log/0*1\.json", rf"sync {folder}/_delta_log"]
    assert steps.include(rf"sync {folder}/\w+\.parquet", f"sync {folder}", *commit), steps.done
    assert steps.include(rf"sync {folder}/_delta_log/\.\S+\.tmp", *commit), steps.done


def test_a_checkpoint_is_durable_before_it_is_told_of(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(make_updates(20))
    steps = Steps(monkeypatch)
    log.maintenance.checkpoint()
    commits = re.escape(str(log.folder / "_delta_log"))
    checkpoint = r"0*1\.checkpoint\.parquet"
    assert steps.include(
        rf"sync \S+/{checkpoint}",
        rf"name {commits}/{checkpoint}",
        f"sync {commits}",
        rf"sync {commits}/\.\S+\.tmp",
        f"name {commits}/_last_checkpoint",
        f"sync {commits}",
    ), steps.done
