"""Messages that travel together: what goes in comes out, in its order and in frames of bounded size."""

from __future__ import annotations

import itertools
import queue
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import make_batches
from tidings.flows import Flow
from tidings.wire.bundles import MAX_BUNDLE_BYTES, SINCE_PROTOCOL, Outgoing, frames, messages_of
from tidings.wire.flight_data import Frame, unpack
from tidings.wire.protocol import MAX_ANSWER_BYTES, MAX_REASON_CHARACTERS, Era, Message, flow_message

ROWS = make_batches(1)[0]


def travelled(said: list[tuple[Message, pa.RecordBatch | None]], protocol: int = SINCE_PROTOCOL) -> list[Frame]:
    """The frames of what was said before anybody looked."""
    outgoing: Outgoing = queue.SimpleQueue()
    for item in said:
        outgoing.put(item)
    outgoing.put(None)
    return [unpack(raw) for raw, _ in frames(outgoing, protocol)]


@given(st.lists(st.booleans(), max_size=30))
def test_all_that_is_said_arrives_in_its_order_and_rows_travel_alone(with_rows: list[bool]) -> None:
    said = [({"t": "m", "n": number}, ROWS if rows else None) for number, rows in enumerate(with_rows)]
    came = travelled(said)
    assert [message for frame in came for message in messages_of(frame.message)] == [message for message, _ in said]
    assert [frame.message["n"] for frame in came if frame.rows() is not None] == [
        number for number, rows in enumerate(with_rows) if rows
    ]
    neighbours = itertools.pairwise(came)
    assert all(one.rows() is not None or other.rows() is not None for one, other in neighbours), "joined if they can be"


def test_a_peer_of_an_earlier_protocol_is_told_one_thing_at_a_time() -> None:
    came = travelled([({"t": "ping"}, None)] * 5, SINCE_PROTOCOL - 1)
    assert [frame.message for frame in came] == [{"t": "ping"}] * 5


def test_a_bundle_of_the_longest_answers_is_no_larger_than_an_answer_may_be() -> None:
    reason = "\ud800" * MAX_REASON_CHARACTERS
    longest = flow_message("refused", Flow("a", "s" * 200, 2**15), Era(2**62, 2**62), reason=reason)
    outgoing: Outgoing = queue.SimpleQueue()
    for _ in range(200):
        outgoing.put((longest, None))
    outgoing.put(None)
    sizes = [len(raw) for raw, _ in frames(outgoing, SINCE_PROTOCOL)]
    assert len(sizes) > 1
    assert MAX_BUNDLE_BYTES < max(sizes) < MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    "wrong", [None, 3, {}, "text", [None], [{}], [{"t": 1}], [[{"t": "ping"}]], [{"t": "several", "messages": []}]]
)
def test_a_bundle_of_anything_else_is_none(wrong: Any) -> None:
    with pytest.raises(ValueError, match="no messages"):
        messages_of({"t": "several", "messages": wrong})
