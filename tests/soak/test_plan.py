from __future__ import annotations

import itertools

from tests.soak.plan import KINDS, LASTING_S, schedule

TARGETS = {kind: [f"{kind}-{number}" for number in range(3)] for kind in KINDS}


def test_a_seed_plans_the_same_faults_each_time_and_another_seed_others() -> None:
    assert schedule(7, 180, TARGETS) == schedule(7, 180, TARGETS)
    assert schedule(7, 180, TARGETS) != schedule(8, 180, TARGETS)


def test_all_kinds_come_and_all_faults_are_over_when_the_time_is() -> None:
    for seed in range(50):
        planned = schedule(seed, 180, TARGETS)
        assert {one.kind for one in planned} == set(KINDS)
        assert all(0 < one.lasting <= LASTING_S[1] and one.at + one.lasting <= 180 for one in planned)
        assert all((one.shift != 0) == (one.kind == "clock") for one in planned)


def test_a_target_has_one_fault_at_a_time() -> None:
    shared = {"kill": ["driver"], "stop": ["driver"]}
    for seed in range(50):
        for one, other in itertools.pairwise(schedule(seed, 180, shared)):
            assert one.at + one.lasting < other.at


def test_what_cannot_be_had_is_not_planned() -> None:
    assert {one.kind for one in schedule(1, 180, {"kill": ["driver"], "disk": []})} == {"kill"}
    assert schedule(1, 180, {}) == []
