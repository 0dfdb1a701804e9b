"""What a client and a gateway say to each other, as it travels: messages are read, written and split here.

`docs/thialfi-protocol.md` says what each part means. `parse_client` and `parse_service` take anything that anybody may
have sent, and raise `BadMessage` and nothing else. A part that this version does not know is left alone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from tidings_thialfi.protocol import constants, fields
from tidings_thialfi.protocol.constants import MAX_MESSAGE_BYTES, VERSION
from tidings_thialfi.protocol.fields import BadMessage
from tidings_thialfi.protocol.types import (
    Ack,
    Failure,
    Fault,
    FromClient,
    FromService,
    Grant,
    Hello,
    Notice,
    Status,
    SyncPart,
)

__all__ = [
    "Ack", "BadMessage", "Failure", "Fault", "FromClient", "FromService", "Grant", "Hello", "Notice", "Status",
    "SyncPart", "encode", "parse_client", "parse_service", "split",
]  # fmt: skip

UNKNOWN = "unknown"  # never base64, which has four characters, or eight
_LIST_NAMES_BYTES = 128
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

T = TypeVar("T")


Message = FromClient | FromService
M = TypeVar("M", FromClient, FromService)


def parse_client(text: str | bytes) -> FromClient:
    """A client's message.

    >>> parse_client('{"v": "1.7", "token": "t", "register": [["alice", "5"]], "news": 1}').register
    (('alice', 5),)
    >>> parse_client('{"v": "1.0", "token": "t", "register": [["alice", 5]]}')  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    tidings_thialfi.protocol.fields.BadMessage: `number` is a whole number from 0 to 461..., as decimal text
    """
    parts = _Parts(fields.read(text))
    message = FromClient(
        token=parts.take("token", lambda value: fields.opaque("token", value, constants.MAX_TOKEN_BYTES)),
        digest=parts.take("digest", fields.digest),
        hello=parts.take("hello", _hello),
        register=parts.take("register", lambda value: fields.rows("register", value, _operation)) or (),
        unregister=parts.take("unregister", lambda value: fields.rows("unregister", value, _operation)) or (),
        acknowledge=parts.take("acknowledge", lambda value: fields.rows("acknowledge", value, _ack)) or (),
        sync=parts.take("sync", _sync),
        heartbeat=parts.take("heartbeat", lambda value: fields.flag("heartbeat", value)) or False,
    )
    parts.check_the_rest()
    if message.token is None and message.hello is None:
        raise fields.malformed("a message has a token, unless it is a hello")
    return message


def parse_service(text: str | bytes) -> FromService:
    """A message of the service.

    >>> parse_service('{"v": "1.0", "notify": [["carol", "7", "cGF5bG9hZA=="]]}').notify[0].payload
    b'payload'
    """
    parts = _Parts(fields.read(text))
    message = FromService(
        grant=parts.take("grant", _grant),
        stale=parts.take("stale", lambda value: fields.flag("stale", value)) or False,
        invalid=parts.take("invalid", lambda value: fields.text("invalid", value, constants.MAX_REASON_BYTES, 0)),
        digest=parts.take("digest", fields.digest),
        seen=parts.take("seen", lambda value: fields.number("seen", value)),
        notify=parts.take("notify", lambda value: fields.rows("notify", value, _notice)) or (),
        status=parts.take("status", lambda value: fields.rows("status", value, _status)) or (),
        failed=parts.take("failed", lambda value: fields.rows("failed", value, _failure)) or (),
        sync=parts.take("sync", lambda value: fields.flag("sync", value)) or False,
        all=parts.take("all", lambda value: fields.flag("all", value)) or False,
        interval=parts.take("interval", lambda value: fields.seconds("interval", value)),
        quiet=parts.take("quiet", lambda value: fields.seconds("quiet", value)),
        error=parts.take("error", _fault),
        token=parts.take("token", lambda value: fields.opaque("token", value, constants.MAX_TOKEN_BYTES)),
    )
    parts.check_the_rest()
    if message.digest is not None and message.seen is None:
        raise fields.malformed("a digest comes with the largest number `seen`")
    return message


def encode(message: Message) -> str:
    """A message as it travels, or `BadMessage` if it is too large.

    >>> encode(FromClient("t", register=(("alice", 5),)))
    '{"v":"1.0","token":"t","register":[["alice","5"]]}'
    """
    parts = _from_client(message) if isinstance(message, FromClient) else _from_service(message)
    text = _dump({"v": VERSION} | {key: value for key, value in parts.items() if value is not None})
    if (size := len(text.encode())) > MAX_MESSAGE_BYTES:
        raise BadMessage("large", f"a message has at most {MAX_MESSAGE_BYTES:,} bytes, and this one has {size:,}")
    return text


def split(message: M) -> Iterator[M]:
    """The same as one or several messages, so that the lists of each are not too long; `sync` has its parts already.

    >>> many = FromClient("t", register=tuple((f"{n:01000}", n) for n in range(100)))
    >>> [len(one.register) for one in split(many)]
    [64, 36]
    """
    lists = ("register", "unregister", "acknowledge") if isinstance(message, FromClient) else _LISTS
    empty: Any = dict.fromkeys(lists, ())
    bare: Any = replace(message, **empty)
    entries = [(kind, entry) for kind in lists for entry in getattr(message, kind)]
    size, some = _size(bare), dict[str, list[Any]]()
    for kind, entry in entries:
        cost = len(_dump(_entry(entry)).encode()) + 1
        if size + cost > MAX_MESSAGE_BYTES or len(some.get(kind, ())) == constants.MAX_ENTRIES:
            yield replace(bare, **{kind: tuple(chosen) for kind, chosen in some.items()})
            bare, some = _repeated(bare), {}
            size = _size(bare)
        some.setdefault(kind, []).append(entry)
        size += cost
    yield replace(bare, **{kind: tuple(chosen) for kind, chosen in some.items()})


_LISTS = ("notify", "status", "failed")


def _repeated(message: Any) -> Any:
    """What the second of several messages says beside its lists: what is said in each, and nothing else twice."""
    if isinstance(message, FromClient):
        return FromClient(message.token, message.digest)
    return FromService()


def _size(message: Message) -> int:
    return len(encode(message).encode()) + _LIST_NAMES_BYTES


class _Parts:
    """The parts of a message that are not taken yet. A part that is null is absent."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self._left = parts

    def take(self, key: str, parse: Callable[[Any], T]) -> T | None:
        value = self._left.pop(key, None)
        return None if value is None else parse(value)

    def check_the_rest(self) -> None:
        for value in self._left.values():
            fields.check_depth(value)


