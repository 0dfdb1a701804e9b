"""What datastores keep of their logs for our sake, and when that is told."""

from __future__ import annotations

import logging

import pytest

from tidings.flows import Flow
from tidings.retention import MUCH_BYTES, LogRetention, RetainedBy

FLOW = Flow("cache", "shop", 3)


def kept(size: int, room: int | None = None) -> RetainedBy:
    return RetainedBy(size, room, None, FLOW)


@pytest.mark.parametrize(
    ("size", "room", "much"),
    [
        (MUCH_BYTES - 1, None, False),
        (MUCH_BYTES, None, True),
        (499, 501, False),
        (500, 500, True),
        (MUCH_BYTES, 3 * MUCH_BYTES, False),
        (10, -5, True),
    ],
)
def test_much_is_half_of_what_would_be_kept_or_a_gibibyte_without_a_limit(
    size: int, room: int | None, much: bool
) -> None:
    assert kept(size, room).much is much


def test_that_much_is_kept_is_told_once_and_once_that_it_is_not_any_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    retention = LogRetention()
    for size in (1, MUCH_BYTES, MUCH_BYTES + 5, MUCH_BYTES - 1, 2 * MUCH_BYTES, MUCH_BYTES // 2 - 1, 3):
        retention.watch("shop", kept(size))
    retention.watch("shop", kept(700, 100))
    retention.watch("shop", None)
    look = "see `tidings flows list --stream shop`"
    assert [record.getMessage() for record in caplog.records] == [
        f"stream 'shop': the datastore keeps 1.0 GiB of its log for cache/shop/3; {look}",
        "stream 'shop': the datastore keeps 512.0 MiB of its log by now",
        f"stream 'shop': the datastore keeps 700 B of its log for cache/shop/3, and would keep 100 B more; {look}",
        "stream 'shop': the datastore keeps nothing of its log by now",
    ]


def test_what_publishers_report_of_it_is_read_back_and_nonsense_is_not() -> None:
    assert RetainedBy.from_json(kept(7, 3).to_json()) == kept(7, 3)
    for nonsense in ({}, {"bytes": "7"}, {**kept(7).to_json(), "flow": ["cache", "shop"]}):
        assert RetainedBy.from_json(nonsense) is None
