"""Durations and sizes as people write them, in `tidings.yml` and on the command line."""

from __future__ import annotations

import re

from tidings.errors import InvalidOption

_DURATION = re.compile(r"P(?:(\d{1,9})W)?(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})S)?)?", re.ASCII)
_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))? ?([A-Za-z]*)", re.ASCII)
_UNITS = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def parse_duration(text: str) -> int:
    """An ISO 8601 duration as seconds. Months and years have no fixed length, and are refused.

    >>> parse_duration("P7D"), parse_duration("PT1H30M")
    (604800, 5400)
    """
    match = _DURATION.fullmatch(text)
    if not match or not any(match.groups()) or text.endswith("T"):
        raise InvalidOption(f"{text!r} is no duration: write ISO 8601, as in P7D, PT12H or P1DT30M")
    seconds = sum(int(n) * unit for n, unit in zip(match.groups("0"), (604800, 86400, 3600, 60, 1), strict=True))
    if seconds == 0:
        raise InvalidOption(f"{text!r} is no time at all: a duration is a second at least")
    return seconds


def parse_size(text: str) -> int:
    """A size as bytes; `kB`, `MB` … count in thousands, `KiB`, `MiB` … in 1,024s.

    >>> parse_size("10GiB"), parse_size("1.5 MB"), parse_size("4096")
    (10737418240, 1500000, 4096)
    """
    match = _SIZE.fullmatch(text)
    # A lone letter, as in 10G, could mean either kind of unit: it is none.
    if not match or match[3] not in _UNITS:
        raise InvalidOption(f"{text!r} is no size: write bytes, or a unit, as in 4096, 500MB or 10GiB")
    unit, digits = _UNITS[match[3]], match[2] or ""
    size = int(match[1]) * unit + int(digits or 0) * unit // int(10 ** len(digits))
    if not 0 < size < 2**63:
        raise InvalidOption(f"{text!r} is no size: it lies between a byte and 2^63-1 bytes")
    return size