def _operation(value: Any) -> tuple[str, int]:
    name, number = fields.row("register", value, 2)
    return fields.name(name), fields.number("number", number, constants.MAX_SEQUENCE)


def _unknown(what: str, entry: list[Any]) -> bool:
    if len(entry) < 3:
        return False
    if entry[2] != UNKNOWN:
        raise fields.malformed(f'the third value of an entry of `{what}` is "{UNKNOWN}"')
    return True


def _ack(value: Any) -> Ack:
    entry = fields.row("acknowledge", value, 2, 3)
    return Ack(fields.name(entry[0]), fields.number("version", entry[1]), _unknown("acknowledge", entry))


def _notice(value: Any) -> Notice:
    entry = fields.row("notify", value, 2, 3)
    name, version = fields.name(entry[0]), fields.number("version", entry[1])
    if len(entry) == 2:
        return Notice(name, version)
    if entry[2] == UNKNOWN:
        return Notice(name, version, unknown=True)
    return Notice(name, version, payload=fields.payload(entry[2]))


def _status(value: Any) -> Status:
    name, registered, number = fields.row("status", value, 3)
    return Status(fields.name(name), fields.flag("registered", registered), fields.number("number", number))


def _failure(value: Any) -> Failure:
    name, number, transient, reason = fields.row("failed", value, 4)
    return Failure(
        fields.name(name),
        fields.number("number", number),
        fields.flag("transient", transient),
        fields.text("reason", reason, constants.MAX_REASON_BYTES, 0),
    )


