"""What delta-rs may do to whoever calls it: on some damage it panics, and a panic is no `Exception` in Python."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tidings.errors import LogUnavailable

PANIC = "PanicException"  # the only name that it has: the module that it says it is in cannot be imported


@contextlib.contextmanager
def containing_panics(folder: Path) -> Iterator[None]:
    """A panic about the table in this folder becomes `LogUnavailable`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != PANIC:
            raise
        checkpoints = sorted((folder / "_delta_log").glob("*.checkpoint*.parquet"))
        most_likely = f", most likely {checkpoints[-1]}" if checkpoints else ""
        raise LogUnavailable(
            f"the Delta table in {folder} cannot be read, since a file of its log is damaged{most_likely}; restore it, "
            f"or the table ({str(error)[:200]})"
        ) from error
