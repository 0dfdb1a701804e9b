from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.scene import Scene
from tidings.coordination.subscriber_record import SubscriberRecord
from tidings.subscriber.load import DEAD_BAND_RATIO, LEAST_RATIO, LoadMeter, Weighing, adjusted
from tidings.testing import eventually

SHARDS = 8

loads = st.floats(0, 1)
capacities = st.floats(0.01, 100)


@given(capacities, st.floats(LEAST_RATIO, 1), loads, st.lists(loads, max_size=5))
def test_a_weight_stays_between_a_small_part_of_the_capacity_and_all_of_it(
    capacity: float, part: float, load: float, others: list[float]
) -> None:
    weight = adjusted(capacity * part, capacity, load, others)
    assert capacity * LEAST_RATIO <= weight <= capacity


@given(capacities, st.floats(LEAST_RATIO, 1), loads, st.floats(-DEAD_BAND_RATIO, DEAD_BAND_RATIO))
def test_loads_that_are_about_the_same_change_nothing(capacity: float, part: float, load: float, off: float) -> None:
    other = min(1.0, max(0.0, load + off * 0.99))
    assert adjusted(capacity * part, capacity, load, [other]) == capacity * part


@given(capacities, st.floats(LEAST_RATIO, 1), loads, st.lists(loads, min_size=1, max_size=5))
def test_only_who_is_busier_than_the_others_asks_for_less(
    capacity: float, part: float, load: float, others: list[float]
) -> None:
    before = capacity * part
    after = adjusted(before, capacity, load, others)
    if after < before:
        assert load > sum(others) / len(others)
    if after > before:
        assert load < sum(others) / len(others)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"address": "a:1"},
        {"address": "a:1", "capacity": "much"},
        {"address": "a:1", "capacity": -1},
        {"capacity": 1e300},
    ]
    + [{"address": "a:1", "capacity": 1, "load": load} for load in ("high", -1, 7, None)],
)
def test_a_subscriber_that_describes_itself_in_nonsense_is_none(value: dict[str, object]) -> None:
    assert SubscriberRecord.from_json(value) is None


def test_a_meter_tells_the_part_of_the_time_in_which_workers_were_busy() -> None:
    now = 0.0
    meter = LoadMeter(workers=2, clock=lambda: now)
    meter.begin()
    now = 4.0
    assert meter.read() == 0.5, "one of two, and it is still at work"
    now = 5.0
    meter.end()
    now = 9.0
    assert meter.read() == 0.1, "for one second of five"
    assert meter.read() == 0.0


def test_a_subscriber_looks_at_its_fellows_only_if_it_is_busy_or_has_less_than_its_share() -> None:
    meter, asked = LoadMeter(workers=1), []

    def fellows() -> list[SubscriberRecord | None]:
        asked.append(1)
        return [SubscriberRecord.from_json({"capacity": 1, "load": 0.1})]

    weighing = Weighing(meter, 1.0, 10.0)
    weighing.look(fellows)
    assert not asked, "idle, with all of its share"
    meter.begin()
    meter.read()
    weighing.look(fellows)
    assert len(asked) == 1, "busy"
    assert weighing.record["weight"] < 1
    meter.end()
    meter.read()
    weighing.look(fellows)
    assert len(asked) == 2, "idle again, with less than its share"


@pytest.mark.slow
def test_flows_move_from_a_subscriber_that_is_busy_to_one_that_is_not(scene: Scene) -> None:
    scene.prepare(SHARDS, balance="zookeeper")
    scene.publisher("p1")
    scene.publisher("p2")

    def holders() -> Counter[str]:
        nodes = [scene.node("cache", shard, "subscriber") for shard in range(SHARDS)]
        return Counter(node["id"] for node in nodes if node)

    with (
        scene.subscriber("cache", "busy", slow=0.05, load_interval=0.5),
        scene.subscriber("cache", "idle", load_interval=0.5),
    ):
        eventually(lambda: holders() == {"busy": 4, "idle": 4})
        with scene.load(rows=20):
            eventually(lambda: 0 < holders()["busy"] <= 2 and holders().total() == SHARDS, timeout=60)
            records = {
                id: scene.cluster.coordination.read("applications", "cache", "subscribers", id) or {}
                for id in ("busy", "idle")
            }
            assert records["busy"]["load"] > 0.5 > records["idle"]["load"]
            assert records["busy"]["weight"] < records["busy"]["capacity"]
        scene.finish("busy", "idle", timeout=60)
        rows = scene.record("busy", "idle").rows
        assert len(rows) == len(set(rows)), "a flow that moves at a token repeats nothing"
