"""The frames of a WebSocket as they come, before they are parsed: how many, and whether a message is under way.

A parser tells of whole messages alone: not of pongs, nor of pieces that add up to nothing.
"""

from __future__ import annotations

from typing import Any

_FINAL, _CONTROL, _MASKED, _LENGTH = 0x80, 0x08, 0x80, 0x7F
_MASK_BYTES = 4
_LONGER = {126: 2, 127: 8}  # bytes of a length that has no room in the second byte


class Frames:
    """Follows frames.

    >>> frames = Frames()
    >>> frames.follow(b"\\x8a\\x80mask" * 3 + b"\\x01\\x83mas", now=7.0)  # three pongs, and the head of a message
    >>> frames.count, frames.begun
    (4, 7.0)
    >>> frames.follow(b"kabc" + b"\\x80\\x80mask", now=8.0)
    >>> frames.count, frames.begun, frames.unmasked
    (5, None, False)
    """

    __slots__ = ("_ends", "_head", "_left", "begun", "count", "unmasked")

    def __init__(self) -> None:
        self.count = 0
        """How many have begun since this was 0."""
        self.begun: float | None = None
        """When the message began that has not ended."""
        self.unmasked = False
        """Whether there was a frame without a mask, which no client may send (RFC 6455, 5.1)."""
        self._head = b""
        self._left = 0
        self._ends = False
        """Whether the message ends when no more of the frame is left."""

    def follow(self, data: bytes, now: float) -> None:
        """Some more has come."""
        data, self._head = self._head + data, b""
        at, end = 0, len(data)
        while True:
            passed = min(self._left, end - at)
            at += passed
            self._left -= passed
            if self._left:
                return
            if self._ends:
                self._ends, self.begun = False, None
            size = 2 if end - at < 2 else 2 + _LONGER.get(data[at + 1] & _LENGTH, 0)
            if end - at < size:
                self._head = data[at:]
                return
            first, second = data[at], data[at + 1]
            self._left = second & _LENGTH if size == 2 else int.from_bytes(data[at + 2 : at + size], "big")
            if second & _MASKED:
                self._left += _MASK_BYTES
            else:
                self.unmasked = True
            at += size
            self.count += 1
            if not first & _CONTROL:
                self.begun = now if self.begun is None else self.begun
                self._ends = bool(first & _FINAL)


class FollowedParser:
    """A parser whose frames are followed."""

    def __init__(self, parser: Any, frames: Frames, clock: Any) -> None:
        self._parser = parser
        self._frames = frames
        self._clock = clock
        self.feed_eof = parser.feed_eof

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Pass this on."""
        self._frames.follow(data, self._clock())
        found: tuple[bool, bytes] = self._parser.feed_data(data)
        return found
