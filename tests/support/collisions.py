"""Names with one key: whoever chooses names can have as many as he likes."""

from __future__ import annotations

import itertools

from tidings_thialfi.protocol.digests import MASK, SEED, key_of

_P1, _P2 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F


def colliding(count: int) -> list[str]:
    """So many names, unlike, all with the same key.

    XXH64 takes eight bytes of every 32 into one of four lanes. Whatever the first eight are, there are eight in the
    next 32 that bring the lane to where it shall be; those that are readable are taken.
    """
    target = _lane((SEED + _P1 + _P2) & MASK, b"00000000")
    wanted = (target + int.from_bytes(b"forged  ", "little") * _P2) & MASK
    found = []
    for number in itertools.count():
        first = b"%08d" % number
        lane = _lane((SEED + _P1 + _P2) & MASK, first)
        second = ((wanted - lane) * pow(_P2, -1, 2**64) & MASK).to_bytes(8, "little")
        if all(0x20 <= byte < 0x7F for byte in second):
            found.append((first + b"." * 24 + second + b"." * 24).decode())
        if len(found) == count:
            assert len({key_of(name) for name in found}) == 1
            return found
    raise AssertionError("there are always more")


def _lane(start: int, data: bytes) -> int:
    mixed = (start + int.from_bytes(data, "little") * _P2) & MASK
    return ((mixed << 31 | mixed >> 33) & MASK) * _P1 & MASK
