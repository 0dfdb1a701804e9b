"""Payloads that a handler gets as values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pydantic
import pytest

from tests.support.avro_table import DAY, PRICE, items
from tidings.cluster import Cluster
from tidings.errors import InvalidOption
from tidings.flow_status import status
from tidings.handlers import Handler
from tidings.streams import Stream
from tidings.testing import eventually
from tidings.updates import Update


@dataclass
class Contact:
    name: str
    age: int = 0


class ContactModel(pydantic.BaseModel):
    name: str
    age: int = 0


class Values(Handler):
    def __init__(self) -> None:
        self.values: list[Any] = []

    def on_update(self, update: Update) -> None:
        self.values.append(update.value)


class ValuesInBatches(Values):
    def on_batch(self, rows: pa.RecordBatch, values: list[Any]) -> None:
        assert rows.num_rows == len(values)
        self.values += values


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    stream = cluster.create_stream("contacts", shards=1)
    cluster.create_stream("letters", shards=1)
    cluster.create_application("cache", ["contacts"], start="earliest")
    return stream


def publish(stream: Stream, *payloads: bytes | None) -> None:
    with stream.producer() as producer:
        rows = [{"object": "alice", "version": at, "payload": payload} for at, payload in enumerate(payloads)]
        producer.publish_many(rows).result(10)


@pytest.mark.parametrize("handler", [Values, ValuesInBatches])
@pytest.mark.parametrize(
    ("payload_as", "expected"),
    [
        (dict, {"name": "Alice", "age": 7}),
        (dict[str, Any], {"name": "Alice", "age": 7}),
        (Contact, Contact("Alice", 7)),
        (ContactModel, ContactModel(name="Alice", age=7)),
        (bytes.decode, '{"name": "Alice", "age": 7}'),
    ],
)
def test_a_payload_is_made_into_what_was_asked_for_and_no_payload_has_no_value(
    cluster: Cluster, stream: Stream, handler: Callable[[], Values], payload_as: Any, expected: Any
) -> None:
    publish(stream, b'{"name": "Alice", "age": 7}', None)
    values = handler()
    with cluster.publisher(), cluster.subscribe("cache", values, payload_as=payload_as):
        eventually(lambda: len(values.values) == 2)
    assert values.values == [expected, None]


@pytest.mark.parametrize("handler", [Values, ValuesInBatches])
def test_a_payload_that_does_not_fit_is_a_failure_at_its_update_which_names_the_field(
    cluster: Cluster, stream: Stream, handler: Callable[[], Values]
) -> None:
    cluster.update_application("cache", on_failure="skip")
    publish(stream, b'{"name": "Alice"}', b'{"name": "Bob", "age": "old"}', b"no JSON", b'{"name": "Carol"}')
    values = handler()
    with cluster.publisher(), cluster.subscribe("cache", values, payload_as=Contact):
        eventually(lambda: Contact("Carol") in values.values)
        cluster.update_application("cache", on_failure="park")
        publish(stream, b'{"age": 3}')
        (reason,) = eventually(lambda: [one.reason for one in status(cluster, application="cache") if one.reason])
    assert reason == "at 4, the payload is no Contact: name: Field required"
    assert [value.name for value in values.values if value.name != "Alice"] == ["Carol"]


@pytest.mark.parametrize(
    ("handler", "payload_as", "message"),
    [
        (Values, 7, "payload_as is a type, as dict or a dataclass, or a function, not 7"),
        (Values, Cluster, "is a type that no payload can be made into: name dict, a dataclass, a pydantic model"),
        (ValuesInBatches, None, r"write on_batch\(self, rows\); values are for those who subscribe with payload_as"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    cluster: Cluster, stream: Stream, handler: Callable[[], Values], payload_as: Any, message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        cluster.subscribe("cache", handler(), payload_as=payload_as)
    assert cluster.coordination.children("applications", "cache", "subscribers") == []


def test_a_batch_handler_without_room_for_values_is_refused_at_once(cluster: Cluster, stream: Stream) -> None:
    class Rows(Handler):
        def on_batch(self, rows: pa.RecordBatch) -> None:
            pass

    with pytest.raises(InvalidOption, match=r"write on_batch\(self, rows, values\), which gets the values beside"):
        cluster.subscribe("cache", Rows(), payload_as=dict)


@dataclass
class Item:
    id: int
    name: str
    price: Decimal
    day: dt.date


@pytest.mark.parametrize("payload_as", [dict, Item])
def test_rows_as_avro_are_decoded_by_the_schemas_of_their_stream(
    cluster: Cluster, tmp_path: Path, payload_as: Any
) -> None:
    items(cluster, tmp_path, "pen")
    cluster.create_application("shop", ["items"], start="earliest")
    values = Values()
    with cluster.publisher(), cluster.subscribe("shop", values, payload_as=payload_as):
        eventually(lambda: values.values)
    row = {"id": 1, "name": "pen", "price": PRICE, "day": DAY, "raw": b"\x00\xff"}
    assert values.values == [row if payload_as is dict else Item(1, "pen", PRICE, DAY)]
