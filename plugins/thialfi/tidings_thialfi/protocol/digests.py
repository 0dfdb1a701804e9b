"""The digest of a client's registrations: order-free, so that one more or one less is one addition.

The same numbers come out of Spark's `xxhash64(client, key)` over columns of longs, so that the service computes digests
natively; of `items` over numpy arrays; and of any XXH64 in any language.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

SEED = 42
MASK = 2**64 - 1

Keys = npt.NDArray[np.int64]


def key_of(name: str) -> int:
    """An object's 64-bit key, signed as Spark has it: the same as its `xxhash64(object)`.

    >>> key_of("alice")
    2281294259717289107
    """
    return _signed(xxhash.xxh64_intdigest(name.encode(), SEED))


def salt_of(client: int) -> int:
    """What makes a client's digest its own."""
    return xxhash.xxh64_intdigest(client.to_bytes(8, "little", signed=True), SEED)


def item_of(client: int, name: str) -> int:
    """What one registration adds to a client's digest."""
    return xxhash.xxh64_intdigest(key_of(name).to_bytes(8, "little", signed=True), salt_of(client))


@dataclass(frozen=True, slots=True)
class Digest:
    """How many registrations, and the sum of their items.

    >>> both = Digest.of(7, ["alice", "bob"])
    >>> both == Digest.of(7, ["bob"]).plus(7, "alice")
    True
    >>> both.minus(7, "bob") == Digest.of(7, ["alice"])
    True
    """

    count: int = 0
    sum: int = 0

    @classmethod
    def of(cls, client: int, names: Iterable[str]) -> Digest:
        """The digest of these objects."""
        items = [item_of(client, name) for name in names]
        return cls(len(items), sum(items) & MASK)

    def plus(self, client: int, name: str) -> Digest:
        """With one registration more."""
        return Digest(self.count + 1, (self.sum + item_of(client, name)) & MASK)

    def minus(self, client: int, name: str) -> Digest:
        """With one registration less."""
        return Digest(self.count - 1, (self.sum - item_of(client, name)) & MASK)

    def to_json(self) -> list[str]:
        """As it travels."""
        return [str(self.count), str(self.sum)]


_P1, _P2, _P3 = (np.uint64(n) for n in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
_P4, _P5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)


def items(clients: Keys, keys: Keys) -> npt.NDArray[np.uint64]:
    """The items of many registrations at once; XXH64 of eight bytes each, salted by client."""
    return _hash_long(keys.view(np.uint64), _hash_long(clients.view(np.uint64), np.uint64(SEED)))


def _hash_long(values: npt.NDArray[np.uint64], seed: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        lane = _rotated(values * _P2, 31) * _P1
        mixed = _rotated((seed + _P5 + np.uint64(8)) ^ lane, 27) * _P1 + _P4
        mixed = (mixed ^ (mixed >> np.uint64(33))) * _P2
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _P3
        found: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(32))
    return found


def _rotated(values: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    found: npt.NDArray[np.uint64] = (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
    return found


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
