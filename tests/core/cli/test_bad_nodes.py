"""What commands say of nonsense in ZooKeeper: a sentence, and the rest of what they were asked for."""

from __future__ import annotations

import json

import pytest

from tests.support.bad_nodes import DEEP, DEFINITIONS, EVERYWHERE, put
from tests.support.commands import Run
from tidings.cluster import Cluster


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("streams", "list"), "contacts"),
        (("applications", "list"), "cache"),
        (("flows", "list"), "cache"),
        (("flows", "list", "--application", "cache"), "cache"),
        (("flows", "list", "--summary"), "cache"),
        (("publishers", "list"), "PUBLISHER"),
        (("subscribers", "list"), "SUBSCRIBER"),
        (("caravans", "list"), "STREAM"),
        (("applications", "describe", "cache"), "cache"),
        (("streams", "describe", "contacts"), "contacts"),
    ],
)
def test_a_command_shows_what_it_can_beside_values_that_make_no_sense(
    cache: Cluster, run: Run, command: tuple[str, ...], shown: str
) -> None:
    put(cache, EVERYWHERE)
    result = run(*command)
    assert result.code == 0, result.err
    assert shown in result.out
    if command in (("streams", "list"), ("flows", "list"), ("caravans", "list")):
        assert all(result.err.count(f"/{place} ") == 1 for place in DEFINITIONS if place == "streams/deep"), result.err


def test_what_members_tell_of_themselves_takes_only_so_much_room(cache: Cluster, run: Run) -> None:
    odd = {"version": 1, "load": 1e308, "weight": {"a": 1}, "pid": 10**300, "tidings": "x" * 10_000, "host": [1] * 999}
    raw = json.dumps({**odd, "protocol": 10**300, "address": 7}).encode()
    put(cache, {"applications/cache/subscribers/odd": raw, "publishers/odd": raw})
    for command in (("subscribers", "list"), ("publishers", "list")):
        result = run(*command)
        (line,) = (one for one in result.out.splitlines() if one.startswith("odd "))
        assert len(line) < 1000
        assert line.split()[3] == "-"


@pytest.mark.parametrize(
    "name", ["bad", "half", "empty", "deep", "bytes", "list", "options", "log", "caravans", "twin"]
)
def test_a_stream_that_makes_no_sense_is_named_with_its_node_and_the_cure(cache: Cluster, run: Run, name: str) -> None:
    put(cache, DEFINITIONS)
    for command in (("streams", "describe", name), ("applications", "create", "other", "--stream", name)):
        result = run(*command)
        assert result.code == 1
        (line,) = (one for one in result.err.splitlines() if one.startswith("error: "))
        assert f"/streams/{name} " in line
        assert "delete it" in line or "empty it" in line


@pytest.mark.parametrize("node", ["owner", "datamarker", "subscriber"])
@pytest.mark.parametrize("raw", [DEEP, b'{"version": 1, "id": [], "epoch": Infinity, "time": [], "position": 1}'])
def test_flows_are_listed_beside_one_of_which_nothing_can_be_read(
    cache: Cluster, run: Run, node: str, raw: bytes
) -> None:
    put(cache, {f"flows/cache/contacts/0/{node}": raw})
    result = run("flows", "list")
    assert len(result.out.splitlines()) == 3
    if node != "owner" or raw is DEEP:
        assert result.code == 1
        assert f"/flows/cache/contacts/0/{node}" in result.err


def test_an_application_can_be_dropped_whose_subscribers_make_no_sense(cache: Cluster, run: Run) -> None:
    put(cache, {"applications/cache/subscribers/deep": DEEP})
    result = run("applications", "drop", "cache", "--yes", "--force")
    assert result.code == 0, result.err


def test_caravans_are_limited_and_reassigned_whatever_was_set_before(cache: Cluster, run: Run) -> None:
    put(cache, {"caravans/contacts": b'{"version": 1, "again": "y", "rate": "x"}'})
    assert run("caravans", "set-limit", "contacts", "--caravans", "4").code == 1
    assert run("caravans", "set-limit", "contacts", "--rate", "10").code == 0
    assert run("caravans", "reassign", "contacts").code == 0
