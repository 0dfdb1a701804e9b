"""What takes back what was made, if something that is made after it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType

from tidings.errors import NotTakenBack, TidingsError

logger = logging.getLogger(__name__)


class Undo:
    """Steps back, taken from the last to the first if the block fails. What cannot be taken back is told.

    >>> import contextlib
    >>> with contextlib.suppress(TidingsError), Undo() as undo:
    ...     undo.add("the stream", lambda: print("it is dropped"))
    ...     raise TidingsError("what it needs cannot be made")
    it is dropped
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], object]]] = []

    def add(self, what: str, step: Callable[[], object]) -> None:
        """Something was made, and this takes it back."""
        self._steps.append((what, step))

    def take_over(self, other: Undo) -> None:
        """What was made for another is made for this one."""
        self._steps += other._steps

    def __enter__(self) -> Undo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            return
        stays = "; ".join(self._take_back())
        if stays and isinstance(error, TidingsError):
            raise NotTakenBack(f"{error}; and {stays}") from error
        if stays:
            logger.warning("%s", stays)

    def _take_back(self) -> list[str]:
        """Take the steps back; what stays, and why."""
        stays = []
        for what, step in reversed(self._steps):
            try:
                step()
            except TidingsError as error:
                stays.append(f"{what} could not be taken back: {error}")
        return stays
