"""Names decide: a key is only where to look, since whoever chooses names can make many that have one key.

Within a batch names are numbered, and what is about one object is found by these numbers.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

NAME = pa.field("name", pa.int64())
"""The number of an object's name."""


class Names:
    """Numbers for names, alike exactly where the names are."""

    def __init__(self) -> None:
        self._known = pa.array([], pa.string())

    def numbered(self, rows: pa.Table) -> pa.Table:
        """The rows, with the column `name` for their `object`; -1 where there is none."""
        here = pc.unique(rows["object"]).drop_null()
        new = here.filter(pc.invert(pc.is_in(here, self._known)))
        self._known = pa.concat_arrays([self._known, new])
        numbers = pc.fill_null(pc.index_in(rows["object"], self._known), -1)
        return rows.append_column(NAME, numbers.cast(pa.int64()))
