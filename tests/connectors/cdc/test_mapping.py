from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tidings.errors import InvalidOption
from tidings.updates import SCHEMA, checked, shard_of
from tidings_connectors.cdc.changes import Changes, Column
from tidings_connectors.cdc.mapping import MAX_LISTED_BYTES, RowMapping, updates_of

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def changes(values: dict[str, list[str | None]], key: tuple[str, ...] = ("id",), **more: Any) -> Changes:
    count = len(next(iter(values.values())))
    return Changes(
        "public",
        "item",
        more.get("columns") or [Column(name, pa.array(each, pa.string())) for name, each in values.items()],
        key,
        pa.array(more.get("operations") or ["insert"] * count),
        np.arange(count, dtype=np.int64),
        np.zeros(count, np.int32),
        pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), count),
    )


def rows(made: Changes, shards: int = 4, **options: Any) -> list[dict[str, Any]]:
    table = updates_of(made, RowMapping(**options), shards)
    assert table.schema == SCHEMA
    found: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="lossy")
    return found


@given(st.lists(st.tuples(texts, st.none() | texts), min_size=1, max_size=20))
def test_a_payload_says_what_the_row_said(values: list[tuple[str, str | None]]) -> None:
    made = changes({"id": [one for one, _ in values], 'the "name"': [other for _, other in values]})
    for row, (one, other) in zip(rows(made), values, strict=True):
        assert json.loads(row["payload"]) == {"id": one, 'the "name"': other}


odd_texts = st.text("ab./\"#,%'\\\\\u00e9", max_size=6) | st.sampled_from(["NULL", "%2C", "x" * 1100, "x," * 600])
Named = tuple[str, str, tuple[str | None, ...]]
"""A row: its schema, its table, and its key. One without a key, or with a NULL in it, is the table's."""


def object_of(named: Named) -> str:
    schema, table, key = named
    values: dict[str, list[str | None]] = {f"k{place}": [value] for place, value in enumerate(key)}
    made = replace(changes(values or {"id": ["1"]}, tuple(values)), schema=schema, table=table)
    name: str = rows(made, payload="none")[0]["object"]
    return name


def rows_of(names: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[list[Named]]:
    """Different rows of different tables; each table has a key of its own."""
    parts = st.dictionaries(names, st.integers(0, 3), min_size=1, max_size=4)
    return parts.flatmap(
        lambda tables: st.lists(
            st.sampled_from(sorted(tables)).flatmap(
                lambda table: st.tuples(*[odd_texts] * tables[table]).map(lambda key: (*table, key))
            ),
            min_size=1,
            max_size=8,
            unique=True,
        )
    )


@given(rows_of(st.tuples(odd_texts, odd_texts).filter(lambda name: max(map(len, name)) < 20)))
@settings(deadline=None)
def test_different_rows_of_different_tables_are_different_objects(named: list[Named]) -> None:
    found = {one: object_of(one) for one in named}
    # What looks like the name of a long key is a key, too.
    for (schema, table, key), name in list(found.items()):
        if len(key) == 1:
            alike = schema, table, (name.rpartition("/")[2],)
            found[alike] = object_of(alike)
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a.b", "c", ("1",)), ("a", "b.c", ("1",))),
        (("public", "victim", ("1",)), ("public", "victim/1", ())),
        (("public", 'victim/1"', ("2",)), ("public", "victim", ('1"/2',))),
        (("public", '"victim/1"', ()), ("public", "victim/1", ())),
        (("public", "item", ("x", None)), ("public", "item", ("x", "NULL"))),
        (("public", "item", ("1,2", "3")), ("public", "item", ("1", "2,3"))),
    ],
)
def test_names_that_look_alike_are_told_apart(one: Named, other: Named) -> None:
    assert object_of(one) != object_of(other)


def test_a_short_key_that_looks_like_the_name_of_a_long_one_is_none() -> None:
    long = object_of(("public", "item", ("x" * 2000,)))
    assert object_of(("public", "item", (long.removeprefix("public.item/"),))) != long


