"""Moving a stream's log to another address, once it is proven that the same datastore is there.

Publishers follow the definition: they open the log at its new address, and flows go on at their datamarkers. These mean
something in one datastore alone, so an address at which another one is, or an older copy, is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidings.coordination.origins import note_origin, read_farthest, read_origin
from tidings.errors import LogMismatch, LogUnavailable, TidingsError
from tidings.flows import Flow
from tidings.log_checks import can_prove, check_claims, origin_of, prove_log
from tidings.log_opening import is_tailed, open_log
from tidings.logs import TailedLog, WritableLog
from tidings.positions import Position, Positions
from tidings.publisher.reports import read_datamarkers
from tidings.stream_definition import StreamDefinition, split_address, streams_by_name

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue


def moved_logs(known: StreamDefinition, wanted: StreamDefinition) -> list[str | None]:
    """The replicas that are new or whose address is another one, None for the log itself.

    A replica at an address that the stream has already is where it was known to be.
    """
    there = {known.log, *known.replicas.values()}
    moved = [name for name, log in wanted.replicas.items() if log not in there]
    return [*([None] if wanted.log != known.log else []), *moved]


def check_move(cluster: Catalogue, known: StreamDefinition, wanted: StreamDefinition, replica: str | None) -> list[str]:
    """Raise unless the stream's datastore is at the address that is wanted of it, or of a replica.

    What is returned is what an operator should know before it is done.
    """
    there = wanted.at(replica)
    check_claims(wanted, (stream.definition for stream in cluster.streams()))
    if split_address(there.log)[0] != split_address(known.log)[0]:
        raise LogMismatch(f"the log of stream {known.name!r} is {known.log}, and no other kind of log is the same one")
    if replica is not None and replica not in known.replicas and not can_prove(there):
        return []  # nor could one that was there when the stream was made
    stands = _stands(cluster, known)
    farthest = dict(read_farthest(cluster.coordination, known))
    for flow, at in stands.items():
        farthest[flow.shard] = max(at, farthest.get(flow.shard, at))
    prove_log(there, _origin(cluster, known), Positions(farthest))
    if replica is not None:
        return []  # whoever reads it waits until it is as far
    with contextlib.closing(open_log(there)) as log:
        bounds = log.bounds()
        if isinstance(log, WritableLog):
            _check_not_copied(known, log)
        # Who waits for a snapshot of its own, or reads one, comes to the log where that is.
        waiting = {flow for flow, at in stands.items() if isinstance(log, TailedLog) and log.aside(at)}
    for shard, at in farthest.items():
        if at > bounds[shard].head:
            raise LogMismatch(
                f"shard {shard} of stream {known.name!r} was read up to {at}, and the log in {there.log} ends at "
                f"{bounds[shard].head}: wait until it is as far; if it is an older copy, make a new stream"
            )
    behind = [flow for flow, at in stands.items() if at < bounds[flow.shard].floor and flow not in waiting]
    told = f"the log in {there.log} begins after the datamarkers of {len(behind)} flows, which will hear on_data_loss"
    return [told] if behind else []


def prepare_move(cluster: Catalogue, known: StreamDefinition, wanted: StreamDefinition) -> None:
    """Look once more, and note that the datastore is at its new addresses, before anybody is told of them."""
    for replica in moved_logs(known, wanted):
        check_move(cluster, known, wanted, replica)
    read = read_farthest(cluster.coordination, known)
    note_origin(cluster.coordination, _origin(cluster, known), known, wanted, read=read)


def _origin(cluster: Catalogue, known: StreamDefinition) -> Mapping[str, Any]:
    """What the datastore is known by: from what was noted, or from the datastore, if it is still where it was."""
    noted = read_origin(cluster.coordination, known)
    if noted is not None:
        return noted
    with contextlib.suppress(TidingsError), contextlib.closing(open_log(known)) as log:
        if (found := origin_of(log)) is not None:
            return found
    raise LogUnavailable(
        f"nothing is known yet of the datastore of stream {known.name!r}, and {known.log} does not tell: let a "
        "publisher read some updates there first; if it is gone, make a new stream"
    )


def _stands(cluster: Catalogue, stream: StreamDefinition) -> dict[Flow, Position]:
    """Where the flows of a stream stand, whoever owns them."""
    by_name = streams_by_name([stream])
    flows = [
        Flow(application.name, stream.name, shard)
        for application in cluster.applications()
        if application.reads(by_name)
        for shard in range(stream.shards)
    ]
    markers = read_datamarkers(cluster.coordination, flows).items()
    # Who stood in a stream that had this name before begins anew.
    here = (None, stream.id) if is_tailed(stream) else None
    return {flow: marker.position for flow, marker in markers if here is None or marker.log in here}


def _check_not_copied(known: StreamDefinition, log: WritableLog) -> None:
    """Raise if a log of ours is still at its old address, too: producers that run would go on writing there."""
    try:
        before = open_log(known)
    except (LogUnavailable, LogMismatch):
        return
    with contextlib.closing(before):
        if isinstance(before, WritableLog) and before.staging.resolve() != log.staging.resolve():
            raise LogMismatch(
                f"stream {known.name!r} is still in {known.log}, too, where producers would go on writing: move it "
                "while none runs, and do not copy it"
            )
