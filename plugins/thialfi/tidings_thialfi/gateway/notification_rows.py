"""What the stage says to clients: rows of the stream of notifications, and the messages that are made of them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from tidings_thialfi.gateway.sessions import Session
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.constants import MAX_PAYLOAD_BYTES
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import FromService, Notice, Status


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


def message_of(session: Session, rows: Iterable[NotificationRow], now: float, most: int) -> FromService:
    """The message that a client is to be sent. What it must acknowledge is kept in its session, `most` of it."""
    notices: dict[tuple[str, bool], Notice] = {}
    statuses: list[Status] = []
    digest, seen, invalid = None, None, None
    for row in rows:
        if row.say in (stream_schema.NOTIFY, stream_schema.UNKNOWN):
            notice = Notice(row.name, row.version, row.say == stream_schema.UNKNOWN, row.payload)
            if session.notify(notice, now, most):
                notices[notice.name, notice.unknown] = notice
        elif row.say in (stream_schema.REGISTERED, stream_schema.UNREGISTERED):
            statuses.append(Status(row.name, row.say == stream_schema.REGISTERED, row.version))
        elif row.say == stream_schema.DIGEST:
            session.take_digest(Digest(row.registrations, row.sum), row.version)
            digest, seen = session.digest, session.seen
        elif row.say == stream_schema.INVALID:
            invalid = row.name or "not known any more"
    return FromService(
        invalid=invalid, digest=digest, seen=seen, notify=tuple(notices.values()), status=tuple(statuses)
    )