@pytest.mark.parametrize(
    ("named", "name"),
    [
        (("public", "item", ("1",)), "public.item/1"),
        (("public", "item", ("1", "a,b%")), "public.item/1,a%2Cb%25"),
        (("Shop", "the items", ("a/b.c#%,",)), "Shop.the items/a/b.c#%,"),
        (("data", "orders.v2", ("1",)), "data.orders.v2/1"),
        (("public", "item", ("#1",)), "public.item/#1"),
        (("public", "item", ()), "public.item"),
        (("public", "item", (None,)), "public.item"),
        (("a.b", "c/d", ("1",)), '"a.b"."c/d"/1'),
        (("public", '"x"', ("1",)), 'public."""x"""/1'),
        (("public", "item", ("1", None)), "public.item"),
    ],
)
def test_what_objects_are_called(named: Named, name: str) -> None:
    assert object_of(named) == name


def test_numbers_and_json_stand_as_they_are_and_what_is_unknown_is_left_out() -> None:
    columns = [
        Column("id", pa.array(["1", "2"]), "integer"),
        Column("share", pa.array(["0.5", None]), "number"),
        Column("good", pa.array(["true", "false"]), "boolean"),
        Column("more", pa.array(['{"a": [1]}', None]), "json"),
        Column("large", pa.array([None, "x"]), unknown=pa.array([True, False])),
    ]
    first, second = rows(changes({"id": ["1", "2"]}, columns=columns))
    assert json.loads(first["payload"]) == {"id": 1, "share": 0.5, "good": True, "more": {"a": [1]}}
    assert json.loads(second["payload"]) == {"id": 2, "share": None, "good": False, "more": None, "large": "x"}


def test_a_row_of_which_nothing_is_known_is_an_empty_object() -> None:
    columns = [Column("id", pa.array([None], pa.string()), unknown=pa.array([True]))]
    assert rows(changes({"id": ["1"]}, columns=columns))[0]["payload"] == b"{}"


def test_options_say_what_an_object_is_called_and_which_share_a_shard() -> None:
    made = changes({"id": ["1", "2", "3"], "customer": ["ann", "ann", "bo"], "change": ["7", None, "9"]})
    options = {"object": "items/{id}@{customer}", "version": "change", "attributes": ["customer"], "shard": "customer"}
    found = rows(made, shards=64, payload="none", **options)
    assert [row["object"] for row in found] == ["items/1@ann", "items/2@ann", "items/3@bo"]
    assert [row["version"] for row in found] == [7, None, 9]
    assert [row["shard"] for row in found] == [shard_of(name, 64) for name in ("ann", "ann", "bo")]
    assert found[0]["attributes"] == {"schema": "public", "table": "item", "operation": "insert", "customer": "ann"}
    assert [row["payload"] for row in found] == [None] * 3


def test_without_a_key_and_when_it_is_truncated_the_table_is_the_object() -> None:
    assert {row["object"] for row in rows(changes({"id": ["1", "2"]}, key=()))} == {"public.item"}
    truncated = rows(changes({"id": [None]}, operations=["truncate"]))[0]
    assert (truncated["object"], truncated["payload"]) == ("public.item", None)


def test_what_is_too_long_or_too_large_still_has_a_name_and_says_so() -> None:
    made = changes({"id": ["x" * 2000, "y" * 2000, "z"], "text": ["a", "b", "c" * 2**20]})
    first, second, third = rows(made)
    assert first["object"] != second["object"]
    assert all(len(row["object"].encode()) <= 1024 for row in (first, second, third))
    assert third["payload"] is None
    assert third["attributes"]["payload"] == "left out: too large"


def test_attributes_that_are_too_large_are_left_out_and_told_and_the_others_stay() -> None:
    fits, large, half = "x" * 2**18, "y" * 2**20, "é" * 2**18
    values: dict[str, list[str | None]] = {
        "id": ["1", "2", "3"],
        "a": [fits, "a", half],
        "b": ["b", large, None],
        "c": ["p", "p", half],
    }
    found = rows(changes(values), attributes=["a", "b", "c"])
    always = {"schema": "public", "table": "item", "operation": "insert"}
    left = "left out: too large"
    assert found[0]["attributes"] == {**always, "a": fits, "b": "b", "c": "p"}
    assert found[1]["attributes"] == {**always, "a": "a", "c": "p", "attributes": f"{left}: b", "payload": left}
    assert found[2]["attributes"] == {**always, "attributes": f"{left}: a, c", "payload": left}
    assert checked(updates_of(changes(values), RowMapping(attributes=["a", "b"]), 4)) is not None


