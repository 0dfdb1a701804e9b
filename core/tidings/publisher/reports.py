"""What a publisher and its operators tell each other of caravans, and what datastores are told of datamarkers.

```
/<root>/caravans/<stream>               an operator's word: policy, limits, and how often to begin again
/<root>/caravans/<stream>/<publisher>   ephemeral: the caravans, how much was read and sent, why no more can be
```
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidings.allocation_policies import Limits
from tidings.coordination.origins import note_origin, read_farthest, read_origin
from tidings.coordination.values import decode
from tidings.coordination.zookeeper import Coordination
from tidings.datamarkers import Datamarker
from tidings.errors import (
    ENDING,
    CoordinationDenied,
    CoordinationUnavailable,
    ForeignValue,
    InvalidOption,
    LogUnavailable,
    TidingsError,
)
from tidings.flows import Flow
from tidings.logs import FollowedLog, MovableLog, TailedLog
from tidings.positions import Position, Positions
from tidings.publisher.pump import Pump
from tidings.retention import LogRetention, RetainedBy, retained_by

PLACE = "caravans"
REPORT_INTERVAL_S = 3.0

logger = logging.getLogger(__name__)


class Reporter:
    """Reports on the pumps of one publisher, and applies what operators want of them; in a thread of its own."""

    def __init__(
        self,
        coordination: Coordination,
        publisher: str,
        pumps: Mapping[str, Pump],
        flows: Callable[[], Iterable[Flow]],
        may_send: Callable[[], bool],
        snapshots: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._coordination = coordination
        self._publisher = publisher
        self._pumps = pumps
        self._flows = flows
        self._may_send = may_send
        self._snapshots = {} if snapshots is None else snapshots
        self._retention = LogRetention()
        self._applied: dict[Pump, dict[str, Any]] = {}
        self._origins: dict[Pump, tuple[Mapping[str, Any], Positions]] = {}
        self._troubles: dict[str, str] = {}
        self._reported: dict[str, tuple[Any, dict[str, Any]]] = {}  # with the session that has put it there
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidings-reports", daemon=True)
        self._thread.start()

    def apply_settings(self, pump: Pump) -> None:
        """Let a new pump go by what its stream and its operators say."""
        try:
            self._apply(pump.stream.name, pump)
        except Exception as error:  # noqa: BLE001 - the stream is read all the same
            self._log_once(pump.stream.name, error)

    def close(self) -> None:
        """Report no more."""
        self._closed.set()
        self._thread.join()
        if self._may_send():
            for stream, pump in self._pumps.items():
                with contextlib.suppress(Exception):  # it was noted a moment ago
                    self._note_origin(pump)
                try:
                    self._coordination.release(PLACE, stream, self._publisher)
                except TidingsError:
                    return  # it goes with the session

    def _run(self) -> None:
        while not self._closed.wait(REPORT_INTERVAL_S):
            for stream, pump in list(self._pumps.items()):
                if self._closed.is_set() or not self._may_send():
                    break
                try:
                    self._apply(stream, pump)
                    self._report(stream, pump)
                    self._confirm(stream, pump)
                    self._note_origin(pump)
                except ENDING:
                    raise
                except CoordinationUnavailable as error:  # of which its session tells
                    logger.debug("stream %r: %s", stream, error)
                except BaseException as error:  # noqa: BLE001 - it harms this stream alone
                    # That a datastore is away is told by who reads it.
                    if not isinstance(error, LogUnavailable) or (pump.trouble is None and stream in self._troubles):
                        self._log_once(stream, error)
                    self._troubles.setdefault(stream, "")
                else:
                    self._troubles.pop(stream, None)

    def _log_once(self, stream: str, error: BaseException) -> None:
        trouble = f"{type(error).__name__}: {error}"
        if self._troubles.get(stream) != trouble:
            ours = isinstance(error, TidingsError)
            logger.warning("stream %r: %s", stream, error if ours else trouble, exc_info=None if ours else error)
        self._troubles[stream] = trouble

    def _apply(self, stream: str, pump: Pump) -> None:
        override = self._coordination.read(PLACE, stream) or {}
        settings = {**pump.stream.caravans, **{key: value for key, value in override.items() if value is not None}}
        known, before = pump in self._applied, self._applied.get(pump, {})
        if known and settings == before:
            return
        self._applied = {known: override for known, override in self._applied.items() if known in self._pumps.values()}
        self._applied[pump] = settings
        try:
            pump.allocation.control(settings.get("policy"), Limits.from_json(settings))
        except (TidingsError, TypeError) as error:
            raise InvalidOption(f"the caravans of stream {stream!r} stay as they are: {error}") from None
        if known and settings.get("again") != before.get("again"):
            pump.allocation.reallocate()

    def _report(self, stream: str, pump: Pump) -> None:
        pump.look()  # which nobody else does for a stream whose flows all wait
        record: dict[str, Any] = {
            "caravans": [one.to_json() for one in pump.allocation.caravans()],
            "bytes_read": pump.bytes_read,
            "bytes_sent": pump.bytes_sent,
            "trouble": pump.trouble,
        }
        if pump.retained is not None:
            record["retained"] = pump.retained.to_json()
        if stream in self._snapshots:
            record["snapshot"] = self._snapshots[stream]
        session = self._coordination.client.client_id
        if self._reported.get(stream) == (session, record):
            return
        if self._coordination.claim(record, PLACE, stream, self._publisher, again=True):
            self._reported[stream] = (session, record)

    def _confirm(self, stream: str, pump: Pump) -> None:
        """Let a datastore forget what every flow has passed, whoever owns it."""
        if isinstance(pump.log, TailedLog):
            wanted = [flow for flow in self._flows() if flow.stream == stream]
            found = read_datamarkers(self._coordination, wanted)
            # Who stands in a log that was there before this one has passed nothing of it.
            markers = {flow: one for flow, one in found.items() if one.log in (None, pump.log_identity)}
            upto = passed({flow: markers.get(flow) for flow in wanted}, pump.stream.shards)
            heads = {shard: held.head for shard, held in pump.log.bounds().items()}
            # A marker beyond the end is of a time before the datastore was restored.
            if upto is not None and all(at <= heads[shard] for shard, at in upto.items()):
                if isinstance(pump.log, FollowedLog):
                    pump.log.followers_at([marker.position for marker in markers.values()])
                pump.log.confirm(upto)
            pump.retained = retained_by(pump.log, {flow: one.position for flow, one in markers.items()})
            self._retention.watch(stream, pump.retained)

    def _note_origin(self, pump: Pump) -> None:
        """Note what the datastore is known by, again and again: its history goes on, and it may be gone one day."""
        if not isinstance(pump.log, MovableLog) or pump.stream.log in pump.stream.replicas.values():
            return
        # What the datastore does not tell now, it has told before.
        noted = read_origin(self._coordination, pump.stream) or {}
        now = {**noted, **(pump.log.origin() or {})}, self._farthest(pump)
        if now[0] and now != self._origins.get(pump):
            note_origin(self._coordination, now[0], pump.stream, read=now[1])
            self._origins = {known: one for known, one in self._origins.items() if known in self._pumps.values()}
            self._origins[pump] = now

    def _farthest(self, pump: Pump) -> Positions:
        """Where the flows are that are the farthest, those of other publishers too.

        What is beyond the end of the log was undone by one that was restored.
        """
        heads = {shard: held.head for shard, held in pump.log.bounds().items()}
        found = {
            shard: at for shard, at in read_farthest(self._coordination, pump.stream).items() if at <= heads[shard]
        }
        for one in (one for one in pump.sessions() if one.log_identity == pump.log_identity):
            found[one.shard] = max(one.sent, found.get(one.shard, one.sent))
        return Positions({shard: at for shard, at in found.items() if at.seq >= 0})


def read_reports(tree: Coordination, stream: str) -> dict[str, dict[str, Any]]:
    """What publishers say of a stream, by their names; what makes no sense is left out."""
    found: dict[str, dict[str, Any]] = {}
    for name in tree.children(PLACE, stream):
        with contextlib.suppress(ForeignValue):
            found[name] = tree.read(PLACE, stream, name) or {}
    return found


def troubles_in(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Why publishers could not read the log of a stream, by their names; those that can are left out."""
    return {name: told for name, one in reports.items() if isinstance(told := one.get("trouble"), str)}


