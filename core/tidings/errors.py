"""Every error that tidings raises on purpose.

`TidingsError` is the root: `except tidings.TidingsError` catches all of them and nothing else. Each message names the
value that was wrong and says what to do next; the command line prints it as it is, without a stack trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidings.texts import sentence

if TYPE_CHECKING:
    from tidings.positions import Position


ENDING = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""What is to end a thread. Any other `BaseException` is a failure like others, as is the panic of a native library."""


class TidingsError(Exception):
    """The root of all errors that tidings raises on purpose."""


class InvalidUpdate(TidingsError):
    """An update breaks a rule of the canonical row: its object, version, attributes, payload or time."""


class InvalidName(TidingsError):
    """A stream's or an application's name cannot be used."""


class InvalidPosition(TidingsError):
    """A position, or a set of them, cannot be read."""


class InvalidOption(TidingsError):
    """An option is unknown, is missing, or has a value that it cannot have."""


class InvalidOptions(InvalidOption):
    """Options of a log cannot be used; `problems` says of each, by where it is among them, what is wrong with it."""

    def __init__(self, message: str, problems: Sequence[tuple[tuple[str | int, ...], str]] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class NotTakenBack(TidingsError):
    """Something failed halfway, and not all that was made before it could be taken back; the message says what."""


class InvalidFilter(TidingsError):
    """A filter cannot be read or could not be evaluated alike everywhere; the message points at the column."""


class FilterWarning(UserWarning):
    """No error: a filter is allowed and cannot be meant, since a condition of it holds for no update, or for all."""


class InvalidConfig(TidingsError):
    """A `tidings.yml` is broken; the message names the file, the line and the key."""


class UnknownStream(TidingsError):
    """No stream of that name is defined in this cluster."""


class StreamExists(TidingsError):
    """A stream of that name is there already, with another definition."""


class UnknownApplication(TidingsError):
    """No application of that name is defined in this cluster."""


class ApplicationExists(TidingsError):
    """An application of that name is there already, with another definition."""


class SubscriberExists(TidingsError):
    """A subscriber of that id is running already."""


class PublisherExists(TidingsError):
    """A publisher of that name is running already."""


class FlowOwned(TidingsError):
    """A flow is owned by a publisher, and what was asked for is for flows that nobody owns."""


class PlanOutdated(TidingsError):
    """What a plan was made from has changed since: it must be made again."""


class DeliveryFailed(TidingsError):
    """A subscriber could not be sent what was due."""


class LogUnavailable(TidingsError):
    """A stream's log cannot be read or written: it is missing, not permitted, full or damaged.

    Much of that is told by libraries and servers; whatever form they give it, the message is one sentence.
    """

    def __init__(self, message: str) -> None:
        super().__init__(sentence(message))


class LogMismatch(TidingsError):
    """The place named as a log holds something else: another stream, or data that is not ours."""


class PositionsLost(TidingsError):
    """A reader asks for positions that the log does not hold any more.

    `lost` says exactly what cannot be had: for each shard, the first and the last missing position. `reason` says why,
    if it is for another reason than that the log does not go back so far.
    """

    def __init__(self, message: str, lost: dict[int, tuple[Position, Position]], reason: str = "") -> None:
        super().__init__(message)
        self.lost = lost
        self.reason = reason


class LogRestored(PositionsLost):
    """A reader stands after the end of the log, or in another one: it was made anew, or restored from an older copy."""


class ProducerClosed(TidingsError):
    """The producer was closed; what was accepted before that is durable or has failed."""


class BufferFull(TidingsError):
    """The producer's buffer stayed full for longer than the caller wanted to wait."""


class CoordinationUnavailable(TidingsError):
    """ZooKeeper does not answer."""


class CoordinationDenied(TidingsError):
    """ZooKeeper refuses an operation for want of rights."""


class ForeignValue(TidingsError):
    """ZooKeeper holds something in the cluster's tree that was not put there by tidings."""


class JavaMissing(TidingsError):
    """There is no Java, or one that is too old."""


class JarsUnavailable(TidingsError):
    """The jars could not be had, or are not the ones that were pinned."""


class EmbeddedFailed(TidingsError):
    """The embedded ZooKeeper did not start, or its folder is in use."""


class ProjectRuns(TidingsError):
    """Another process runs all of this project; the message says which."""


class PluginMissing(TidingsError):
    """A plugin or connector is not installed; the message says what would install it."""


class PluginBroken(TidingsError):
    """A plugin or connector is installed, but importing it fails."""


class PipelineHeld(TidingsError):
    """Another process runs the pipeline; the message says which."""


class PipelineFailed(TidingsError):
    """A pipeline ended before its time; the message says why."""
