"""The keys of updates, for policies by which updates collect earlier ones of their key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.collection import EXPLICIT
from tidings.errors import InvalidOption
from tidings.filters import arrow
from tidings.filters.values import PREFIX, normal_key

COLUMNS = ("object", "source")
OPTIONAL = "?"
MAX_KEY_PARTS = 16
MISSING = -1  # all bits set, as a length of four bytes
DEFAULT_KEY = ("object",)


def explicit(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Which of these updates are explicit gc events: of kind `gc`, with a predicate in the attribute `collects`."""
    found: npt.NDArray[np.bool_] = EXPLICIT.mask(rows).to_numpy(zero_copy_only=False)
    return found


def check_key(value: Any) -> tuple[str, ...]:
    """The columns of a key, in their one order; `InvalidOption` if they make none.

    A part with a `?` may be missing: those that lack it have it in common.

    >>> check_key(["object", "attributes.client"]), check_key("source?")
    (('attributes.client', 'object'), ('source?',))
    """
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise InvalidOption(f"{value!r} is no key: give a list of {_choices()}")
    for name in names:
        plain = name.removesuffix(OPTIONAL) if isinstance(name, str) else ""
        if not (plain in COLUMNS or (plain.startswith(PREFIX) and plain != PREFIX)):
            raise InvalidOption(f"{name!r} is no part of a key: it has {_choices()}")
    if len(names) > MAX_KEY_PARTS:
        raise InvalidOption(f"a key has {MAX_KEY_PARTS} parts at most, and not {len(names):,}")
    if len({name.removesuffix(OPTIONAL) for name in names}) < len(names):
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
    pieces: list[pa.Array] = []
    for at, name in enumerate(key):
        part = _bytes(arrow.values(rows, column_of(name)))
        optional = name.endswith(OPTIONAL)
        # Each part but the last is preceded by its length, so that no two keys run together to the same bytes.
        if optional or at < len(key) - 1:
            pieces.append(_lengths(part, optional))
        pieces.append(pc.fill_null(part, b"") if optional else part)
    joined = pc.binary_join_element_wise(*pieces, pa.scalar(b""), null_handling="emit_null")
    whole = joined if len(pieces) > 1 else pieces[0]
    without = explicit(rows) | pc.equal(rows["kind"], "tombstone").to_numpy()
    return pc.if_else(pa.array(without), pa.scalar(None, pa.binary()), whole)


def _bytes(values: pa.ChunkedArray) -> pa.Array:
    return values.cast(pa.binary()).combine_chunks()


def column_of(part: str) -> str:
    """The column or attribute that a part of a key names."""
    return normal_key(part.removesuffix(OPTIONAL))


def _lengths(values: pa.Array, optional: bool) -> pa.Array:
    """The length of each value in four bytes; one that is missing, and may be, is told from an empty one."""
    lengths = pc.fill_null(pc.binary_length(values), MISSING if optional else 0)
    lengths = lengths.to_numpy(zero_copy_only=False).astype(np.int64).astype(">u4")
    fixed = pa.Array.from_buffers(pa.binary(4), len(values), [None, pa.py_buffer(lengths.tobytes())])
    return fixed.cast(pa.binary())
