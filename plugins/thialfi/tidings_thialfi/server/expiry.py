"""What need not be kept for ever: rows that say no more than their absence would.

| row | is as good as none |
| --- | --- |
| a registration that has ended | after the time for which clients may stay away: no older operation comes so late |
| a client's facts | once its mark has gone: a client without a mark is not known, either way |
| what was told to all | at once |
| an acknowledgement | when its client is not registered for the object: whoever registers is told in any case |
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings_thialfi.server.arrays import Flags, Longs, codes, flags, longs
from tidings_thialfi.server.names import Names


class Expiry:
    """Decides it; `before` is the time, in microseconds, before which what has ended has expired.

    `registrations` looks up those of some clients.
    """

    def __init__(self) -> None:
        self.before = 0
        self.registrations: Callable[[Longs], pa.Table] | None = None

    def dead(self, table: str, rows: pa.Table) -> Flags:
        """Which of these rows, the newest of theirs, need not be kept."""
        if table == "registrations":
            return ~flags(rows, "registered") & (longs(rows, "time") < self.before)
        if table == "fanouts":
            return np.asarray(longs(rows, "left") == 0, bool)
        if table == "clients":
            ended = rows.filter(pc.and_(pc.equal(rows["fact"], 0), pc.invert(rows["holds"])))
            return np.isin(longs(rows, "client"), longs(ended, "client"))
        if table == "acknowledgements" and self.registrations is not None and len(rows):
            names = Names()
            rows, known = map(names.numbered, (rows, self.registrations(np.unique(longs(rows, "client")))))
            known = known.filter(known["registered"])
            mine, theirs = codes(
                (longs(rows, "client"), longs(known, "client")), (longs(rows, "name"), longs(known, "name"))
            )
            return ~np.isin(mine, theirs)
        return np.zeros(len(rows), bool)
