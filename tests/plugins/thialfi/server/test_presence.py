"""What changes while a client is offline costs nothing, and it is told when it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.thialfi_stage import Row, Service, op, register
from tidings.testing import read_table
from tidings_thialfi.protocol import stream_schema


def online(client: int, gateway: str) -> Row:
    return op(client, stream_schema.ONLINE, gateway=gateway)


def offline(client: int, gateway: str) -> Row:
    return op(client, stream_schema.OFFLINE, gateway=gateway)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """Two clients at gateway g, registered for a."""
    own = Service(tmp_path, repeat=True)
    for client in (1, 2):
        own.batch(ops=[op(client, stream_schema.CREATED), online(client, "g"), register(client, "a", 10)])
    return own


def told(service: Service, version: int, *ops: Row) -> list[int]:
    """Who is told of a version of a."""
    rows = service.batch(updates=[{"object": "a", "version": version}], ops=ops)
    return [row[0] for row in rows if row[1] == "notify" and row[3] == version]


def test_who_is_offline_is_told_nothing_until_it_comes_back(service: Service) -> None:
    assert told(service, 1) == [1, 2]
    assert told(service, 2, offline(1, "g")) == [2]
    assert told(service, 3) == [2]
    service.restart()
    assert told(service, 4) == [2]
    rows = service.batch(ops=[online(1, "h")])
    assert rows == [(1, "digest", 10, 1), (1, "notify", "a", 4)]
    assert told(service, 5) == [1, 2]


def test_who_comes_back_in_the_batch_of_the_update_is_told_of_it(service: Service) -> None:
    service.batch(ops=[offline(1, "g")])
    assert told(service, 1, online(1, "g")) == [1, 2]
    assert told(service, 2, offline(1, "g"), online(1, "g")) == [1, 2]
    assert told(service, 3, online(1, "g"), offline(1, "g")) == [2]


@pytest.mark.parametrize("together", [True, False])
def test_a_gateway_that_is_late_to_say_offline_does_not_count(service: Service, together: bool) -> None:
    ops = [online(1, "h"), offline(1, "g")]
    for some in [ops] if together else [[one] for one in ops]:
        service.batch(ops=some)
    assert told(service, 1) == [1, 2]
    assert told(service, 2, offline(1, "h"), offline(1, "g")) == [2]


def test_a_client_that_was_never_said_to_be_anywhere_is_told(service: Service) -> None:
    service.batch(ops=[op(3, stream_schema.CREATED), register(3, "a", 10)])
    assert told(service, 1) == [1, 2, 3]
    assert told(service, 2, offline(3, "g")) == [1, 2]


def test_an_operation_of_a_client_shows_that_it_is_there(service: Service) -> None:
    service.batch(ops=[offline(1, "g")])
    assert told(service, 1) == [2]
    rows = service.batch(ops=[op(1, stream_schema.ACKNOWLEDGE, 0, object="a")])
    assert (1, "notify", "a", 1) in rows
    assert told(service, 2) == [1, 2]


def test_nothing_is_written_for_those_who_are_offline(service: Service) -> None:
    service.batch(ops=[offline(1, "g"), offline(2, "g")])
    service.batch(ops=[op(3, stream_schema.CREATED)])
    before = {name: read_table(service.folder, name) for name in ("registrations", "clients")}
    for version in range(1, 5):
        assert service.batch(updates=[{"object": "a", "version": version}]) == []
    assert {name: read_table(service.folder, name) for name in before} == before
