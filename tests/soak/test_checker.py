"""The checker finds what is wrong with a history, and nothing in one that is as it should be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.soak import checker
from tests.soak.checker import check
from tests.soak.history import Audience, History
from tests.soak.progress import CLIENTS, Share

CACHE = Audience("cache", "contacts", "contacts")
EVENS = Audience("evens", "evens", "contacts", step=2)


def tried(name: str, number: int, time: float = 0.0) -> list[Any]:
    return ["try", time, "contacts", name, number, f"{name}{number}", 1]


def acknowledged(name: str, number: int, time: float = 0.0) -> list[Any]:
    return ["ack", time, "contacts", name, number]


def written(name: str, number: int, time: float = 0.0) -> list[list[Any]]:
    return [tried(name, number, time), acknowledged(name, number, time)]


def notice(recorder: str = "r1", time: float = 0.0, shard: int = 0) -> list[Any]:
    return ["notice", time, "cache", recorder, "contacts", shard]


def row(name: str, number: int, seq: int, time: float = 1.0, recorder: str = "r1", digest: str = "") -> list[Any]:
    body = digest or f"{name}{number}"
    return ["row", time, "cache", recorder, "contacts", 0, seq, 0, name, number, body]


def history(*lines: Iterable[Any]) -> History:
    made = History()
    for line in lines:
        made.add(list(line))
    return made


def found(*lines: Iterable[Any], clients: bool = False) -> list[str]:
    return [one.kind for one in check(history(*lines), [CACHE], "contacts" if clients else None)]


WRITES = [*written("a", 1), *written("b", 1), *written("a", 2)]


def test_nothing_is_found_where_all_came_in_order() -> None:
    assert found(*WRITES, notice(), row("a", 1, 0), row("b", 1, 1), row("a", 2, 2)) == []


def test_a_repeat_from_anywhere_before_is_in_order_after_a_notice_at_any_recorder() -> None:
    begin = [*WRITES, notice(), row("a", 1, 0), row("b", 1, 1)]
    moved = [notice("r2", 2.0), row("b", 1, 1, 2.0, "r2"), row("a", 2, 2, 2.0, "r2")]
    assert found(*begin, *moved, notice("r1", 3.0), row("a", 2, 2, 3.0)) == []


def test_who_was_stopped_in_the_midst_of_a_callback_may_finish_it_late() -> None:
    moved = [notice("r2", 2.0), row("a", 1, 0, 2.0, "r2"), row("b", 1, 1, 2.0, "r2"), row("a", 2, 2, 2.0, "r2")]
    assert found(*WRITES, notice(), row("a", 1, 0), *moved, row("b", 1, 1, 3.0)) == []


def test_an_update_that_a_subscriber_drops_is_found() -> None:
    assert found(*WRITES, notice(), row("a", 1, 0), row("b", 1, 1)) == [checker.LOST]


def test_a_journal_that_says_more_than_was_written_is_found() -> None:
    assert found(*written("a", 1), *written("a", 2), notice(), row("a", 1, 0)) == [checker.LOST]


def test_what_a_subscriber_is_told_to_be_lost_is_found() -> None:
    told = ["loss", 1.0, "cache", "r1", "contacts", 0, "0 to 3"]
    assert found(*written("a", 1), notice(), row("a", 1, 0), told) == [checker.LOST]


def test_a_write_without_an_answer_may_come_or_not() -> None:
    assert found(tried("a", 1), tried("a", 2), notice(), row("a", 2, 0)) == []


@pytest.mark.parametrize("invented", [row("c", 1, 0), row("a", 2, 0), row("a", 1, 0, digest="another")])
def test_what_nobody_wrote_is_found(invented: list[Any]) -> None:
    assert checker.INVENTED in found(*written("a", 1), notice(), row("a", 1, 1, 0.5), notice(time=0.6), invented)


def test_two_updates_at_one_position_are_found() -> None:
    assert checker.INVENTED in found(*WRITES, notice(), row("a", 1, 0), row("b", 1, 0), row("a", 2, 1))


def test_an_update_that_is_written_twice_is_found() -> None:
    assert found(*written("a", 1), notice(), row("a", 1, 0), row("a", 1, 1)) == [checker.REPEATED]


def test_a_pipeline_that_passes_on_what_its_filter_keeps_back_is_found() -> None:
    passed = ["row", 1.0, "evens", "r1", "evens", 0, 0, 0, "a", 1, "a1"]
    assert [one.kind for one in check(history(*written("a", 1), passed), [EVENS])] == [checker.INVENTED]


def test_updates_that_change_places_are_found() -> None:
    assert checker.ORDER in found(*WRITES, notice(), row("a", 1, 0), row("a", 2, 2), row("b", 1, 1))


def test_a_part_that_is_repeated_without_a_notice_is_found() -> None:
    assert found(*WRITES, notice(), row("a", 1, 0), row("b", 1, 1), row("b", 1, 1), row("a", 2, 2)) == [checker.ORDER]


def test_what_is_skipped_for_a_while_is_found_though_it_comes_later() -> None:
    skipped = [
        notice("r2", 2.0),
        row("a", 2, 2, 2.0, "r2"),
        notice("r1", 3.0),
        row("b", 1, 1, 3.0),
        row("a", 2, 2, 3.0),
    ]
    assert found(*WRITES, notice(), row("a", 1, 0), *skipped) == [checker.ORDER]


def test_an_object_whose_log_has_its_versions_the_wrong_way_round_is_found() -> None:
    assert found(*WRITES, notice(), row("a", 2, 0), row("b", 1, 1, 2.0), row("a", 1, 2, 3.0)) == [checker.ORDER]


def told(*lines: list[Any]) -> list[str]:
    heard = [notice(), row("a", 1, 0), row("b", 1, 1), row("a", 2, 2)]
    return found(*WRITES, *heard, ["wants", 0.0, 7, ["a"]], *lines, clients=True)


def test_a_client_that_knows_the_latest_version_or_was_told_to_fetch_it_is_well() -> None:
    assert told(["told", 1.0, 7, "a", 2, "a2"]) == []
    assert told(["told", 1.0, 7, "a", 2, None]) == []
    assert told(["unknown", 1.0, 7, "a"]) == []
    assert told(["unknown", 1.0, 7, None]) == []


def test_a_client_that_ignores_a_notification_is_found() -> None:
    assert told(["told", 1.0, 7, "a", 1, "a1"]) == [checker.STALE]
    assert told(["unknown", -1.0, 7, "a"]) == [checker.STALE], "it fetched the object before that was changed"
    assert told() == [checker.STALE]


def test_a_client_that_is_told_what_nobody_wrote_or_what_it_does_not_want_is_found() -> None:
    latest = ["told", 1.0, 7, "a", 2, "a2"]
    assert told(latest, ["told", 1.0, 7, "a", 9, None]) == [checker.INVENTED]
    assert told(latest, ["told", 1.0, 7, "a", 1, "another"]) == [checker.INVENTED]
    assert told(latest, ["told", 1.0, 7, "b", 1, "b1"]) == [checker.INVENTED]


def test_the_share_counts_writes_that_all_who_lived_have_seen_in_time() -> None:
    lines = [
        *(line for number in range(1, 5) for line in written("a", number, float(number))),
        ["row", 1.5, "cache", "r1", "contacts", 0, 0, 0, "a", 1, "a1"],
        ["row", 2.5, "cache", "r1", "contacts", 0, 1, 0, "a", 2, "a2"],
        ["row", 9.0, "cache", "r1", "contacts", 0, 2, 0, "a", 3, "a3"],
        ["wants", 0.0, 7, ["a"]],
        ["told", 1.5, 7, "a", 1, "a1"],
        ["told", 9.0, 7, "a", 3, "a3"],
    ]

    def judged(away: dict[str, list[tuple[float, float]]]) -> tuple[int, int]:
        made = History()
        share = Share(made, [CACHE], "contacts", within=2.0)
        for line in lines:
            made.add(line)
        share.judge(now=5.5, away=away)
        return share.seen, share.judged

    assert judged({}) == (1, 3), "the client was late with the second, the application with the third"
    assert judged({CLIENTS: [(1.9, 4.0)]}) == (2, 3)
