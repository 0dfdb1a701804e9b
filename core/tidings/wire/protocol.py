"""What publishers and subscribers say to each other, over Arrow Flight.

A publisher is the server. A subscriber opens one exchange with each publisher that has flows of its application; both
prove who they are (see `tidings.wire.handshake`), and flows are multiplexed on it. Each message is JSON in the
metadata of a Flight message; a batch carries its rows beside it. Every message about a flow names the owner's epoch,
and the turn: how often the owner has opened the flow. A subscriber refuses a message that is not of the flow's newest
epoch and turn, and a publisher leaves answers to an earlier opening alone. Nobody speaks of a flow but on the exchange
on which it was opened, or on one that was named there by `fetch`.

| from the publisher | |
| --- | --- |
| `open` | the flow begins, after this position; answered by `opened` or `refused`; `passes` says that the flow may go \
on after an update at which the handler fails |
| `batch` | rows, of several shards one after the other; `parts` says which, how many, up to which position, and after \
which seq, if nothing is left out; a tombstone stands for the run of updates that ends with it |
| `token` | answered by `ack` once all before it is processed |
| `loss` | the log does not hold these positions any more |
| `skipped` | so many updates were too old for a realtime application, or an operator has skipped them |
| `pass` | the answer to `parked` by one that `waits`: the update at this position is put aside, and the flow goes on |
| `standing` | the answer to `ask`: up to where the flow is processed, where its log ends, and how many updates are in \
between, if the log counts them |
| `close` | the flow ends here; answered by `closed` |
| `fetch` | more rows are to be had by an exchange with another process, at this address |
| `ping` | answered by `pong`, by a subscriber that is there |
| `several` | `messages` that were said together, in their order: see `tidings.wire.bundles` |

| from the subscriber | |
| --- | --- |
| `opened`, `refused`, `closed` | the answers to `open` and `close` |
| `done` | all up to this position is processed: there is room for more |
| `ack` | the answer to `token` |
| `parked` | the handler failed again and again; `at` is the update at which it did, if that is known; one that \
`waits` goes on after it once it is told to `pass` |
| `ask` | how far is the flow from the end of its log? Answered by `standing`, by publishers that know it |
| `pong` | the answer to `ping` |
| `bye` | it ends the exchange, because of what it was told |
| `several` | as above |
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tidings.errors import InvalidName, InvalidPosition
from tidings.flows import Flow
from tidings.names import check_name
from tidings.positions import Position
from tidings.stream_definition import MAX_SHARDS
from tidings.texts import printable

MAX_METADATA_BYTES = 2**20  # of what a publisher says: a batch may have parts of very many flows
MAX_ANSWER_BYTES = 2**16  # of what a subscriber says
MAX_REASON_CHARACTERS = 500
MAX_MESSAGE_BYTES = 64 * 2**20

Message = dict[str, Any]


class Era(NamedTuple):
    """Which opening of a flow something belongs to: eras are ordered, and what is of an earlier one has no effect.

    A flow has an *epoch* for each ownership: ZooKeeper makes it grow when a publisher takes the flow, and it fences the
    publishers before that one. Within an epoch the owner opens the flow with a subscriber, perhaps several times: when
    the connection broke, when the flow moves, when a handler is given another chance. Each opening is a *turn*, counted
    from 1. The two together are the *era*. A subscriber takes messages of the newest era it has accepted and no others,
    and an owner heeds answers to its newest turn and no others; so neither has to know what else is still on its way.

    >>> Era(2, 9) < Era(3, 1)
    True
    """

    epoch: int
    turn: int


NO_ERA = Era(-1, 0)


def flow_message(kind: str, flow: Flow, era: Era, **more: Any) -> Message:
    """A message about a flow.

    >>> flow_message("close", Flow("cache", "contacts", 3), Era(2, 1))
    {'t': 'close', 'stream': 'contacts', 'shard': 3, 'epoch': 2, 'turn': 1}
    """
    return {"t": kind, "stream": flow.stream, "shard": flow.shard, "epoch": era.epoch, "turn": era.turn, **more}


def flow_of(application: str, message: Message) -> Flow:
    """The flow that a message is about; ValueError if no flow can be called that. Names become paths in ZooKeeper."""
    stream, shard = message["stream"], message["shard"]
    if type(shard) is not int or not 0 <= shard < MAX_SHARDS:
        raise ValueError("a message about a shard that cannot be")
    try:
        return Flow(application, check_name("a stream", stream), shard)
    except (InvalidName, TypeError):
        raise ValueError("a message about a stream that cannot be") from None


def era_of(message: Message) -> Era:
    """The era that a message about a flow is of; ValueError if it is of none. Almost the same is not the same."""
    epoch, turn = message["epoch"], message["turn"]
    if type(epoch) is not int or type(turn) is not int:
        raise ValueError("a message whose epoch or turn is no whole number")
    return Era(epoch, turn)


def reason_of(message: Message) -> str:
    r"""The reason that a peer gives, of a length that can be kept, with whatever is not printable made visible.

    >>> print(reason_of({"reason": "caf\udce9 \x1b[31m"}))
    caf\udce9 \x1b[31m
    """
    return printable(str(message.get("reason", ""))[:MAX_REASON_CHARACTERS])[:MAX_REASON_CHARACTERS]


def failed_at(message: Message) -> Position | None:
    """The update at which a handler failed, if the subscriber says it."""
    try:
        return Position.from_json(message.get("at"))
    except InvalidPosition:
        return None


def pair(position: Position) -> list[int]:
    """A position as messages have it."""
    return [position.seq, position.index]


def encode(message: Message) -> bytes:
    """A message as it travels."""
    return json.dumps(message).encode()


def decode(metadata: bytes | memoryview) -> Message:
    """The message that a peer sent; ValueError if it is none."""
    if not 0 < len(metadata) <= MAX_METADATA_BYTES:
        raise ValueError("a message without metadata, or with too much of it")
    try:
        message = json.loads(bytes(metadata))
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None
    if not isinstance(message, dict) or not isinstance(message.get("t"), str):
        raise ValueError("a message that is no object, or has no type")
    return message
