"""Who may do what in ZooKeeper: the rights of each role at each place of a cluster's tree.

```
/<root>/access        how ZooKeeper names each role; with it the tree is closed, without it everybody may do everything
```

It is made with the tree, by the first process that has the secret of the cluster; a tree that is there already is
closed by `tidings doctor --zookeeper … --repair`. A node has its own rights in ZooKeeper, whatever those above it are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kazoo.security import ACL, Id, Permissions

from tidings.errors import ForeignValue
from tidings.identity.credentials import ROLES, SEALS, Credentials, seal
from tidings.plugins import installed_names, load

ACCESS = "access"
EVERYTHING, READING = "rwcda", "r"
_LETTERS = {
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "a": Permissions.ADMIN,
}


class Rights(NamedTuple):
    """What each role may do at a place: read, write, and create or delete what is right below it.

    Operators may do everything, and viewers may read everything. `whose` is the application that is meant by
    `application`, made of the second name of the place.
    """

    publisher: str = ""
    producer: str = ""
    member: str = ""
    application: str = ""
    whose: str = "{}"


_SHARED = Rights(publisher="r", producer="r", member="r")
_FLOWS = Rights(publisher="rcd", application="r")
PLACES: dict[str, Rights] = {
    "": _SHARED,
    ACCESS: _SHARED,
    "streams": _SHARED,
    "streams/*": Rights(publisher="rc", producer="r", member="r"),
    "streams/*/origin": Rights(publisher="rw"),
    "applications": Rights(publisher="r", member="r"),
    "applications/*": Rights(publisher="r", application="r"),
    "applications/*/subscribers": Rights(publisher="r", application="rcd"),
    "applications/*/subscribers/*": Rights(publisher="r", application="rw"),
    "flows": Rights(publisher="rcd"),
    "flows/*": _FLOWS,
    "flows/*/*": _FLOWS,
    "flows/*/*/*": _FLOWS,
    "flows/*/*/*/*": Rights(publisher="rw", application="r"),
    "publishers": Rights(publisher="rcd", member="r"),
    "publishers/*": Rights(publisher="rw", member="r"),
    "drains": Rights(publisher="r"),
    "drains/*": Rights(publisher="r"),
    "audit": Rights(),
    "audit/*": Rights(),
    "snapshots": Rights(publisher="r"),
    "snapshots/*": Rights(publisher="rw"),
    "caravans": Rights(publisher="rc"),
    "caravans/*": Rights(publisher="rcd"),
    "caravans/*/*": Rights(publisher="rw"),
    "pipelines": Rights(producer="rcd"),
    "pipelines/*": Rights(producer="rw"),
}


@functools.cache
def places() -> Mapping[str, Rights]:
    """The rights at all places: those of the core, and of plugins, which the group `tidings.places` names."""
    found = dict(PLACES)
    for plugin in installed_names("tidings.places"):
        found |= load("tidings.places", plugin)
    return found


def top_places() -> list[str]:
    """The places right below the root."""
    return sorted(place for place in places() if place and "/" not in place)


def rights_at(parts: Sequence[str]) -> Rights:
    """What roles may do at a place; nothing where none is known, but for operators and viewers.

    >>> rights_at(["flows", "cache", "contacts", "3", "datamarker"]).publisher
    'rw'
    """
    found = places().get("/".join(parts))
    for pattern, rights in places().items():
        if found is None and pattern.count("/") == len(parts) - 1 and _matches(pattern.split("/"), parts):
            found = rights
    return found or Rights()


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    return all(wanted in ("*", part) for wanted, part in zip(pattern, parts, strict=True))


class AccessRules:
    """Says which rights a new node of a closed tree has. `record` is what the tree says of its roles."""

    def __init__(self, record: Mapping[str, Any], credentials: Credentials) -> None:
        self._credentials = credentials
        self._acls: dict[tuple[Rights, str], list[ACL]] = {}
        self._roles: dict[str, list[str]] = {}
        for role in ROLES:
            noted = record.get(role, [])
            if not isinstance(noted, list) or not all(isinstance(one, str) for one in noted):
                raise ForeignValue(f"what ZooKeeper says of its roles makes no sense at {role!r}: repair it")
            self._roles[role] = sorted({*noted, *credentials.identities(role)})

    @classmethod
    def of_secrets(cls, credentials: Credentials) -> AccessRules:
        """The rules of a tree that knows our secrets, and no others."""
        return cls({}, credentials)

    def record(self) -> dict[str, Any]:
        """What the tree is to say of its roles, sealed by our secrets."""
        return {**self._roles, SEALS: [seal(secret, self._roles) for secret in self._credentials.secrets]}

    def acl(self, parts: Sequence[str]) -> list[ACL]:
        """The rights of a node at a place, as ZooKeeper takes them."""
        rights = rights_at(parts)
        whose = rights.whose.format(parts[1]) if rights.application else ""
        if (rights, whose) not in self._acls:  # thousands of flows have the same
            self._acls[rights, whose] = [
                ACL(sum(_LETTERS[letter] for letter in letters), Id("digest", identity))
                for letters, identities in self._grants(rights, whose)
                for identity in identities
                if letters
            ]
        return self._acls[rights, whose]

    def _grants(self, rights: Rights, whose: str) -> Iterator[tuple[str, list[str]]]:
        yield EVERYTHING, self._roles["operator"]
        yield rights.publisher, self._roles["publisher"]
        yield rights.producer, self._roles["producer"]
        yield rights.member, self._roles["member"]
        if whose:
            yield rights.application, self._credentials.applications(whose)
        yield READING, self._roles["viewer"]
