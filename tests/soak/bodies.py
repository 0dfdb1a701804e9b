"""Rows of all sizes, from nothing to the largest that is allowed: most are small, and each size has its turn."""

from __future__ import annotations

import random

from tidings.updates import MAX_ATTRIBUTES_BYTES, MAX_DELIVERABLE_BYTES, MAX_OBJECT_BYTES, MAX_PAYLOAD_BYTES

LARGE = 40  # every so many rows there is one of many kilobytes
LARGEST = 200  # and one of the most that a producer takes unless it is told to take more
ENORMOUS = 600  # and one of the most that a message to a subscriber can carry
ATTRIBUTES_SPARE_BYTES = 256  # for what else is among the attributes


def size(number: int, rng: random.Random) -> int | None:
    """How many bytes the payload of the so manieth row has; None for no payload at all."""
    if number % ENORMOUS == ENORMOUS // 2:
        return MAX_DELIVERABLE_BYTES
    if number % LARGEST == LARGEST - 1:
        return MAX_PAYLOAD_BYTES
    if number % LARGE == LARGE - 1:
        return rng.randrange(10_000, 200_000)
    return rng.choice([None, 0, 1, rng.randrange(2, 100), rng.randrange(100, 3000)])


def attribute(number: int) -> str:
    """A text for an attribute, which at times is as large as attributes may be."""
    return "x" * (MAX_ATTRIBUTES_BYTES - ATTRIBUTES_SPARE_BYTES if number % LARGEST == LARGEST // 4 else number % 7)


def name(prefix: str, number: int) -> str:
    """The name of an object; every tenth is as long as a name may be, in characters of more than one byte."""
    short = f"{prefix}/{number}"
    return short if number % 10 else short + "å" * ((MAX_OBJECT_BYTES - len(short)) // 2)


def text(size: int, rng: random.Random) -> str:
    """A text of so many bytes, for a column."""
    return rng.randbytes((size + 1) // 2).hex()[:size]
