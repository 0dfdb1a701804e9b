"""Standard output, of which a command knows that it was written: whole, or there is an error."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

from tidings.errors import TidingsError


class OutputFailed(TidingsError, OSError):
    """What a command prints cannot be written: the disk is full, say."""


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """Have all that is printed written, or an error raised; a reader that went away is a `BrokenPipeError` as ever.

    Where PYTHONUNBUFFERED is set, as it is in many containers, Python's own stdout writes what the system takes at once
    and leaves out the rest without a word. Then, as on a terminal, a print is written when it ends with its line.
    """
    given = sys.__stdout__
    if given is not sys.stdout:  # somebody's own, as in a test or a notebook
        yield
        return
    if given is None:  # it was closed before we began; to write into a file that is for reading fails likewise
        descriptor = os.open(os.devnull, os.O_RDONLY)
        ours = _WholeText(io.BufferedWriter(io.FileIO(descriptor, "w")), "utf-8")
    else:
        given.flush()
        descriptor = os.dup(given.fileno())
        file = io.BufferedWriter(io.FileIO(descriptor, "w"))
        by_line = given.line_buffering or given.write_through
        ours = _WholeText(file, given.encoding, given.errors, line_buffering=by_line)
    sys.stdout = ours
    try:
        yield
    finally:
        sys.stdout = given
        try:
            ours.flush()
        except OSError:
            with open(os.devnull, "wb") as nothing:  # to close is to write what is left, which would fail again
                os.dup2(nothing.fileno(), descriptor)
        ours.close()


class _WholeText(io.TextIOWrapper):
    """Text that becomes bytes in a buffer, which writes them all.

    The errors are told here and not in the file, where a signal could come between the writing and the word of it.
    """

    def write(self, text: str) -> int:
        with _telling():
            return super().write(text)

    def flush(self) -> None:
        with _telling():
            super().flush()


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, OutputFailed):
        raise
    except OSError as error:
        raise OutputFailed(f"the output cannot be written: {error.strerror or error}") from None
