"""Applications as a cluster keeps them: what is refused, what is warned of, and what is left when one is dropped."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from tidings import Handler
from tidings.applications import Application, check_start, start_problems
from tidings.cluster import Cluster, connect
from tidings.coordination.membership import sweep
from tidings.errors import (
    ApplicationExists,
    FilterWarning,
    InvalidOption,
    PluginBroken,
    PluginMissing,
    TidingsError,
    UnknownApplication,
)


@pytest.fixture
def contacts(cluster: Cluster) -> Cluster:
    """A cluster with a stream of four shards, and one of two."""
    cluster.create_stream("contacts", shards=4)
    cluster.create_stream("clicks", shards=2)
    return cluster


def put(cluster: Cluster, raw: bytes, name: str = "odd") -> None:
    """A definition that was not written by us."""
    cluster.coordination.client.create(cluster.coordination.path("applications", name), raw, makepath=True)


# ---- the start


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (
            {"clicks": {0: 1}},
            "the start of application 'cache' cannot be: stream 'clicks' is none of the application's",
        ),
        ({"contacts": {3: 1, 4: 1}}, "cannot be: stream 'contacts' has shards 0 to 3, not 4"),
        ({}, "start is earliest, latest, a time"),
    ],
)
def test_a_start_that_no_flow_could_use_is_refused(contacts: Cluster, start: Any, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        contacts.create_application("cache", ["contacts"], start=start)
    assert contacts.applications() == []


def test_a_start_may_name_any_shard_of_any_stream_of_the_application(contacts: Cluster) -> None:
    start = {"contacts": {0: 7, 3: [8, 1]}, "clicks": {1: 9}}
    made = contacts.create_application("cache", ["contacts", "clicks"], start=start)
    assert made.start == {"contacts": {"0": 7, "3": [8, 1]}, "clicks": {"1": 9}}
    assert contacts.application("cache") == made


def test_where_the_number_of_shards_is_not_known_only_the_streams_are_compared() -> None:
    start = {"contacts": {"99": 1}, "clicks": {"0": 1}}
    assert [key for key, _ in start_problems(start, {"contacts": None})] == [("clicks",)]
    assert list(start_problems("earliest", {})) == []


@pytest.mark.parametrize("start", [{}, None, 7, "", "2026-01-01", []])
def test_what_is_no_start_is_refused(start: Any) -> None:
    with pytest.raises(InvalidOption, match="start is earliest, latest, a time with its zone"):
        check_start(start)


# ---- the filter


@pytest.mark.parametrize("start", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
def test_a_start_that_is_in_another_year_of_utc_is_refused(start: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(f"start {start} is not in the years 1 to 9999 of UTC")):
        check_start(start)


def test_a_filter_that_cannot_be_meant_is_warned_of_where_the_application_is_made(contacts: Cluster) -> None:
    with pytest.warns(FilterWarning, match="the filter of application 'cache': `shard = 4` holds for no up") as caught:
        contacts.create_application("cache", ["contacts", "clicks"], filter="shard = 4 or kind = data")
    assert len(caught) == 1
    assert caught[0].filename == __file__, "the warning points at who made the application"
    assert contacts.application("cache").filter == "shard = 4 or kind = data"


def test_a_shard_that_one_of_the_streams_has_is_not_warned_of(contacts: Cluster) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        contacts.create_application("cache", ["contacts", "clicks"], filter="shard = 3")


# ---- the balance


def test_a_balance_that_is_not_installed_is_named_beside_those_that_are(contacts: Cluster) -> None:
    message = r"no balancer 'fair' is installed \(installed: .*\); random and zookeeper are always there"
    with pytest.raises(PluginMissing, match=message):
        contacts.create_application("cache", ["contacts"], balance="fair")
    assert contacts.applications() == []


def test_a_balance_may_be_a_plugin_of_ones_own(
    contacts: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "plugin" / "greedy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tidings.balancers]\ngreedy = greedy:greedy\ntorn = greedy:missing\n")
    (info.parent / "greedy.py").write_text("def greedy(flows, capacities, current):\n    return {}\n")
    monkeypatch.syspath_prepend(str(info.parent))
    assert contacts.create_application("cache", ["contacts"], balance="greedy").balance == "greedy"
    with pytest.raises(PluginBroken, match=r"balancer 'torn' \(greedy 1.0\) does not import"):
        contacts.create_application("other", ["contacts"], balance="torn")


def test_an_application_whose_balancer_is_not_installed_here_can_still_be_read(contacts: Cluster) -> None:
    put(contacts, b'{"version": 1, "name": "odd", "streams": ["contacts"], "balance": "elsewhere"}')
    assert contacts.application("odd").balance == "elsewhere"


# ---- what cannot be read


@pytest.mark.parametrize(
    "raw",
    [
        b"hello",
        b"[1]",
        b"\xff",
        b'{"version": 1}',
        b'{"version": 1, "name": 7, "streams": ["contacts"]}',
        b'{"version": 1, "name": "odd", "streams": 7}',
        b'{"version": 1, "name": "odd", "streams": ["contacts"], "start": {}}',
        b'{"version": 1, "name": "odd", "streams": ["contacts"], "start": {"contacts": 7}}',
        b'{"version": 1, "name": "odd", "streams": ["contacts"], "filter": 7}',
        b'{"version": 1, "name": "odd", "streams": ["contacts"], "max_age": "7", "mode": "realtime"}',
        b'{"version": 2, "name": "odd", "streams": ["contacts"], "mode": "exactly-once"}',
    ],
)
def test_an_application_that_cannot_be_read_is_left_out_and_told_of(
    contacts: Cluster, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    contacts.create_application("cache", ["contacts"])
    put(contacts, raw)
    with caplog.at_level(logging.WARNING):
        assert [one.name for one in contacts.applications()] == ["cache"]
    assert "application 'odd' is left out: " in caplog.text
    with pytest.raises(TidingsError):
        contacts.application("odd")
    with pytest.raises(ApplicationExists, match=r"'odd' is there already, and cannot be read \(.*\); drop it first"):
        contacts.create_application("odd", ["contacts"])
    contacts.drop_application("odd")
    assert contacts.coordination.children("applications") == ["cache"]
    contacts.create_application("odd", ["contacts"])


def test_what_a_later_version_adds_is_left_alone(contacts: Cluster) -> None:
    put(contacts, b'{"version": 2, "name": "odd", "streams": ["contacts"], "priority": 7}')
    assert contacts.applications() == [Application("odd", ("contacts",))]


# ---- dropping


def test_a_dropped_application_leaves_nothing(contacts: Cluster) -> None:
    contacts.create_application("cache", ["contacts"])
    with contacts.subscribe("cache", Handler()):
        pass
    contacts.drop_application("cache")
    assert contacts.coordination.children("applications") == []
    with pytest.raises(UnknownApplication, match=r"no application 'cache' in .* \(applications: none\)"):
        contacts.drop_application("cache")


def test_an_application_dropped_below_a_subscriber_is_gone_once_that_has_left(contacts: Cluster) -> None:
    contacts.create_application("cache", ["contacts"])
    contacts.create_application("mailer", ["contacts"])
    with contacts.subscribe("cache", Handler()) as subscriber:
        contacts.drop_application("cache")
        assert contacts.coordination.children("applications", "cache", "subscribers") == [subscriber.id]
        assert [one.name for one in contacts.applications()] == ["mailer"]
        with pytest.raises(UnknownApplication):
            contacts.drop_application("cache")
    contacts.drop_application("mailer")
    assert contacts.coordination.children("applications") == []


def test_an_application_can_be_made_again_below_a_subscriber(contacts: Cluster) -> None:
    contacts.create_application("cache", ["contacts"])
    with contacts.subscribe("cache", Handler()) as subscriber:
        contacts.drop_application("cache")
        again = contacts.create_application("cache", ["clicks"])
        assert contacts.application("cache") == again
        sweep(contacts.coordination, "cache")
        assert contacts.coordination.children("applications", "cache", "subscribers") == [subscriber.id]
    sweep(contacts.coordination, "cache")
    assert contacts.application("cache") == again, "only what has no definition is swept away"


def test_making_dropping_and_sweeping_at_once_harms_nobody(contacts: Cluster) -> None:
    """Four at the same place: whatever is met half-way, nobody fails, and at the end the application is there."""
    failures: list[BaseException] = []

    def often(step: Any) -> None:
        with connect(contacts.address) as own:
            for _ in range(50):
                try:
                    step(own)
                except UnknownApplication:
                    pass
                except BaseException as error:  # noqa: BLE001 - told below
                    failures.append(error)

    def make(own: Cluster) -> None:
        own.create_application("cache", ["contacts"])

    steps = [make, make, lambda own: own.drop_application("cache"), lambda own: sweep(own.coordination, "cache")]
    threads = [threading.Thread(target=often, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    make(contacts)
    assert contacts.application("cache") == Application("cache", ("contacts",))