@given(st.lists(st.lists(st.integers(0, 300_000), min_size=3, max_size=3), min_size=1, max_size=4))
@settings(deadline=None, max_examples=20)
def test_what_an_update_says_does_not_hang_on_the_rows_beside_it(sizes: list[list[int]]) -> None:
    values = [{name: "x" * size for name, size in zip("abc", each, strict=True)} for each in sizes]
    columns: dict[str, list[str | None]] = {name: [one[name] for one in values] for name in "abc"}
    together = rows(changes({"id": ["1"] * len(values), **columns}), attributes=["a", "b", "c"], payload="none")
    for one, row in zip(values, together, strict=True):
        alone = rows(
            changes({"id": ["1"], **{name: [one[name]] for name in "abc"}}), attributes=["a", "b", "c"], payload="none"
        )
        assert row["attributes"] == alone[0]["attributes"]
        assert (sum(map(len, one.values())) > MAX_LISTED_BYTES - 27) == ("attributes" in row["attributes"])
        assert sum(len(row["attributes"].get(name, "")) for name in "abc") <= MAX_LISTED_BYTES


def test_what_columns_were_before_shares_their_room() -> None:
    made = changes({"id": ["1", "2"], "a": ["x", "y" * 2**20]}, operations=["update", "delete"])
    made = replace(made, before=[Column("a", pa.array(["w", "y" * 2**20]))])
    first, second = rows(made, attributes=["a"], before=True, payload="none")
    assert (first["attributes"]["before.a"], first["attributes"]["a"]) == ("w", "x")
    assert second["attributes"]["attributes"] == "left out: too large: a, before.a"


@pytest.mark.parametrize("names", [[], ["a", "before.a"]])
def test_what_columns_were_before_needs_columns_and_names_of_its_own(names: list[str]) -> None:
    with pytest.raises(ValidationError, match="that the option 'attributes' lists"):
        RowMapping(attributes=names, before=True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"version": "nr"}, r"has no column 'nr' \(columns: id, name\)"),
        ({"shard": "nr"}, "has no column 'nr'"),
        ({"object": "{nr}"}, "has no column 'nr'"),
    ],
)
def test_columns_that_cannot_be_are_told(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        rows(changes({"id": ["1"], "name": ["pen"]}), **options)


def test_what_is_no_version_in_one_row_stops_no_other() -> None:
    values = ["7", "-1", str(2**64 - 1), "NaN", "٣", "pen", None]
    made = rows(changes({"id": [str(number) for number in range(7)], "nr": values}), version="nr")
    assert [row["version"] for row in made] == [7, *[None] * 6]
    told = [row["attributes"].get("version") for row in made]
    assert told == [None, *["left out: no whole number"] * 5, None]


@pytest.mark.parametrize("template", ["{", "{}", "{id!r}", "{id:>10}", "}"])
def test_a_template_that_is_none_is_refused(template: str) -> None:
    with pytest.raises(ValidationError, match="is no template"):
        RowMapping(object=template)


def test_what_may_concern_any_shard_comes_to_all_at_its_one_place() -> None:
    shop = Column("shop", pa.array(["west", None, None]), unknown=pa.array([False, True, False]))
    made = changes({"id": ["1", "1", None]}, columns=[Column("id", pa.array(["1", "1", None])), shop])
    made = replace(made, operations=pa.array(["insert", "delete", "truncate"]))
    found = rows(made, shards=4, shard="shop")
    assert [(row["object"], row["shard"], row["seq"]) for row in found] == [
        ("public.item/1", shard_of("west", 4), 0),
        *(("public.item/1", shard, 1) for shard in range(4)),
        *(("public.item", shard, 2) for shard in range(4)),
    ]


@pytest.mark.parametrize("name", ["operation", "payload"])
def test_a_column_cannot_take_the_place_of_what_every_update_says(name: str) -> None:
    with pytest.raises(ValidationError, match=f"the attribute '{name}' says what happened, or was left out"):
        RowMapping(attributes=["name", name])
