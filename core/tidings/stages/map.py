"""The stage `map`: columns and attributes that are set, renamed and dropped.

What a column is set to is written as a small tree, and made into Spark columns here; no text of the user's is ever read
as SQL.

| written | meaning |
| --- | --- |
| `{column: seq}` | a column of the update, or `stream` |
| `{attribute: user}` | an attribute; null if the update does not have it |
| `{constant: x}` | itself: text, a whole number, or null |
| `{concat: [user/, {attribute: user}]}` | the parts as one text, null if one of them is; bare text stands for itself |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from tidings.filters import parse
from tidings.stages import Stage
from tidings.stages.filter import FilterText
from tidings.updates import PUBLISHED, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ATTRIBUTE = "attributes."
SETTABLE = tuple(name for name in PUBLISHED.names if name != "attributes")
DROPPABLE = ("version", "source", "attributes", "payload", "time")
READABLE = (*SCHEMA.names, "stream")
FORMS = "{column: …}, {attribute: …}, {constant: …} or {concat: […]}"
MAX_PARTS = 100

Value = Mapping[str, Any]


def _check_value(value: Any) -> Value:
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError(f"must be {FORMS}, not {value!r}")
    [(form, what)] = value.items()
    match form:
        case "column" if what not in READABLE:
            raise ValueError(f"there is no column {what!r}; the columns are {', '.join(READABLE)}")
        case "attribute" if not isinstance(what, str):
            raise ValueError(f"an attribute's name is text, not {what!r}")
        case "constant" if not isinstance(what, str | int | None) or isinstance(what, bool):
            raise ValueError(f"a constant is text, a whole number or null, not {what!r}; put it in quotes")
        case "concat":
            if not isinstance(what, list) or not 1 <= len(what) <= MAX_PARTS:
                raise ValueError(f"concat takes a list of 1 to {MAX_PARTS} parts, not {what!r}")
            parts = [{"constant": part} if isinstance(part, str) else part for part in what]
            if any(isinstance(part, Mapping) and "concat" in part for part in parts):
                raise ValueError("a concat within a concat: write its parts into the outer one")
            return {"concat": [_check_value(part) for part in parts]}
        case "column" | "attribute" | "constant":
            pass
        case _:
            raise ValueError(f"{form!r} is no form of value; write {FORMS}")
    return dict(value)


def _check_target(name: str) -> str:
    if name not in SETTABLE and not (name.startswith(ATTRIBUTE) and name != ATTRIBUTE):
        raise ValueError(f"{name!r} cannot be set; what can is {', '.join(SETTABLE)} and {ATTRIBUTE}<name>")
    return name


def _check_dropped(name: str) -> str:
    if name not in DROPPABLE and not (name.startswith(ATTRIBUTE) and name != ATTRIBUTE):
        raise ValueError(f"{name!r} cannot be dropped; what can is {', '.join(DROPPABLE)} and {ATTRIBUTE}<name>")
    return name


def _check_renames(names: dict[str, str]) -> dict[str, str]:
    if len(set(names.values())) < len(names):
        raise ValueError("gives two attributes one name")
    return names


Target = Annotated[str, AfterValidator(_check_target)]
Dropped = Annotated[str, AfterValidator(_check_dropped)]


class MapStage(Stage):
    """Changes updates one by one.

    `where` chooses the updates that are kept, all by default. Then, each in its turn: `drop` takes columns and
    attributes away, `rename` gives attributes new names, `set` gives columns and attributes values. Values are read off
    the update as it came in. What does not fit its column, say a text that is no number as a version, becomes null; an
    update that is left without an object fails the pipeline, so leave such out by `where`.
    """

    where: FilterText | None = None
    drop: list[Dropped] = Field(default_factory=list)
    rename: Annotated[dict[str, str], AfterValidator(_check_renames)] = Field(default_factory=dict)
    set: dict[Target, Annotated[Any, BeforeValidator(_check_value)]] = Field(default_factory=dict)

    def prepare(self, rows: DataFrame) -> DataFrame:
        """The rows, changed."""
        from pyspark.sql import functions as sf

        if self.where is not None:
            rows = rows.where(parse(self.where).column())
        changed = {name: sf.lit(None).cast(rows.schema[name].dataType) for name in self.drop if name in DROPPABLE}
        changed |= {name: _fitted(name, value) for name, value in self.set.items() if name in SETTABLE}
        changed["attributes"] = self._attributes(changed.get("attributes", sf.col("attributes")))
        return rows.select(*(changed.get(name, sf.col(name)).alias(name) for name in rows.columns))

    def _attributes(self, kept: Column) -> Column:
        from pyspark.sql import functions as sf

        gone = {name.removeprefix(ATTRIBUTE) for name in self.drop if name not in DROPPABLE}
        all_gone = "attributes" in self.drop
        added = {}
        for old, new in self.rename.items():
            # An update that does not have the old name keeps what it has under the new one.
            names = [name for name in (old, new) if name not in gone and (name == old or name not in self.rename)]
            added[new] = sf.coalesce(*(_attribute(name) for name in names if not all_gone), sf.lit(None).cast("string"))
        added |= {
            name.removeprefix(ATTRIBUTE): _text(value) for name, value in self.set.items() if name not in SETTABLE
        }
        gone |= added.keys() | self.rename.keys()
        if not gone:
            return kept
        kept = sf.map_filter(kept, lambda key, _: ~key.isin(sorted(gone)))
        if not added:
            return kept
        given = sf.map_from_arrays(sf.array(*map(sf.lit, added)), sf.array(*added.values()))
        empty = sf.create_map().cast("map<string,string>")
        return sf.map_concat(sf.coalesce(kept, empty), sf.map_filter(given, lambda _, value: value.isNotNull()))


def _fitted(name: str, value: Value) -> Column:
    """A value as the column of this name has it."""
    match name:
        case "version" | "range":
            return _raw(value).try_cast("long")
        case "payload":
            return _raw(value) if value == {"column": "payload"} else _text(value).cast("binary")
        case "time":
            return _raw(value) if value == {"column": "time"} else _text(value).try_cast("timestamp")
    return _text(value)


def _text(value: Value) -> Column:
    """A value as text: attributes as JSON, a time in ISO 8601, a payload if it is UTF-8."""
    from pyspark.sql import functions as sf

    match value:
        case {"column": "attributes"}:
            return sf.to_json("attributes")
        case {"column": "time"}:
            utc = sf.to_utc_timestamp("time", sf.current_timezone())
            return sf.date_format(utc, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
        case {"column": "payload"}:
            return sf.try_validate_utf8(sf.col("payload").cast("string"))
    return _raw(value).cast("string")


def _raw(value: Value) -> Column:
    from pyspark.sql import functions as sf

    [(form, what)] = value.items()
    match form:
        case "column":
            return sf.col(what)
        case "attribute":
            return _attribute(what)
        case "concat":
            return sf.concat(*map(_text, what))
    return sf.lit(what)


def _attribute(name: str) -> Column:
    from pyspark.sql import functions as sf

    return sf.try_element_at(sf.col("attributes"), sf.lit(name))