def _hello(value: Any) -> Hello:
    parts = fields.part("hello", value)
    credentials = parts.get("credentials")
    return Hello(
        fields.opaque("nonce", parts.get("nonce"), constants.MAX_NONCE_BYTES),
        fields.text("application", parts.get("application"), constants.MAX_APPLICATION_BYTES),
        None if credentials is None else fields.text("credentials", credentials, constants.MAX_CREDENTIALS_BYTES, 0),
    )


def _grant(value: Any) -> Grant:
    parts = fields.part("grant", value)
    return Grant(
        fields.opaque("nonce", parts.get("nonce"), constants.MAX_NONCE_BYTES),
        fields.opaque("token", parts.get("token"), constants.MAX_TOKEN_BYTES),
        fields.number("client", parts.get("client")),
        fields.flag("again", parts.get("again")),
    )


def _sync(value: Any) -> SyncPart:
    parts = fields.part("sync", value)
    count = fields.small("parts", parts.get("parts"), constants.MAX_PARTS)
    if count == 0:
        raise fields.malformed("a sync has one part at least")
    return SyncPart(
        fields.number("number", parts.get("number"), constants.MAX_SEQUENCE),
        fields.small("part", parts.get("part"), count - 1),
        count,
        fields.rows("objects", parts.get("objects"), fields.name),
    )


def _fault(value: Any) -> Fault:
    parts = fields.part("error", value)
    retry = parts.get("retry")
    return Fault(
        fields.opaque("code", parts.get("code"), constants.MAX_CODE_BYTES),
        fields.text("message", parts.get("message"), constants.MAX_REASON_BYTES, 0),
        None if retry is None else fields.seconds("retry", retry),
    )


def _from_client(message: FromClient) -> dict[str, Any]:
    hello, sync = message.hello, message.sync
    return {
        "token": message.token,
        "digest": message.digest and message.digest.to_json(),
        "hello": hello and _known(nonce=hello.nonce, application=hello.application, credentials=hello.credentials),
        "register": [_entry(one) for one in message.register] or None,
        "unregister": [_entry(one) for one in message.unregister] or None,
        "acknowledge": [_entry(one) for one in message.acknowledge] or None,
        "sync": sync and _known(number=str(sync.number), part=sync.part, parts=sync.parts, objects=list(sync.objects)),
        "heartbeat": message.heartbeat or None,
    }


def _from_service(message: FromService) -> dict[str, Any]:
    grant, error = message.grant, message.error
    return {
        "grant": grant and _known(nonce=grant.nonce, token=grant.token, client=str(grant.client), again=grant.again),
        "stale": message.stale or None,
        "invalid": message.invalid,
        "digest": message.digest and message.digest.to_json(),
        "seen": None if message.seen is None else str(message.seen),
        "notify": [_entry(one) for one in message.notify] or None,
        "status": [_entry(one) for one in message.status] or None,
        "failed": [_entry(one) for one in message.failed] or None,
        "sync": message.sync or None,
        "all": message.all or None,
        "interval": message.interval,
        "quiet": message.quiet,
        "error": error and _known(code=error.code, message=error.message, retry=error.retry),
        "token": message.token,
    }


def _entry(entry: Any) -> list[Any]:
    match entry:
        case Ack(name, version, unknown):
            return [name, str(version), UNKNOWN] if unknown else [name, str(version)]
        case Notice(name, number, True, _):
            return [name, str(number), UNKNOWN]
        case Notice(name, version, _, None):
            return [name, str(version)]
        case Notice(name, version, _, bytes(payload)):
            return [name, str(version), base64.b64encode(payload).decode()]
        case Status(name, registered, number):
            return [name, registered, str(number)]
        case Failure(name, number, transient, reason):
            return [name, str(number), transient, reason]
    name, number = entry
    return [name, str(number)]


def _known(**parts: Any) -> dict[str, Any]:
    return {key: value for key, value in parts.items() if value is not None}


def _dump(value: Any) -> str:
    return _ENCODER.encode(value)
