"""Payloads that are not small are read late: of what is new, and of these only what somebody wants or what is kept.

A batch may have thousands of updates with large payloads that nobody is registered for. Their sizes come with the
updates, and they themselves in a second read, so many bytes in all: beyond that clients are told without, and fetch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings_thialfi.server.arrays import Longs, codes, last_of_each, longs, places
from tidings_thialfi.server.matching import Objects
from tidings_thialfi.server.names import Names

INLINE_BYTES = 1024  # of a payload that comes with its update
LATE_BYTES = 64 * 2**20  # of those of a batch that are read late
LATE_UPDATES = 4096  # whose payloads these are

ReadLate = Callable[[list[int]], pa.Table]
"""Reads the columns `place`, `object` and `late` of the batch's updates at these places."""


def with_late_payloads(objects: Objects, wanted: Longs, kept_bytes: int, names: Names, read: ReadLate) -> Objects:
    """The objects, with the payloads of new versions that are wanted, by name, or small enough to be kept."""
    new = objects.new
    sizes = np.where(longs(new, "unknown") == 0, longs(new, "late_bytes"), 0)
    wants = np.flatnonzero((sizes > 0) & (np.isin(longs(new, "name"), wanted) | (sizes <= kept_bytes)))
    wants = wants[np.cumsum(sizes[wants]) <= LATE_BYTES][:LATE_UPDATES]
    if not len(wants):
        return objects
    found = names.numbered(read(longs(new, "place")[wants].tolist()))
    theirs, mine = codes(*((longs(found, name), longs(new, name)) for name in ("place", "name")))
    first = last_of_each(theirs)
    at = places(theirs[first], mine)
    late = found["late"].take(pa.array(first)).combine_chunks().take(pa.array(at, mask=at < 0))
    column = new.column_names.index("payload")
    new = new.set_column(column, new.schema.field("payload"), pc.coalesce(late, new["payload"].combine_chunks()))
    return Objects(new, objects.after).including(new)
