"""What is said to be implied is implied; a gc event that does not cover another one is refused."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.support.filter_cases import NOON, Row, filters, passes, rows, table, update
from tidings.errors import InvalidFilter
from tidings.filters import EVERYTHING, NOTHING, Between, Condition, Equals, Exists, Filter, In, Matches, Not, parse
from tidings_gc_tombstones.covering import GcEvent, check_covering, check_keyed, gc_events, implies
from tidings_gc_tombstones.predicates import Predicate

# ---- implication ---------------------------------------------------------------------------------------------------

# Of a few values each, so that filters imply each other often, and all rows can be tried.
TOPICS, VERSIONS, SEQS = [None, "1", "2", "2.0", "a", "ab"], [None, 0, 1, 2], [0, 1, 2, 3]
TIMES = [None, NOON, NOON + dt.timedelta(microseconds=1)]
UNIVERSE = [
    update(seq=seq, version=version, time=time, attributes={"topic": topic})
    for topic, version, seq, time in itertools.product(TOPICS, VERSIONS, SEQS, TIMES)
]


@st.composite
def intervals(draw: st.DrawFn, key: str, ends: list[Any]) -> Between:
    low, high = sorted([draw(st.sampled_from(ends)), draw(st.sampled_from(ends))])
    end = draw(st.sampled_from(["low", "high", "none"]))
    return Between(key, None if end == "low" else low, None if end == "high" else high)


topics, versions = st.sampled_from(TOPICS[1:]), st.sampled_from(VERSIONS[1:])
basics = st.one_of(
    st.builds(Exists, st.sampled_from(["topic", "version", "seq", "time"])),
    st.builds(Equals, st.just("topic"), topics),
    st.builds(In, st.just("topic"), st.lists(topics, min_size=1, max_size=3)),
    intervals("topic", [1, 2]),
    st.builds(Matches, st.just("topic"), st.sampled_from(["a.*", r"\d", "ab?", ".*"])),
    st.builds(Equals, st.sampled_from(["version", "seq"]), versions),
    st.builds(In, st.just("version"), st.lists(versions, min_size=1, max_size=3)),
    intervals("version", [0, 1, 2]),
    intervals("seq", SEQS),
    st.builds(Equals, st.just("time"), st.sampled_from(TIMES[1:])),
    intervals("time", TIMES[1:]),
)
conditions: st.SearchStrategy[Condition] = basics | basics.map(Not)
small = st.lists(st.lists(conditions, min_size=1, max_size=3).map(tuple), max_size=3).map(
    lambda terms: Filter(tuple(terms))
)


def every_condition() -> list[Condition]:
    """One or two of each kind, for each key."""
    found: list[Condition] = [Exists(key) for key in ("topic", "version", "seq", "time")]
    found += [In("topic", some) for n in (1, 2) for some in itertools.combinations(("1", "2.0", "a"), n)]
    found += [Equals("topic", topic) for topic in ("1", "2", "ab")]
    found += [Matches("topic", expression) for expression in ("a.*", r"\d", "ab?", ".*")]
    for key, ends in (("topic", (1, 2)), ("version", (0, 1, 2)), ("seq", (0, 2, 3)), ("time", TIMES[1:])):
        found += [Between(key, low, high) for low, high in itertools.combinations_with_replacement(ends, 2)]
        found += [Between(key, low=end) for end in ends] + [Between(key, high=end) for end in ends]
    found += [Equals("version", 1), In("version", (0, 2)), Equals("seq", 3), Equals("time", NOON)]
    return found + [~condition for condition in found]


def test_of_any_two_conditions_what_is_implied_holds_for_each_row() -> None:
    conditions = [Filter(((condition,),)) for condition in every_condition()]
    where = [frozenset(n for n, row in enumerate(UNIVERSE) if passes(one, row)) for one in conditions]
    implied = 0
    for (one, mine), (other, theirs) in itertools.product(zip(conditions, where, strict=True), repeat=2):
        if implies(one, other):
            assert mine <= theirs, (str(one), str(other))
            implied += 1
    assert implied > 800, "there is something to check"


@settings(max_examples=500)
@given(small, small, st.none() | st.integers(0, 4))
def test_what_is_implied_holds_for_each_row_for_which_the_narrow_one_does(
    narrow: Filter, wide: Filter, before: int | None
) -> None:
    said = implies(narrow, wide, before)
    event(f"implied: {said}")
    if said:
        asked = [row for row in UNIVERSE if before is None or row["seq"] < before]
        assert all(passes(wide, row) for row in asked if passes(narrow, row))


@given(filters, filters, st.lists(rows, max_size=20))
def test_what_is_implied_of_any_filters_holds_for_any_rows(narrow: Filter, wide: Filter, found: list[Row]) -> None:
    for one, other in ((narrow, wide), (wide, narrow), (narrow, ~narrow)):
        if implies(one, other):
            assert all(passes(other, row) for row in found if passes(one, row))


@given(small | filters, small)
def test_the_plainest_implications_are_seen(one: Filter, other: Filter) -> None:
    assert implies(one, one)
    assert implies(one, one | other)
    assert implies(one & other, one)
    assert implies(NOTHING, one)
    assert implies(one, EVERYTHING)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("object = a", "object in (a, b)"),
        ("object in (a, b)", "object in (c, b, a)"),
        ("object = a", "object matches 'a|b'"),
        ("object in (ab, ac)", "object matches 'a.'"),
        ("n = 7", "n in 1..9"),
        ("n in (7, 8)", "n >= 7"),
        ("n in 2..3", "n in 1..9"),
        ("n in 2..3", "n > 1.9"),
        ("version >= 3 and version <= 5", "version in 2..6"),
        ("seq < 5", "seq < 9"),
        ("n in 2..3", "n exists"),
        ("topic matches 'a.*'", "topic exists"),
        ("topic matches 'a.*' and n = 1", "topic matches 'a.*'"),
        ("topic = a", "topic != b"),
        ("topic = a", "topic not in (b, c)"),
        ("topic in (a, b)", "topic not matches 'c.*'"),
        ("topic matches 'c.*'", "topic != a"),
        ("n in 1..3", "n not in 4..9"),
        ("n > 3", "not n <= 3"),
        ("version < 3", "version != 7"),
        ("topic not exists", "topic != a"),
        ("topic not in (a, b)", "topic != a"),
        ("n not in 1..9", "n not in 2..3"),
        ("time < 2031-05-07T12:30:00Z", "time <= 2031-05-07T12:30:00Z"),
        ("a = 1 or b = 1 and a = 2", "a in (1, 2)"),
        ("a = 1", "object exists and seq exists"),
    ],
)
def test_what_follows_is_seen(narrow: str, wide: str) -> None:
    assert implies(parse(narrow), parse(wide))


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("everything", "object = a"),
        ("object in (a, b)", "object = a"),
        ("n in 1..9", "n in 2..9"),
        ("n exists", "n in ..9"),
        ("n in 1..", "n in 1..9"),
        ("topic != a", "topic exists"),
        ("topic != a", "topic = b"),
        ("topic exists", "topic matches '.+'"),
        ("topic matches 'a.*'", "topic matches 'ab.*'"),
        ("topic != a", "topic not in (a, b)"),
        ("n in 1..3", "n not in 3..9"),
        ("n = 07", "n = 7"),
        ("a = 1", "b = 1"),
        ("attributes.shard = 1", "shard = 1"),
        ("a = 1 or b = 1", "a = 1"),
        ("seq < 9", "seq < 5"),
        ("n in 1..1", "n = 1"),
    ],
)
def test_what_does_not_follow_is_not_said(narrow: str, wide: str) -> None:
    assert not implies(parse(narrow), parse(wide))


def test_that_all_are_before_a_position_is_known() -> None:
    assert implies(parse("object = a"), parse("seq <= 7"), before=8)
    assert not implies(parse("object = a"), parse("seq <= 6"), before=8)
    assert implies(EVERYTHING, parse("seq < 8 or object = a"), before=8)


# ---- explicit gc events --------------------------------------------------------------------------------------------


def explicit(seq: int, text: str, **values: Any) -> Row:
    return update(
        **{"seq": seq, "kind": "gc", "object": "gc/0", "attributes": {"collects": text}, "time": NOON} | values
    )


def later(text: str, seq: int = 100, days: int = 0) -> GcEvent:
    return GcEvent(0, seq, NOON + dt.timedelta(days=days), Predicate.parse(text))


def test_gc_events_are_found_among_updates() -> None:
    found = gc_events(
        table([update(), explicit(3, "object = a"), update(kind="gc"), explicit(4, "age > P1D", shard=2)])
    )
    assert found == [
        GcEvent(0, 3, NOON, Predicate.parse("object = a")),
        GcEvent(2, 4, NOON, Predicate.parse("age > P1D")),
    ]
    assert str(found[0].matching()) == "object = a and seq in ..2"
    assert gc_events(table([])) == []


def test_a_gc_event_that_cannot_be_read_is_named() -> None:
    for row, problem in (
        (explicit(3, "object ="), "column 9: expected a value"),
        (explicit(3, " or ".join(["object matches 'a'", *(f"object matches 'a{n}'" for n in range(9))])), "costs 100"),
        (explicit(3, "object = a", time=None), "it has no time"),
    ):
        with pytest.raises(InvalidFilter, match=f"the gc event at position 3 of shard 0 cannot be read: .*{problem}"):
            gc_events(table([row]))


@pytest.mark.parametrize(
    ("earlier", "text"),
    [
        ("object = a", "object in (a, gc/0)"),
        ("object = a", "everything"),
        ("object = a", "seq < 50"),
        ("object = a", "object = a or kind = gc and object = a or object matches 'gc/.*' and object = a"),
        ("object = a", "object = b"),
        ("object = a", "kind = data"),
        ("age > P7D", "age > P7D or object = gc/0 and age > P7D"),
        ("object =", "seq < 50"),
        ("object =", "object = gc/0"),  # one that cannot be read matches nothing
        ("nothing", "kind = gc"),
    ],
)
def test_a_gc_event_that_covers_what_it_matches_is_let_through(earlier: str, text: str) -> None:
    check_covering(later(text, days=30), table([update(), explicit(7, earlier)]))


@pytest.mark.parametrize(
    ("earlier", "text"),
    [
        ("object = a", "kind = gc"),
        ("object = a", "object = gc/0 or object = b"),
        ("object = a", "seq in 7.."),
        ("seq < 5", "object matches 'gc/.*'"),
        ("age > P7D", "age < P60D"),
    ],
)
def test_a_gc_event_that_does_not_cover_one_that_it_matches_is_refused(earlier: str, text: str) -> None:
    with pytest.raises(InvalidFilter) as raised:
        check_covering(later(text, days=30), table([update(), explicit(7, earlier)]))
    assert f"would collect the gc event `{earlier}` at position 7 of shard 0" in str(raised.value)


def test_only_earlier_events_of_its_own_shard_must_be_covered() -> None:
    rows = table([explicit(100, "object = a"), explicit(101, "object = a"), explicit(7, "object = a", shard=1)])
    check_covering(later("kind = gc"), rows)
    check_covering(later("kind = gc"), pa.concat_tables([rows, table([update(kind="gc", seq=3)])]))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (["object"], "object = a"),
        (["object"], "object matches 'tmp/.*' or object != a and seq < 100"),
        (["object"], "seq <= 100 and not seq > 50"),
        (["object"], "everything"),
        (["object"], "kind = gc and collects exists and age > P7D"),
        (["object"], "kind = gc and collects matches '.*a.*'"),
        (["attributes.client", "object"], "client = a and object = b or attributes.client not exists"),
        (["attributes.age"], "attributes.age = 7"),
        (["attributes.shard"], "attributes.shard = 7"),
    ],
)
def test_a_predicate_that_keeps_keys_together_is_let_through(key: list[str], text: str) -> None:
    check_keyed(Predicate.parse(text), key)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (["object"], "version < 3"),
        (["object"], "object = a and kind = data"),
        (["object"], "kind = gc"),
        (["object"], "collects exists"),
        (["object"], "object = a and seq > 5"),
        (["object"], "seq = 5"),
        (["object"], "seq in 1..5"),
        (["object"], "seq != 5"),
        (["object"], "not seq in 1..5"),
        (["object"], "object = a or age > P7D"),
        (["attributes.age"], "age > P7D"),
        (["attributes.shard"], "shard = 7"),
        (["object"], "client = a"),
    ],
)
def test_a_predicate_that_could_split_a_key_is_refused(key: list[str], text: str) -> None:
    with pytest.raises(InvalidFilter, match="could match an update and not the earlier ones of its key"):
        check_keyed(Predicate.parse(text), key)


@given(small, st.lists(st.tuples(st.sampled_from("ab"), topics, st.integers(0, 9)), unique_by=lambda row: row[2]))
def test_what_collects_an_update_matches_the_earlier_ones_of_its_key(
    wanted: Filter, found: list[tuple[str, str, int]]
) -> None:
    """For each predicate that is let through: P(u), key(e) = key(u) and e before u imply P(e)."""
    predicate = Predicate(wanted.any_of)
    try:
        check_keyed(predicate, ["attributes.topic"])
    except InvalidFilter:
        event("refused")
        return
    event("let through")
    updates = [update(object=object, seq=seq, attributes={"topic": topic}) for object, topic, seq in found]
    for one, other in itertools.permutations(updates, 2):
        if one["attributes"] == other["attributes"] and one["seq"] < other["seq"] and passes(wanted, other):
            assert passes(wanted, one)
