"""How much a log is to hold, as its table says it: so all who write it go by the newest definition of the stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tidings.stream_definition import StreamDefinition

PROPERTY = "tidings.retention"


class Retention(NamedTuple):
    """The age in seconds, and the bytes, beyond which updates are let go of; None for no limit."""

    seconds: int | None
    bytes: int | None

    @classmethod
    def of(cls, stream: StreamDefinition) -> Retention:
        """What the definition of a stream says."""
        return cls(stream.retention_seconds, stream.retention_bytes)

    @classmethod
    def read(cls, configuration: Mapping[str, str | None]) -> Retention | None:
        """What the configuration of a table says; None if nothing.

        >>> Retention.read(Retention(3600, None).properties())
        Retention(seconds=3600, bytes=None)
        """
        text = configuration.get(PROPERTY)
        return cls(**json.loads(text)) if text else None

    def properties(self) -> dict[str, str]:
        """As it stands in the configuration of a table."""
        return {PROPERTY: json.dumps(self._asdict())}
