"""A policy says which updates are obsolete, never the newest; what it cannot mean is refused when it is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.filter_cases import Row, table, update
from tidings import plugins
from tidings.errors import InvalidFilter, InvalidOption, PluginBroken, PluginMissing
from tidings_gc_tombstones.keys import check_key, explicit, keys_of
from tidings_gc_tombstones.policies import (
    GROUP,
    CollectionPolicies,
    ExplicitEvents,
    Prefix,
    keep_last,
    latest_per_key,
    max_age,
    policies_of,
    temporary_keys,
)
from tidings_gc_tombstones.predicates import Predicate

# ---- keys ----------------------------------------------------------------------------------------------------------

words = st.sampled_from(["", "a", "b", "ab", "\x00", "\x00\x00\x00\x01a", "é"])
attributes = st.none() | st.dictionaries(st.sampled_from(["x", "y"]), words | st.none())
keyed_rows = st.builds(
    lambda **values: update(**values),
    object=words,
    source=st.none() | words,
    attributes=attributes,
    kind=st.sampled_from(["data", "data", "gc"]),
)
PARTS = ["object", "source", "attributes.x", "attributes.y"]


def parts_of(row: Row, key: list[str]) -> tuple[str | None, ...]:
    found = row["attributes"] or {}
    return tuple(found.get(name[11:]) if name.startswith("attributes.") else row[name] for name in key)


@given(st.lists(keyed_rows, max_size=20), st.lists(st.sampled_from(PARTS), min_size=1, max_size=4, unique=True))
def test_two_updates_have_one_key_if_and_only_if_all_its_parts_are_equal(rows: list[Row], key: list[str]) -> None:
    whole = table(rows)
    chunked = pa.concat_tables([whole.slice(0, 3), whole.slice(3, 0), whole.slice(3)])
    found = keys_of(chunked, key)
    assert found.type == pa.binary()
    parts = [parts_of(row, key) for row in rows]
    assert [one is None for one in found.to_pylist()] == [None in one for one in parts]
    pairs = {(one, other) for one, other in zip(found.to_pylist(), parts, strict=True) if one is not None}
    assert len({one for one, _ in pairs}) == len({other for _, other in pairs}) == len(pairs)


def test_explicit_gc_events_and_tombstones_have_no_key() -> None:
    rows = table(
        [
            update(object="a"),
            update(object="a", kind="gc"),
            update(object="gc/0", kind="gc", attributes={"collects": "object = a"}),
            update(object="a", attributes={"collects": "object = a"}),
            update(object="", kind="tombstone", range=3),
        ]
    )
    assert explicit(rows).tolist() == [False, False, True, False, False]
    assert keys_of(rows, ["object"]).to_pylist() == [b"a", b"a", None, b"a", None]
    assert latest_per_key().collects(rows).tolist() == [True, True, False, True, False]
    assert temporary_keys().collects(rows).tolist() == [False, True, False, False, False]
    assert keys_of(table([]), ["object", "source"]).to_pylist() == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "give a list of object, source and attributes.<name>"),
        (7, "give a list"),
        ({"object": True}, "give a list"),
        (["version"], "'version' is no part of a key"),
        ("attributes.", "no part of a key"),
        ([7], "7 is no part of a key"),
        (["source", "object", "source"], "names one of its parts twice"),
    ],
)
def test_what_is_no_key_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        check_key(value)
    with pytest.raises(InvalidOption, match=f"latest_per_key: .*{problem}"):
        latest_per_key({"key": value})


# ---- what a policy says --------------------------------------------------------------------------------------------


def test_an_update_without_an_attribute_of_the_key_collects_nothing() -> None:
    rows = table([update(attributes={"client": "a"}), update(attributes={}), update()])
    assert latest_per_key({"key": ["attributes.client"]}).collects(rows).tolist() == [True, False, False]


def test_a_delete_is_what_the_policy_says() -> None:
    rows = table([update(attributes={"op": "delete"}), update(kind="gc"), update(attributes={"op": "insert"})])
    assert temporary_keys({"deletes": "op = delete"}).collects(rows).tolist() == [True, False, False]
    assert temporary_keys(True).collects(rows).tolist() == [False, True, False]
    both = policies_of({"temporary_keys": {"deletes": "op = delete"}, "keep_last": 7})
    assert both.collects(rows).tolist() == [True, False, False]
    assert CollectionPolicies().collects(rows).tolist() == [False] * 3


@st.composite
def shards(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, int]:
    """The next rows of a shard, sparse or dense, perhaps up to its newest one, their times, the newest one, and now."""
    seqs = sorted(draw(st.sets(st.integers(0, 30), max_size=12)))
    times = draw(st.lists(st.integers(0, 10_000), min_size=len(seqs), max_size=len(seqs)))
    head = draw(st.integers(seqs[-1] if seqs else 0, 40))
    return np.array(seqs, np.int64), np.array(times, np.int64), head, draw(st.integers(0, 20_000))


@given(shards(), st.integers(1, 50), st.integers(1, 12))
def test_prefixes_are_those_that_are_meant_and_never_the_newest(
    shard: tuple[np.ndarray, np.ndarray, int, int], keep: int, seconds: int
) -> None:
    seqs, times, head, now = shard
    last = keep_last(keep).obsolete(*shard)
    assert last == sum(seq <= head - keep for seq in seqs.tolist())
    aged = max_age(f"PT{seconds}S").obsolete(*shard)
    old = [time < now - 1000 * seconds and seq < head for seq, time in zip(seqs.tolist(), times.tolist(), strict=True)]
    assert aged == next((n for n, one in enumerate(old) if not one), len(old))
    both = policies_of({"keep_last": keep, "max_age": f"PT{seconds}S"})
    assert both.obsolete(*shard) == max(last, aged)
    assert all(seq < head for seq in seqs[: both.obsolete(*shard)].tolist())


@given(shards(), st.integers(1, 50), st.integers(1, 12), st.integers(0, 9), st.integers(0, 9_000))
def test_with_a_newer_update_a_prefix_does_not_shrink(
    shard: tuple[np.ndarray, np.ndarray, int, int], keep: int, seconds: int, more: int, later_ms: int
) -> None:
    seqs, times, head, now = shard
    for policy in (keep_last(keep), max_age(f"PT{seconds}S")):
        assert policy.obsolete(seqs, times, head + more, now + later_ms) >= policy.obsolete(seqs, times, head, now)


def test_a_policy_of_others_cannot_collect_the_newest_nor_less_than_nothing() -> None:
    seqs = np.arange(5)
    for said, meant in ((99, 4), (-3, 0), (4, 4), (2, 2)):
        assert Prefix(lambda *_, said=said: said).obsolete(seqs, seqs, head=4, now_ms=0) == meant


# ---- a stream's policies -------------------------------------------------------------------------------------------


def test_the_policies_of_a_definition() -> None:
    policies = policies_of(
        {
            "latest_per_key": {"key": ["object", "attributes.client"]},
            "temporary_keys": {"key": ["attributes.client", "object"], "deletes": "kind = gc"},
            "keep_last": 1000,
            "max_age": "P7D",
            "events": True,
            "protect_flows": True,
        }
    )
    assert list(policies.keyed) == ["latest_per_key", "temporary_keys"]
    assert list(policies.prefixes) == ["keep_last", "max_age"]
    assert policies.key == ("attributes.client", "object")
    assert policies.explicit_events
    assert policies.protect_flows
    assert policies_of({}) == CollectionPolicies()
    assert policies_of({"keep_last": False, "events": False, "protect_flows": False}) == CollectionPolicies()
    assert policies_of({"events": True}).key is None
    assert policies_of({"events": True}).named == {"events": ExplicitEvents()}


@pytest.mark.parametrize(
    ("collect", "problem"),
    [
        ("latest_per_key", "give policies by their names"),
        ({"latest_per_key": 7}, "latest_per_key: 7 is no option: write true, or key with a value"),
        ({"latest_per_key": None}, "latest_per_key: None is no option"),
        ({"latest_per_key": {"kee": ["object"]}}, "latest_per_key has no option 'kee': it has key"),
        ({"temporary_keys": {"delete": "a = 1"}}, "temporary_keys has no option 'delete': it has deletes, key"),
        ({"temporary_keys": {"deletes": "op ="}}, "temporary_keys: deletes: column 5"),
        ({"temporary_keys": {"deletes": 7}}, "temporary_keys: deletes: 7 is no text"),
        ({"keep_last": 0}, "keep_last: 0 is no number"),
        ({"keep_last": True}, "keep_last: True is no number"),
        ({"keep_last": "many"}, "keep_last: 'many' is no number"),
        ({"max_age": 7}, "max_age: 7 is no duration"),
        ({"max_age": "7d"}, "max_age: '7d' is no duration"),
        ({"max_age": "PT0S"}, "max_age: 'PT0S' is no time at all"),
        ({"events": {}}, "events: {} is no option"),
        ({"protect_flows": 1}, "protect_flows is 1: it is true or false"),
        (
            {"latest_per_key": True, "temporary_keys": {"key": ["source"]}},
            "latest_per_key has the key object and temporary_keys the key source: all policies of a stream share one",
        ),
    ],
)
def test_what_a_definition_cannot_mean_is_refused(collect: Any, problem: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        policies_of(collect)
    assert problem in str(raised.value)


def test_a_policy_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(
        PluginMissing, match=r"no collection policy 'latest' is installed \(installed: events, keep_last"
    ):
        policies_of({"latest": True})


def test_a_third_party_adds_a_policy_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(group: str, name: str) -> Any:
        assert group == GROUP
        return {"even": lambda value: Prefix(lambda seqs, times, head, now: len(seqs) // value), "odd": lambda _: 7}[
            name
        ]

    monkeypatch.setattr("tidings_gc_tombstones.policies.load", load)
    assert policies_of({"even": 2}).obsolete(np.arange(9), np.arange(9), 20, 0) == 4
    with pytest.raises(PluginBroken, match="collection policy 'odd' made 7, which is no policy"):
        policies_of({"odd": True})


def test_the_policies_that_are_here_are_found_by_their_names() -> None:
    assert plugins.GROUPS[GROUP] == "collection policy"
    assert {"events", "keep_last", "latest_per_key", "max_age", "temporary_keys"} <= set(plugins.installed_names(GROUP))


def test_a_stream_says_which_gc_events_it_takes() -> None:
    policies_of({"events": True, "keep_last": 9}).check(Predicate.parse("version < 3 and age > P7D"))
    policies_of({"events": True, "latest_per_key": True}).check(Predicate.parse("object = a"))
    with pytest.raises(InvalidOption, match="add the policy `events`"):
        policies_of({"latest_per_key": True}).check(Predicate.parse("object = a"))
    with pytest.raises(InvalidFilter, match=r"speaks of object and of seq < \.\.\. only"):
        policies_of({"events": True, "latest_per_key": True}).check(Predicate.parse("version < 3"))
