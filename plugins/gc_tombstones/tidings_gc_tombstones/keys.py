"""The keys of updates, for policies by which updates collect earlier ones of their key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import InvalidOption
from tidings.filters import arrow
from tidings.filters.values import PREFIX, normal_key
from tidings_gc_tombstones.covering import EXPLICIT

COLUMNS = ("object", "source")
DEFAULT_KEY = ("object",)


def explicit(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Which of these updates are explicit gc events: of kind `gc`, with a predicate in the attribute `collects`."""
    found: npt.NDArray[np.bool_] = EXPLICIT.mask(rows).to_numpy(zero_copy_only=False)
    return found


def check_key(value: Any) -> tuple[str, ...]:
    """The columns of a key, in their one order; `InvalidOption` if they make none.

    >>> check_key(["object", "attributes.client"]), check_key("source")
    (('attributes.client', 'object'), ('source',))
    """
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise InvalidOption(f"{value!r} is no key: give a list of {_choices()}")
    for name in names:
        if not isinstance(name, str) or not (name in COLUMNS or (name.startswith(PREFIX) and name != PREFIX)):
            raise InvalidOption(f"{name!r} is no part of a key: it has {_choices()}")
    if len(set(names)) < len(names):
        raise InvalidOption(f"the key {', '.join(names)} names one of its parts twice")
    return tuple(sorted(names))


def _choices() -> str:
    return f"{', '.join(COLUMNS)} and {PREFIX}<name>"


def keys_of(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    """The key of each update, as bytes: two are equal if and only if all parts of the key are.

    It is null for an update that lacks a part of it, for an explicit gc event, and for a tombstone: they are not
    collected by updates of any key, and collect none.

    >>> from tidings.updates import from_rows
    >>> rows = from_rows([{"object": "a", "source": "app"}, {"object": "b"}])
    >>> keys_of(rows, ["object"]).to_pylist(), keys_of(rows, ["object", "source"]).to_pylist()
    ([b'a', b'b'], [b'\\x00\\x00\\x00\\x01aapp', None])
    """
    parts = [_bytes(arrow.values(rows, normal_key(name))) for name in key]
    # Each part but the last is preceded by its length, so that no two keys run together to the same bytes.
    pieces = [piece for part in parts[:-1] for piece in (_lengths(part), part)] + parts[-1:]
    whole = pc.binary_join_element_wise(*pieces, pa.scalar(b""), null_handling="emit_null") if parts[1:] else parts[0]
    without = explicit(rows) | pc.equal(rows["kind"], "tombstone").to_numpy()
    return pc.if_else(pa.array(without), pa.scalar(None, pa.binary()), whole)


def _bytes(values: pa.ChunkedArray) -> pa.Array:
    return values.cast(pa.binary()).combine_chunks()


def _lengths(values: pa.Array) -> pa.Array:
    """The length of each value in four bytes; null where the value is."""
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(">u4")
    fixed = pa.Array.from_buffers(pa.binary(4), len(values), [None, pa.py_buffer(lengths.tobytes())])
    return fixed.cast(pa.binary())
