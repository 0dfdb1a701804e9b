"""What the cluster knows of a stream, and how the address of its log is written."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any
from urllib.parse import unquote

from tidings.allocation_policies import Limits
from tidings.errors import InvalidOption
from tidings.names import check_name

MAX_SHARDS = 4096
DEFAULT_SHARDS = 16
_SECRET = re.compile(r"://[^/@]*:[^/@]+@|\b(ssl)?(password|passwd|pwd)\s*=", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """What the cluster knows of a stream: its name, the number of its shards, the address of its log.

    A log of ours lets go of updates that are older than `retention_seconds`, and of the oldest ones when it holds more
    than `retention_bytes`.
    """

    name: str
    shards: int
    log: str
    retention_seconds: int | None = None
    retention_bytes: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What the log is told; it says what it takes."""
    caravans: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The policy and the limits of its caravans, as long as no operator says otherwise."""
    replicas: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Other logs that have the same updates at the same positions, by name; those named first are preferred."""
    collect: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The policies by which updates are collected, with their options, by name."""
    family: str = ""
    """The streams that are read by one name, this one among them: `shop` for `shop.east` and `shop.west`."""
    id: str = field(default="", compare=False)
    """Which stream of that name it is: one that was dropped and made anew is another. Given when it is made."""

    def __post_init__(self) -> None:
        check_name("a stream", self.name)
        if type(self.shards) is not int or not 1 <= self.shards <= MAX_SHARDS:
            raise InvalidOption(f"stream {self.name!r} cannot have {self.shards!r} shards: from 1 to {MAX_SHARDS:,}")
        split_address(self.log)
        for limit in (self.retention_seconds, self.retention_bytes):
            if limit is not None and limit <= 0:
                raise InvalidOption(f"stream {self.name!r} cannot retain {limit!r}: seconds and bytes are above 0")
        for given in (self.options, self.caravans, self.replicas, self.collect):
            if not isinstance(given, Mapping):
                raise InvalidOption(f"stream {self.name!r} cannot have {str(given)[:100]!r} for a mapping of options")
        Limits.from_json(self.caravans)
        for name, log in self.replicas.items():
            check_name("a replica", name)
            split_address(log)
        if self.family and not self.name.startswith(f"{check_name('a family of streams', self.family)}."):
            raise InvalidOption(f"a stream of family {self.family!r} is called {self.family}.<name>, not {self.name!r}")

    def made_now(self) -> StreamDefinition:
        """The definition of a stream that is new."""
        return replace(self, id=uuid.uuid4().hex)

    @property
    def locations(self) -> list[str]:
        """The addresses of its log and of the replicas, without their schemes."""
        return [split_address(log)[1] for log in (self.log, *self.replicas.values())]

    def at(self, replica: str | None) -> StreamDefinition:
        """The stream as it is read at a replica."""
        return self if replica is None else replace(self, log=self.replicas[replica])

    def to_json(self) -> dict[str, Any]:
        """The definition as it is kept in ZooKeeper."""
        return {key: value for key, value in asdict(self).items() if value not in ({}, "")}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StreamDefinition:
        """The definition that `to_json` wrote; keys of a later version are left alone.

        `InvalidOption`, or another error of ours, if it was written by a later version that this one cannot follow, or
        by hand.
        """
        known = {one.name for one in fields(cls)}
        try:
            return cls(**{key: known_value for key, known_value in value.items() if key in known})
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidOption(f"this is no definition of a stream: {error}") from None


def streams_by_name(definitions: Iterable[StreamDefinition]) -> dict[str, list[str]]:
    """What each name stands for: a stream's for itself, a family's for all of its streams.

    >>> east = StreamDefinition("shop.east", 1, "delta:/east", family="shop")
    >>> streams_by_name([east])
    {'shop.east': ['shop.east'], 'shop': ['shop.east']}
    """
    known = {one.name: one for one in definitions}
    found = {name: [name] for name in known}
    for name in sorted(known):
        if (family := known[name].family) and family not in known:
            found.setdefault(family, []).append(name)
    return found


def holds_password(text: str) -> bool:
    """Whether an address, or another text, has a password in it, as URLs and connection strings have."""
    return bool(_SECRET.search(text) or _SECRET.search(unquote(text)))


def split_address(address: str) -> tuple[str, str]:
    """A log's address as its scheme and its location.

    >>> split_address("delta:/data/contacts")
    ('delta', '/data/contacts')
    """
    scheme, colon, location = address.partition(":")
    if holds_password(address):  # before anything of it is shown
        raise InvalidOption(
            "the address of a log must not hold a password, since it is kept in ZooKeeper and shown: give it by the "
            "environment or by a file, as docs/tail-a-database.md says"
        )
    if not colon or not scheme or not location:
        raise InvalidOption(f"{address!r} is no log: write a scheme and a place, as in delta:/data/contacts")
    if "\0" in location:
        raise InvalidOption(f"{address!r} is no log: no place has a NUL in its name")
    return scheme, location
