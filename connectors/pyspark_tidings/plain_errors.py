"""Errors of ours as Spark tells them: a class and a sentence.

Spark puts the stack of the Python worker that failed into the message of its own error. For a mistake in an option that
is a page of our source before the one line that helps. A worker ends with its error, so what it is told to hide is that
of this error alone, and those of a user's own code are told as ever.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from tidings.errors import TidingsError

HIDE = "SPARK_HIDE_TRACEBACK"  # Spark's name; looked at when an error has ended a worker


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Have Spark leave out the stack of an error that we raise on purpose; of any other, it is needed."""
    try:
        yield
    except TidingsError:
        if _is_worker():
            os.environ[HIDE] = "1"
        raise


def _is_worker() -> bool:
    """Whether Spark started this process to run Python for it; others have errors of their own to come."""
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    return started is not None and started.name.startswith("pyspark.")