def retained_in(reports: Mapping[str, Mapping[str, Any]]) -> RetainedBy | None:
    """What a stream's datastore keeps for its sake, by these reports; of several, the most."""
    read = [RetainedBy.from_json(told) for one in reports.values() if isinstance(told := one.get("retained"), dict)]
    return max((one for one in read if one is not None), key=lambda one: one.bytes, default=None)


def read_unreadable(tree: Coordination) -> dict[str, dict[str, str]]:
    """Why publishers cannot open the logs of streams at all: by stream, and by their names."""
    found: dict[str, dict[str, str]] = {}
    for name in tree.children("publishers"):
        with contextlib.suppress(ForeignValue):
            streams = (tree.read("publishers", name) or {}).get("unreadable")
            for stream, reason in streams.items() if isinstance(streams, dict) else ():
                found.setdefault(str(stream), {})[name] = str(reason)
    return found


def read_datamarkers(tree: Coordination, flows: Iterable[Flow]) -> dict[Flow, Datamarker]:
    """The datamarkers of the flows that have one, asked for all at once."""
    places = {flow: (*flow.place, "datamarker") for flow in flows}
    markers = {}
    for (flow, place), found in zip(places.items(), tree.read_many(list(places.values())), strict=True):
        if isinstance(found, CoordinationDenied):
            raise found
        value = decode(tree.path(*place), found.raw) if found is not None else None
        if value:
            markers[flow] = Datamarker.from_json(value)
    return markers


def passed(markers: Mapping[Flow, Datamarker | None], shards: int) -> Positions | None:
    """The positions that every flow has passed; None if that cannot be settings of each shard.

    >>> from tidings.datamarkers import Datamarker
    >>> known = {Flow(app, "s", 0): Datamarker(Position(seq), 1, None) for app, seq in (("a", 7), ("b", 9))}
    >>> passed(known, 1)
    Positions({"0": 7})
    >>> passed({**known, Flow("c", "s", 0): None}, 1) is None
    True
    """
    found: dict[int, Position] = {}
    for flow, marker in markers.items():
        if marker is None:
            return None
        found[flow.shard] = min(found.get(flow.shard, marker.position), marker.position)
    return Positions(found) if len(found) == shards else None
