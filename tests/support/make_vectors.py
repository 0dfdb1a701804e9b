"""Writes `vectors.json`, with which a client in another language is tested: `python -m tests.support.make_vectors`.

Every value in it is fixed, so that the file changes only when the protocol does.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.places import ROOT
from tidings_thialfi.protocol.digests import Digest, item_of, key_of, salt_of
from tidings_thialfi.protocol.messages import (
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
    encode,
)

FILE = ROOT / "tests" / "plugins" / "thialfi" / "protocol" / "vectors.json"
NUMBER = 1_700_000_000_000_000
OBJECTS = ("alice", "bob", "contacts/42", "Zoë", "数据", "🐝", "\u0000", " ", '"\\', "x" * 1024)
DIGEST = Digest.of(4711, ["alice", "bob"])

FROM_CLIENT = {
    "a first hello": FromClient(hello=Hello("5f1c", "contacts-web-1", "app's own")),
    "a hello with an old token": FromClient("an.old-token_", hello=Hello("5f1d", "contacts-web-1")),
    "registrations": FromClient("token", DIGEST, register=(("alice", NUMBER + 1), ("bob", NUMBER + 2))),
    "an unregistration": FromClient("token", DIGEST, unregister=(("carol", NUMBER + 3),)),
    "acknowledgements": FromClient("token", DIGEST, acknowledge=(Ack("alice", 2**63 - 1), Ack("bob", NUMBER, True))),
    "the first part of a sync": FromClient("token", DIGEST, sync=SyncPart(NUMBER + 4, 0, 2, ("alice",))),
    "the last part of a sync": FromClient("token", DIGEST, sync=SyncPart(NUMBER + 4, 1, 2, ("bob",))),
    "a sync of nothing": FromClient("token", Digest(), sync=SyncPart(NUMBER + 5, 0, 1, ())),
    "a heartbeat": FromClient("token", DIGEST, heartbeat=True),
    "the largest number": FromClient("token", DIGEST, register=(("alice", 2**62 - 1),)),
    "a poll that says nothing": FromClient("token"),
    "all kinds of names": FromClient(
        "token", register=tuple((name, NUMBER + 10 + n) for n, name in enumerate(OBJECTS))
    ),
}
FROM_SERVICE = {
    "a grant": FromService(Grant("5f1c", "token", 4711, False), interval=1200),
    "a grant that keeps the client": FromService(Grant("5f1d", "token", 2**63 - 1, True)),
    "a stale token": FromService(stale=True, token="an.old-token_"),
    "an invalid token": FromService(invalid="this is no token of ours", token="an.old-token_"),
    "a digest": FromService(digest=DIGEST, seen=NUMBER + 3),
    "a digest of nothing": FromService(digest=Digest(), seen=0),
    "a version": FromService(notify=(Notice("alice", 7),)),
    "a version with its payload": FromService(notify=(Notice("alice", 7, payload=b"payload"),)),
    "a version with an empty payload": FromService(notify=(Notice("alice", 7, payload=b""),)),
    "an unknown version": FromService(notify=(Notice("bob", NUMBER, unknown=True),)),
    "registered, and not": FromService(status=(Status("alice", True, NUMBER + 1), Status("carol", False, NUMBER + 3))),
    "refused registrations": FromService(
        failed=(Failure("eve", NUMBER + 7, False, "not permitted"), Failure("dan", NUMBER + 8, True, "too busy"))
    ),
    "a request to sync": FromService(digest=Digest(), seen=NUMBER + 3, sync=True),
    "everything may have changed": FromService(all=True),
    "another heartbeat": FromService(interval=60),
    "a quiet time": FromService(quiet=5.5),
    "an error that passes": FromService(error=Fault("rate", "you say too much", 5)),
    "an error that stays": FromService(error=Fault("denied", "you are not let in")),
}
REFUSED = {
    "another major version": ("version", '{"v": "2.0", "token": "token"}'),
    "no version": ("malformed", '{"token": "token"}'),
    "a number that is none in JavaScript": ("malformed", '{"v": "1.0", "token": "t", "register": [["alice", 5]]}'),
    "a number beyond the largest": (
        "malformed",
        '{"v": "1.0", "token": "t", "register": [["alice", "4611686018427387904"]]}',
    ),
    "a version beyond the largest": (
        "malformed",
        '{"v": "1.0", "token": "t", "acknowledge": [["alice", "9223372036854775808"]]}',
    ),
    "half of a pair": ("malformed", '{"v": "1.0", "token": "t", "register": [["\\ud800", "5"]]}'),
    "a key that comes twice": ("malformed", '{"v": "1.0", "token": "t", "token": "t"}'),
    "a part beyond the last": (
        "malformed",
        '{"v": "1.0", "token": "t", "sync": {"number": "5", "part": 1, "parts": 1, "objects": []}}',
    ),
    "no token": ("malformed", '{"v": "1.0", "heartbeat": true}'),
}


def vectors() -> dict[str, Any]:
    """What the file holds. Keys are unsigned here, as most languages have them."""
    clients = (0, 1, 4711, 2**63 - 1)
    return {
        "from_client": {what: json.loads(encode(message)) for what, message in FROM_CLIENT.items()},
        "from_service": {what: json.loads(encode(message)) for what, message in FROM_SERVICE.items()},
        "refused": {what: {"code": code, "text": text} for what, (code, text) in REFUSED.items()},
        "keys": [{"object": name, "key": str(key_of(name) % 2**64)} for name in OBJECTS],
        "items": [
            {"client": str(client), "salt": str(salt_of(client)), "object": name, "item": str(item_of(client, name))}
            for client in clients
            for name in OBJECTS[:4]
        ],
        "digests": [
            {"client": str(client), "objects": list(objects), "digest": Digest.of(client, objects).to_json()}
            for client in clients
            for objects in ((), OBJECTS[:1], OBJECTS)
        ],
    }


def text() -> str:
    """The file's text."""
    return json.dumps(vectors(), indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
