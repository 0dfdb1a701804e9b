"""A flow in memory does what a real one does to its handler."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidings.datamarkers import Datamarker
from tidings.errors import InvalidUpdate
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.positions import Position
from tidings.testing import HandlerFailed, HandlerFlow
from tidings.updates import Update


class Notes(Handler):
    def __init__(self) -> None:
        self.told: list[Any] = []
        self.refuses: str | None = None

    def on_shard_notice(self, flow: Flow) -> None:
        self.told.append("begins")

    def on_update(self, update: Update) -> None:
        if update.object == self.refuses:
            raise ValueError(f"what is {update.object}?")
        self.told.append((update.seq, update.object))

    def on_token(self, flow: Flow, datamarker: Datamarker) -> None:
        self.told.append(f"token {datamarker.position}")

    def on_data_loss(self, flow: Flow, first: Position, last: Position) -> None:
        self.told.append(f"lost {first} to {last}")

    def on_tombstone(self, flow: Flow, first: Position, last: Position, count: int) -> None:
        self.told.append(f"collected {first} to {last}")

    def on_skipped(self, flow: Flow, count: int) -> None:
        self.told.append(f"skipped {count}")

    def on_flow_closed(self, flow: Flow) -> None:
        self.told.append("closed")


def test_a_handler_is_called_with_all_that_can_happen_to_a_flow_in_order() -> None:
    notes = Notes()
    with HandlerFlow(notes) as flow:
        flow.deliver({"object": "alice"}, Update(object="bob", version=3))
        flow.acknowledge()
        flow.deliver({"object": "carol"})
        flow.lose(2)
        flow.deliver({"object": "dave"})
        flow.collect(3)
        flow.skip(4)
        assert flow.position == Position(8)
    flow.close()
    assert notes.told == [
        *("begins", (0, "alice"), (1, "bob"), "token 1", (2, "carol"), "lost 3 to 4", (5, "dave")),
        *("collected 6 to 8", "skipped 4", "closed"),
    ]


def test_what_was_not_acknowledged_comes_again_and_nothing_before_it() -> None:
    notes = Notes()
    with HandlerFlow(notes) as flow:
        flow.deliver({"object": "alice"})
        flow.acknowledge()
        flow.deliver({"object": "bob"}, {"object": "carol"})
        flow.redeliver()
        flow.redeliver()
    again = ["begins", (1, "bob"), (2, "carol")]
    assert notes.told == ["begins", (0, "alice"), "token 0", (1, "bob"), (2, "carol"), *again, *again, "closed"]


def test_a_failure_names_its_update_and_the_flow_begins_again_once_the_handler_is_mended() -> None:
    notes = Notes()
    notes.refuses = "bob"
    with HandlerFlow(notes) as flow:
        with pytest.raises(HandlerFailed, match=r"at 1, on_update: ValueError: what is bob\?") as caught:
            flow.deliver({"object": "alice"}, {"object": "bob"}, {"object": "carol"})
        assert caught.value.position == Position(1)
        notes.refuses = None
        flow.redeliver()
    assert notes.told[-4:] == [(0, "alice"), (1, "bob"), (2, "carol"), "closed"]


def test_retries_batches_values_and_async_handlers_are_those_of_a_subscriber() -> None:
    class Batches:
        def __init__(self) -> None:
            self.calls = 0
            self.values: list[Any] = []

        async def on_batch(self, rows: pa.RecordBatch, values: list[Any]) -> None:
            self.calls += 1
            if self.calls == 1:
                raise ConnectionError("try again")
            self.values += values

    batches = Batches()
    with HandlerFlow(batches, payload_as=dict, retries=1) as flow:
        flow.deliver({"object": "alice", "payload": b'{"n": 1}'}, {"object": "bob", "payload": b'{"n": 2}'})
    assert batches.values == [{"n": 1}, {"n": 2}]


def test_what_no_producer_could_publish_is_refused() -> None:
    with HandlerFlow(Notes()) as flow, pytest.raises(InvalidUpdate, match="names its object"):
        flow.deliver({"version": 3})
