"""The soak in short: all of the product at once, under faults of all kinds, watched from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import checker, plan
from tests.soak.soak import run
from tests.soak.world import DATABASES, DROPS, LEAKS, LIES, SPARK, Shape
from tests.support import mysql_install, postgres_server

LACKING = postgres_server.missing() or mysql_install.missing()
SMALL = frozenset({DATABASES, SPARK})


@pytest.mark.slow
@pytest.mark.skipif(LACKING is not None, reason=LACKING or "")
def test_under_faults_of_all_kinds_nothing_is_lost_invented_or_out_of_order(tmp_path: Path) -> None:
    verdict = run(Shape(seed=3, minutes=1.1, clients=100), tmp_path, ending=200.0)
    assert verdict.findings == []
    assert verdict.acknowledged > 500
    assert {fault.kind for fault in verdict.faults} >= set(plan.KINDS) - {plan.DISK, plan.CLOCK}, "all that can be had"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sabotage", "minutes", "found"),
    [({DROPS, LEAKS}, 0.45, {checker.LOST, "descriptors"}), ({LIES}, 0.2, {checker.LOST})],
)
def test_faults_that_are_built_in_on_purpose_are_found(
    tmp_path: Path, sabotage: set[str], minutes: float, found: set[str]
) -> None:
    shape = Shape(seed=1, minutes=minutes, without=SMALL, sabotage=frozenset(sabotage))
    assert run(shape, tmp_path, kinds=frozenset(), ending=5.0).kinds == found
