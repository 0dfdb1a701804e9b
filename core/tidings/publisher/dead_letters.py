"""Dead letters: updates at which a handler fails, kept in a stream so that their flow can go on without them.

A dead letter is the update itself, with attributes that say where it comes from and why it is there:

| attribute | |
| --- | --- |
| `failed_application`, `failed_subscriber` | whose handler failed at it |
| `failed_stream`, `failed_shard`, `failed_position` | where the update is |
| `failed_reason` | what the handler raised |
| `failed_at` | when it was given up |

It is in its stream before the flow goes on. A publisher that dies in between leaves it to the next one to keep it, so
it may be there twice.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow as pa

from tidings.errors import LogUnavailable, TidingsError
from tidings.log_lookup import row_from
from tidings.log_opening import containing_errors, open_log
from tidings.logs import WritableLog
from tidings.publisher.flow_session import Effects, FlowSession, PutAside
from tidings.publisher.gathering import GatheringThread
from tidings.publisher.pump import Pump
from tidings.stream_definition import StreamDefinition
from tidings.updates import (
    BYTES_PER_ATTRIBUTE,
    MAX_ATTRIBUTES_BYTES,
    MAX_DELIVERABLE_BYTES,
    PUBLISHED_KINDS,
    Update,
    from_rows,
    to_updates,
)

logger = logging.getLogger(__name__)


class _Letter(NamedTuple):
    session: FlowSession
    effect: PutAside
    subscriber: str | None


class DeadLetters:
    """Keeps the dead letters of one publisher, in a thread of its own: those that have gathered, in one append.

    `pumps` read the streams that they come from, `streams` has those that there are, and `carry_out` does what a
    session asks for once its letter is kept.
    """

    def __init__(
        self,
        pumps: Mapping[str, Pump],
        streams: Callable[[], Mapping[str, StreamDefinition]],
        carry_out: Callable[[FlowSession, Effects], None],
    ) -> None:
        self._pumps = pumps
        self._streams = streams
        self._carry_out = carry_out
        self._logs: dict[str, tuple[StreamDefinition, WritableLog]] = {}
        self._failed = GatheringThread[_Letter]("tidings-dead-letters", self._keep_all)

    def put(self, session: FlowSession, effect: PutAside) -> None:
        """Keep an update. With the session's lock held."""
        self._failed.put(_Letter(session, effect, session.holder))

    def close(self) -> None:
        """Keep what is left, and end."""
        self._failed.close()
        for _, log in self._logs.values():
            with contextlib.suppress(TidingsError):
                log.close()

    def _keep_all(self, failed: list[_Letter]) -> None:
        by_stream: dict[str, list[_Letter]] = defaultdict(list)
        for letter in failed:
            by_stream[letter.effect.stream].append(letter)
        for stream, letters in by_stream.items():
            self._keep(stream, letters)

    def _keep(self, stream: str, letters: list[_Letter]) -> None:
        read: list[tuple[_Letter, pa.Table]] = []
        for letter in letters:
            try:
                read.append((letter, self._read(letter)))
            except Exception as error:  # noqa: BLE001 - a log may be anybody's, and this one harms its flow alone
                self._give_up(letter, error)
        try:
            if read:
                self._log(stream).append(pa.concat_tables(table for _, table in read))
        except Exception as error:  # noqa: BLE001 - as above
            self._logs.pop(stream, None)
            for letter, _ in read:
                self._give_up(letter, error)
            return
        for (session, effect, _), _ in read:
            with session.lock:
                self._carry_out(session, session.put_aside(effect.era, effect.position, effect.reason))

    def _read(self, letter: _Letter) -> pa.Table:
        flow, position = letter.session.flow, letter.effect.position
        pump = self._pumps.get(flow.stream)
        with containing_errors(flow.stream):
            rows = None if pump is None else row_from(pump.log, flow.shard, position)
        found = [] if rows is None else to_updates(rows)
        if not found or found[0].position != position:
            raise LogUnavailable(f"stream {flow.stream!r} does not hold the update at {position} any more")
        return from_rows([_row(found[0], letter)], max_payload_bytes=MAX_DELIVERABLE_BYTES)

    def _log(self, stream: str) -> WritableLog:
        defined = self._streams().get(stream)
        if defined is None:
            raise LogUnavailable(f"there is no stream {stream!r} for updates at which a handler fails: create it")
        known = self._logs.get(stream)
        if known is not None and known[0] == defined and known[0].id == defined.id:
            return known[1]
        with containing_errors(stream):
            log = open_log(defined)
        if not isinstance(log, WritableLog):
            raise LogUnavailable(f"stream {stream!r} tails a database: nothing can be kept there")
        self._logs[stream] = defined, log
        return log

    def _give_up(self, letter: _Letter, error: Exception) -> None:
        session, effect, _ = letter
        reason = f"the update at {effect.position} could not be kept in stream {effect.stream!r}: {error}"
        logger.warning("flow %s: %s", session.flow, reason, exc_info=None if isinstance(error, TidingsError) else error)
        with session.lock:
            self._carry_out(session, session.not_put_aside(effect.era, reason))


def _row(update: Update, letter: _Letter) -> dict[str, object]:
    """The dead letter: the update, with attributes that tell of it; only these, if there is no room for its own."""
    (application, stream, shard), effect = letter.session.flow, letter.effect
    told = {
        "failed_application": application,
        "failed_stream": stream,
        "failed_shard": str(shard),
        "failed_position": str(effect.position),
        "failed_reason": effect.reason,
        "failed_at": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
    }
    if letter.subscriber is not None:
        told["failed_subscriber"] = letter.subscriber
    attributes = {**(update.attributes or {}), **told}
    size = sum(BYTES_PER_ATTRIBUTE + len(f"{name}{value}".encode()) for name, value in attributes.items())
    return {
        "object": update.object,
        "version": update.version,
        "kind": update.kind if update.kind in PUBLISHED_KINDS else "data",
        "source": update.source,
        "attributes": attributes if size <= MAX_ATTRIBUTES_BYTES else told,
        "payload": update.payload,
        "time": update.time,
    }
