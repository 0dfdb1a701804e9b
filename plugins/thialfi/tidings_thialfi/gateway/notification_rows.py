"""What the stage says to clients: rows of the stream of notifications, and what sessions make of them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from tidings_thialfi.gateway.sessions import Session
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.constants import MAX_PAYLOAD_BYTES
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import Failure, Notice, Status

TOO_MANY = "too many registrations"


class NotificationRow(NamedTuple):
    """One row for one client: what is said, its version or number, and the rest that its kind has."""

    client: int
    say: str
    version: int
    name: str = ""
    registrations: int = 0
    sum: int = 0
    payload: bytes | None = None

    def to_json(self) -> list[Any]:
        """As it travels between gateways."""
        payload = None if self.payload is None else base64.b64encode(self.payload).decode()
        return [str(self.client), self.say, str(self.version), self.name, self.registrations, str(self.sum), payload]

    @classmethod
    def from_json(cls, value: Any) -> NotificationRow:
        """What `to_json` wrote."""
        client, say, version, name, count, total, text = value
        payload = None if text is None else base64.b64decode(text)
        return cls(int(client), str(say), int(version), str(name), int(count), int(total), payload)


def rows_of(batch: pa.RecordBatch, wanted: Callable[[int], bool]) -> Iterator[NotificationRow]:
    """The rows for clients that are wanted; a row that makes no sense is left alone, as one of a later version is."""
    columns = (batch.column(name).to_pylist() for name in ("object", "version", "attributes", "payload"))
    for client, version, pairs, payload in zip(*columns, strict=True):
        if not client.isdecimal() or not wanted(int(client)):
            continue
        about = dict(pairs or ())
        name, count, total = about.get("object", ""), about.get("count", "0"), about.get("sum", "0")
        if (say := about.get("say")) and count.isdecimal() and total.isdecimal():
            kept = payload if payload is None or len(payload) <= MAX_PAYLOAD_BYTES else None
            about_what = name or about.get("reason", "")
            yield NotificationRow(int(client), say, version or 0, about_what, int(count), int(total), kept)


def take_in(session: Session, rows: Iterable[NotificationRow]) -> str | None:
    """Put what the stage says into a client's outbox; or the reason why the client is not known any more."""
    invalid = None
    for row in rows:
        match row.say:
            case stream_schema.NOTIFY | stream_schema.UNKNOWN:
                session.outbox.notify(Notice(row.name, row.version, row.say == stream_schema.UNKNOWN, row.payload))
            case stream_schema.REGISTERED | stream_schema.UNREGISTERED:
                session.outbox.report(Status(row.name, row.say == stream_schema.REGISTERED, row.version))
            case stream_schema.REFUSED:
                session.outbox.report(Failure(row.name, row.version, True, TOO_MANY))
            case stream_schema.DIGEST:
                session.take_digest(Digest(row.registrations, row.sum), row.version)
                if session.digest is not None:
                    session.outbox.tell_digest(session.digest, session.seen)
            case stream_schema.INVALID:
                invalid = row.name or "not known any more"
    return invalid
