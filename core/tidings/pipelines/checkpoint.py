"""Spark's checkpoint of a query, in a folder: which query it is, and what its batches cover.

Spark numbers the batches of a checkpoint, and repeats one that was not finished, under its number and with its rows. A
checkpoint that went back, because an older copy was restored or its last files are lost, gives the numbers that come
next to other rows. So a batch is known by its number and by the offsets at which it ends, of which the checkpoint holds
a note before the batch begins. Spark does not sync that note; `covered` does, so that a power failure cannot bring a
checkpoint behind what was written of its batches.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from tidings.logs import UNKNOWN_ENDS
from tidings.storage import durable


def query_id(checkpoint: Path) -> str:
    """The id of the query, which is made anew with the checkpoint."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def covered(checkpoint: Path, batch: int) -> int:
    """The offsets at which the batch ends, as a number: `Transaction.ends`. They are durable when it returns."""
    offsets = checkpoint / "offsets"
    try:
        noted = (offsets / str(batch)).read_text()
    except FileNotFoundError:
        return UNKNOWN_ENDS
    files = (checkpoint / "metadata", offsets / str(batch), offsets / f".{batch}.crc")
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # some file systems of Spark's make no checksums
            durable.sync_file(path)
    for folder in (offsets, checkpoint, checkpoint.parent):
        durable.sync_folder(folder)
    _version, _settings, *ends = noted.splitlines()
    return int.from_bytes(hashlib.blake2b("\n".join(ends).encode(), digest_size=8).digest()) >> 1
