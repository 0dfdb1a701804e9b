"""How many objects a client may be registered for: the stage knows, whatever gateways they came through."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.thialfi_stage import Row, Service, op, register, unregister
from tidings_thialfi.protocol import stream_schema

MOST = 3


@pytest.fixture
def service(tmp_path: Path) -> Service:
    own = Service(tmp_path, repeat=True, max_registrations=MOST)
    own.batch(ops=[op(1, stream_schema.CREATED), op(2, stream_schema.CREATED)])
    return own


def told(service: Service, *ops: Row) -> list[tuple[object, ...]]:
    """What clients hear of registrations: those that hold, those that are refused, and how many there are."""
    said = ("registered", "unregistered", "refused", "digest")
    return [row for row in service.batch(ops=ops) if row[1] in said]


def test_what_is_beyond_it_is_refused_in_one_batch_and_in_the_next(service: Service) -> None:
    assert told(service, *(register(1, f"o{number}", number) for number in (5, 4, 3, 2, 1))) == [
        (1, "digest", 5, 3),
        (1, "refused", "o4", 4),
        (1, "refused", "o5", 5),
        (1, "registered", "o1", 1),
        (1, "registered", "o2", 2),
        (1, "registered", "o3", 3),
    ]
    assert told(service, register(1, "o6", 6), register(2, "o6", 1)) == [
        (1, "digest", 6, 3),
        (1, "refused", "o6", 6),
        (2, "digest", 1, 1),
        (2, "registered", "o6", 1),
    ]
    assert service.batch(updates=[{"object": "o6", "version": 1}]) == [(2, "notify", "o6", 1)]


def test_to_repeat_one_is_none_more_and_to_give_one_up_makes_room(service: Service) -> None:
    told(service, *(register(1, f"o{number}", number) for number in (1, 2, 3)))
    assert told(service, register(1, "o1", 4)) == [(1, "digest", 4, 3), (1, "registered", "o1", 4)]
    assert told(service, unregister(1, "o1", 5), register(1, "o4", 6)) == [
        (1, "digest", 6, 3),
        (1, "registered", "o4", 6),
        (1, "unregistered", "o1", 5),
    ]


def test_a_sync_takes_the_place_of_what_there_was(service: Service) -> None:
    told(service, *(register(1, f"o{number}", number) for number in (1, 2, 3)))
    said = told(service, *(register(1, f"n{number}", 9) for number in range(4)), op(1, stream_schema.SYNC, 9))
    assert (1, "digest", 9, 3) in said
    assert len([row for row in said if row[1] == "refused"]) == 1


def test_who_has_more_since_before_the_limit_keeps_it_and_gets_no_more(tmp_path: Path) -> None:
    before = Service(tmp_path, repeat=True)
    before.batch(ops=[op(1, stream_schema.CREATED), *(register(1, f"o{number}", number) for number in range(5))])
    before.close()
    before.options["max_registrations"] = MOST
    before.restart()
    assert told(before, register(1, "o9", 9), register(1, "o1", 10)) == [
        (1, "digest", 10, 5),
        (1, "refused", "o9", 9),
        (1, "registered", "o1", 10),
    ]
