"""The log of a stream, found by the scheme of its address: made, opened, taken back.

`delta:/data/contacts` is that of the entry point `delta` of the group `tidings.logs`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidings.errors import ENDING, LogRestored, LogUnavailable, PluginBroken, PluginMissing, TidingsError
from tidings.logs import Log, PayloadForm, RedefinableLog, WritableLog
from tidings.plugins import load
from tidings.positions import START, Position, Positions
from tidings.stream_definition import StreamDefinition, split_address

logger = logging.getLogger(__name__)


def resolve_log(address: str, folder: Path) -> str:
    """The address of a log as it is kept, whatever folder its readers work in.

    That of a log which cannot be loaded is left alone: whoever opens it is told.

    >>> resolve_log("delta:data/contacts", Path("/project"))
    'delta:/project/data/contacts'
    """
    scheme, location = split_address(address)
    try:
        kind: type[Log] = load("tidings.logs", scheme)
    except (PluginBroken, PluginMissing):
        return address
    return f"{scheme}:{kind.resolve(location, folder)}"


def resolve_path(location: str, folder: Path) -> str:
    """A path as `Log.resolve` returns it; what names a scheme of its own, as in `s3://…`, is left alone.

    >>> resolve_path("data/contacts", Path("/project")), resolve_path("s3://bucket/contacts", Path("/project"))
    ('/project/data/contacts', 's3://bucket/contacts')
    """
    return location if "://" in location else os.path.abspath(folder / Path(location).expanduser())


@contextlib.contextmanager
def containing_errors(stream: str) -> Iterator[None]:
    """Whatever a log raises becomes an error of ours: a log may be anybody's, and harms its own stream alone."""
    try:
        yield
    except (TidingsError, *ENDING):
        raise
    except BaseException as error:
        logger.exception("the log of stream %r failed", stream)
        raise LogUnavailable(f"the log of stream {stream!r} failed with {type(error).__name__}: {error}") from error


def identity_of(log: Log, stream: StreamDefinition) -> str | None:
    """Which log this is; None if that cannot be told, or if positions are those of replicas as well.

    A datastore's log is that of one stream: for one that was made anew it may be another datastore's.
    """
    if hasattr(log, "abandon"):  # asked often, and `isinstance` takes long
        return stream.id or None
    tell = None if stream.replicas else getattr(log, "identity", None)
    return None if tell is None else str(tell())


def check_identity(stream: str, known: str | None, found: str | None, stands: Positions) -> None:
    """Raise `LogRestored` if a reader that stands here got there in another log."""
    if known is not None and found is not None and known != found:
        raise LogRestored(
            f"the log of stream {stream!r} was deleted and made anew since it was last read: the positions of the "
            "reader are those of the old one, and mean other updates in this one",
            {shard: (Position(0), at) for shard, at in stands.items() if at.seq >= 0},
        )


def create_log(stream: StreamDefinition) -> Log:
    """Make the log of a new stream."""
    scheme, location = split_address(stream.log)
    log: Log = load("tidings.logs", scheme).create(location, stream)
    return log


def open_log(stream: StreamDefinition) -> Log:
    """Open the log of a stream that is there."""
    scheme, location = split_address(stream.log)
    log: Log = load("tidings.logs", scheme).open(location, stream)
    return log


def redefine_log(stream: StreamDefinition) -> None:
    """Let a log of ours know that its stream is defined like this now."""
    with contextlib.closing(open_log(stream)) as log:
        if isinstance(log, RedefinableLog):
            log.redefine(stream)


def is_tailed(stream: StreamDefinition) -> bool:
    """Whether the log of a stream is a datastore's own; it need not be there to be asked."""
    return hasattr(load("tidings.logs", split_address(stream.log)[0]), "abandon")


def placing(stream: StreamDefinition) -> Mapping[str, Any]:
    """The options that decide the object, the shard or the position of an update, by name; only some logs have any.

    As long as the stream lives they stay as they are; a mapping among them may get more keys.
    """
    scheme, location = split_address(stream.log)
    found: Mapping[str, Any] = getattr(load("tidings.logs", scheme), "placing", lambda *_: {})(location, stream)
    return found


def payload_form(stream: StreamDefinition) -> PayloadForm | None:
    """How the payloads of a stream are decoded, if its definition says so; only some logs have such options.

    The log need not be there to be asked.
    """
    scheme, location = split_address(stream.log)
    found: PayloadForm | None = getattr(load("tidings.logs", scheme), "payload_form", lambda *_: None)(location, stream)
    return found


def has_log(stream: StreamDefinition) -> bool:
    """Whether the log of a stream is there, and can be opened."""
    try:
        open_log(stream).close()
    except TidingsError:
        return False
    return True


def unmake_log(stream: StreamDefinition) -> None:
    """Take back what `create_log` has made for a stream."""
    scheme, location = split_address(stream.log)
    if is_tailed(stream):
        load("tidings.logs", scheme).abandon(location, stream)
        return
    with contextlib.closing(open_log(stream)) as log:
        empty = all(held.head == START for held in log.bounds().values())
        if isinstance(log, WritableLog) and empty:  # one that is not was there before, whatever was thought of it
            log.destroy()


def abandon_log(stream: StreamDefinition) -> None:
    """Let go of what datastores keep for a stream that is dropped, in all of its replicas."""
    for replica in (None, *stream.replicas):
        scheme, location = split_address(stream.at(replica).log)
        load("tidings.logs", scheme).abandon(location, stream.at(replica))
