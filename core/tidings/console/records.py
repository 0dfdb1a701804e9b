"""The record browser: updates of a stream, a page at a time, as far as a filter wants them.

A page has so many updates, bytes and seconds at most. Where it ends for want of time, `next` says where to go on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidings.console.guard import json_text
from tidings.console.payloads import SHOWN_BYTES, payload_json
from tidings.console.queries import moment_text
from tidings.errors import InvalidOption, PositionsLost
from tidings.filters import EVERYTHING, Filter, parse
from tidings.log_opening import containing_errors, open_log, payload_form
from tidings.log_reading import ends
from tidings.logs import Log, PayloadForm, WritableLog
from tidings.positions import Bounds, Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.updates import Update, to_updates

MAX_LIMIT = 500
READ_ROWS = 1000
MAX_READ_BYTES = 64 * 2**20  # that a page may cost
MAX_PAGE_BYTES = 2 * 2**20
MAX_ATTRIBUTES_SHOWN = 100
EARLIEST = "earliest"


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """What is asked for. Without a shard, of all; `after` is None for the newest."""

    shard: int | None
    after: Positions | str | None
    filter: Filter
    limit: int

    @classmethod
    def parse(cls, stream: StreamDefinition, asked: Mapping[str, str]) -> RecordQuery:
        """The query in a request; an error of ours if it makes no sense."""
        shard = None
        if text := asked.get("shard"):
            if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < stream.shards):
                raise InvalidOption(f"stream {stream.name!r} has shards 0 to {stream.shards - 1}, not {text[:20]!r}")
            shard = int(text)
        limit = asked.get("limit") or "50"
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= MAX_LIMIT):
            raise InvalidOption(f"limit is from 1 to {MAX_LIMIT}, not {limit[:20]!r}")
        wanted = asked.get("filter", "").strip()
        return cls(
            shard, _after(asked.get("after", "").strip(), shard), parse(wanted) if wanted else EVERYTHING, int(limit)
        )


def _after(text: str, shard: int | None) -> Positions | str | None:
    """A position of the shard, as in 7, 7.2 or [7, 2], or of several, as in {"0": 7}."""
    if text in ("", EARLIEST):
        return text or None
    try:
        value = json.loads(text) if text[0] in "[{" else [int(part) for part in text.split(".", 1)]
    except (ValueError, RecursionError):
        raise InvalidOption(f"{text[:40]!r} is no position: write 7, or 7.2") from None
    if isinstance(value, dict):
        return Positions.from_json(value)
    if shard is None:
        raise InvalidOption("a position is of one shard: name it, too")
    return Positions({shard: Position.from_json(value[0] if len(value) == 1 else value)})


def read_page(stream: StreamDefinition, query: RecordQuery, budget_s: float) -> dict[str, Any]:
    """The updates that are asked for."""
    with containing_errors(stream.name), contextlib.closing(open_log(stream)) as log:
        return _read(log, query, payload_form(stream), time.monotonic() + budget_s)


def newest_times(stream: StreamDefinition, shards: int) -> dict[int, str]:
    """When the newest update of each shard was committed, of the first so many shards; only logs of ours tell it."""
    with containing_errors(stream.name), contextlib.closing(open_log(stream)) as log:
        if not isinstance(log, WritableLog):
            return {}
        bounds = log.bounds()
        wanted = [shard for shard, held in sorted(bounds.items()) if not held.empty][:shards]
        before = {shard: max(bounds[shard].floor, Position(bounds[shard].head.seq - 1)) for shard in wanted}
        rows = log.tail(Positions({**{shard: held.head for shard, held in bounds.items()}, **before}), len(wanted))
        found = zip(rows["shard"].to_pylist(), rows["time"].to_pylist(), strict=True)
        return {shard: moment_text(time) for shard, time in found if time is not None}


def _read(log: Log, query: RecordQuery, form: PayloadForm | None, deadline: float) -> dict[str, Any]:
    bounds, problems = log.bounds(), list[str]()
    wanted = bounds.keys() if query.shard is None else {query.shard} & bounds.keys()
    at = {shard: held.head for shard, held in bounds.items()}  # shards that are not wanted are not read
    at |= {shard: _begin(log, query, bounds[shard], shard, len(wanted)) for shard in wanted}
    items: list[dict[str, Any]] = []
    shown = cost = 0
    while len(items) < query.limit and any(at[shard] < bounds[shard].head for shard in wanted):
        if time.monotonic() > deadline or cost > MAX_READ_BYTES or shown > MAX_PAGE_BYTES:
            problems.append("the page ends here, since it took long or is large; there is more")
            break
        try:
            rows = log.tail(Positions(at), READ_ROWS)
        except PositionsLost as error:
            problems.append(str(error))
            at |= {shard: last for shard, (_, last) in error.lost.items() if shard in at and at[shard] < last}
            if isinstance(log, WritableLog) and not error.reason:
                continue
            break
        if not len(rows):
            break
        cost += rows.nbytes
        found, whole = _matching(rows, query.filter, query.limit - len(items))
        for number, one in enumerate(found):
            if items and (shown > MAX_PAGE_BYTES or time.monotonic() > deadline):
                found, whole = found[:number], False
                break
            items.append(record_json(one, form))
            shown += len(json_text(items[-1]))
        if whole or found:
            at |= ends(rows) if whole else ends(rows.slice(0, _upto(rows, found[-1])))
    more = any(at[shard] < bounds[shard].head for shard in wanted)
    after = Positions({shard: at[shard] for shard in wanted}).to_json()
    following = after.get(str(query.shard)) if query.shard is not None else after
    return {"items": items, "next": following if more else None, "partial": bool(problems), "problems": problems}


def _begin(log: Log, query: RecordQuery, held: Bounds, shard: int, shards: int) -> Position:
    if isinstance(query.after, Positions):
        named = query.after.get(shard, held.floor)
        return min(max(named, held.floor), held.head)
    if query.after == EARLIEST or not isinstance(log, WritableLog):
        return held.floor
    each = max(1, query.limit // max(1, shards))  # the newest: positions in logs of ours are dense
    return max(held.floor, Position(held.head.seq - each))


def _matching(rows: pa.Table, wanted: Filter, limit: int) -> tuple[list[Update], bool]:
    """The rows that are wanted, and whether all were looked at."""
    chosen = rows if wanted is EVERYTHING else rows.filter(wanted.mask(rows))
    return to_updates(chosen.slice(0, limit)), len(chosen) <= limit


def _upto(rows: pa.Table, last: Update) -> int:
    """How many rows there are up to this one."""
    shards, seqs, indexes = (rows[name].to_numpy() for name in ("shard", "seq", "index"))
    return int(((shards == last.shard) & (seqs == last.seq) & (indexes == last.index)).argmax()) + 1


def record_json(update: Update, form: PayloadForm | None = None) -> dict[str, Any]:
    """An update as pages show it; `form` is how payloads of its stream are decoded, if it tells."""
    attributes = list((update.attributes or {}).items())[:MAX_ATTRIBUTES_SHOWN]
    return {
        "shard": update.shard,
        "seq": update.seq,
        "index": update.index,
        "object": update.object,
        "version": update.version,
        "kind": update.kind,
        "range": update.range,
        "source": update.source,
        "attributes": {key[:SHOWN_BYTES]: value[:SHOWN_BYTES] for key, value in attributes},
        "time": None if update.time is None else moment_text(update.time),
        "size": None if update.payload is None else len(update.payload),
        "payload": None if update.payload is None else payload_json(update.payload, form),
    }
