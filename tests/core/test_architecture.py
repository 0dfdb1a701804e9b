"""What is said of the house is true of it."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import ROOT

ROOTS = ("core", "connectors", "plugins")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
SHORT = {"T": "tidings_thialfi"}
NAMES = sorted(set(re.findall(r"`((?:(?:pyspark_)?tidings\w*|T)(?:\.(?!yml)\w+)+)`", ARCHITECTURE)))


def found(name: str) -> Any:
    """The module, class or function of that name."""
    parts = name.split(".")
    parts[0] = SHORT.get(parts[0], parts[0])
    for end in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            value = getattr(value, part)
        return value
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_of_the_map_is_that_of_something_there(name: str) -> None:
    assert found(name) is not None


@pytest.mark.parametrize("way", ["update", "notification"])
def test_the_map_has_each_way_in_numbered_steps_with_names(way: str) -> None:
    walk = ARCHITECTURE.split(f"## The way of a{'n' if way == 'update' else ''} {way}\n")[1].split("\n## ")[0]
    steps = re.findall(r"^(\d+)\. ", walk, re.MULTILINE)
    assert [int(step) for step in steps] == list(range(1, len(steps) + 1))
    assert len(steps) > 10
    assert len(set(NAMES) & set(re.findall(r"`([\w.]+)`", walk))) > 15


def classes() -> Iterator[tuple[str, Path]]:
    for root in ROOTS:
        for file in (ROOT / root).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef):
                    yield node.name, file.relative_to(ROOT)


def test_a_class_name_stands_once() -> None:
    homes = defaultdict(list)
    for name, file in classes():
        homes[name].append(str(file))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


DOCUMENTED = {
    "tidings": "connect embedded session configure Cluster Stream Producer AsyncProducer Subscriber Publisher Handler "
    "Update Position Positions Bounds Flow Datamarker TidingsError",
    "tidings.errors": "FilterWarning PositionsLost",
    "tidings.filters": "Between Equals Exists In Matches Not parse",
    "tidings.log_reading": "TailReader check_held",
    "tidings.logs": "Log WritableLog TailedLog",
    "tidings.stages": "Stage",
    "tidings.streams": "Stream",
    "tidings.testing": "eventually read_table run_stage",
    "tidings_connectors.row_avro": "decoder",
    "tidings_thialfi": "Client AsyncClient Listener service",
}


@pytest.mark.parametrize("module", DOCUMENTED)
def test_documented_names_are_where_they_were(module: str) -> None:
    for name in DOCUMENTED[module].split():
        assert found(f"{module}.{name}") is not None
