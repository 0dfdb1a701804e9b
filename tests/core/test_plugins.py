from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidings.errors import PluginBroken, PluginMissing
from tidings.plugins import installed, load
from tidings_connectors.delta.log import DeltaLog


def test_a_log_is_found_by_its_scheme() -> None:
    assert load("tidings.logs", "delta") is DeltaLog


def test_a_plugin_that_is_not_installed_is_named_beside_those_that_are() -> None:
    with pytest.raises(PluginMissing, match=r"no log 'carrier-pigeon' is installed \(installed: delta, delta-cdf"):
        load("tidings.logs", "carrier-pigeon")


def install(folder: Path, name: str, points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


def test_a_plugin_that_is_there_twice_is_refused_whichever_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("raven", "crow"):
        install(tmp_path, name, f"[tidings.logs]\nbird = {name}_log:Bird\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginBroken, match=r"log 'bird' is there more than once, in crow 1.0 and raven 1.0: uninstall"):
        load("tidings.logs", "bird")


def test_a_plugin_that_does_not_import_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "pigeon", "[tidings.logs]\npigeon = pigeon_log:Pigeon\n")
    (tmp_path / "pigeon_log.py").write_text("import wings_that_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginBroken, match=r"log 'pigeon' \(pigeon 1.0\) does not import: No module named 'wings_"):
        load("tidings.logs", "pigeon")
    states = {plugin.name: plugin.problem for plugin in installed()}
    assert states["delta"] is None
    assert "wings_that_nobody_has" in (states["pigeon"] or "")
    sys.modules.pop("pigeon_log", None)
