"""Messages that travel together. Whoever opens thousands of flows says as much, and each frame costs both sides.

A message `several` stands for others, which were said at about the same time, in their order. There are no rows beside
it. Nobody waits for a bundle to become larger: what is queued when a frame leaves goes with it.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence

import pyarrow as pa

from tidings.wire.flight_data import pack_encoded
from tidings.wire.protocol import Message, encode

SINCE_PROTOCOL = 3  # peers of earlier ones are told one thing at a time
MAX_BUNDLE_BYTES = 2**15  # beyond which no more messages come into one; half of what an answer may have

Queued = tuple[Message, pa.RecordBatch | None] | None
"""What is to be said, and its rows; None is the end."""
Outgoing = queue.SimpleQueue[Queued]


def frames(outgoing: Outgoing, protocol: int) -> Iterator[tuple[bytes, int]]:
    """What is queued, as it travels to a peer with which this protocol is spoken; and how many bytes of rows it has."""
    item = outgoing.get()
    while item is not None:
        message, rows = item
        bundle = [encode(message)]
        ahead: list[Queued] = []  # what was found behind the bundle
        size = len(bundle[0])
        alone = rows is not None or protocol < SINCE_PROTOCOL
        while not (alone or ahead or size > MAX_BUNDLE_BYTES or outgoing.empty()):
            following = outgoing.get()
            if following is None or following[1] is not None:
                ahead.append(following)
            else:
                bundle.append(encode(following[0]))
                size += len(bundle[-1])
        frame = pack_encoded(bundle[0] if len(bundle) == 1 else _several(bundle), rows)
        yield frame, rows.nbytes if rows is not None else 0
        item = ahead.pop() if ahead else outgoing.get()


def messages_of(message: Message) -> Sequence[Message]:
    """The messages that one stands for; ValueError if it is a bundle of something else.

    >>> messages_of({"t": "several", "messages": [{"t": "ping"}, {"t": "pong"}]})
    [{'t': 'ping'}, {'t': 'pong'}]
    """
    if message["t"] != "several":
        return [message]
    found = message.get("messages")
    if not isinstance(found, list) or not all(isinstance(one, dict) and _single(one.get("t")) for one in found):
        raise ValueError("a bundle of what are no messages")
    return found


def _single(kind: object) -> bool:
    return isinstance(kind, str) and kind != "several"


def _several(encoded: Sequence[bytes]) -> bytes:
    return b'{"t": "several", "messages": [' + b", ".join(encoded) + b"]}"
