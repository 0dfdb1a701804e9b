"""What operators say of flows and publishers, and publishers go by.

```
/<root>/drains/<publisher>                       gives its flows away, and takes none, until this is gone
/<root>/flows/<app>/<stream>/<shard>/control     `pin`: the publisher that is to own the flow, while it runs;
                                                 `stopped`: nobody is to own it
```
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tidings.errors import InvalidOption
from tidings.flow_status import read_records
from tidings.flows import CONTROL, DRAINS, Flow

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue


def owned_flows(cluster: Catalogue) -> Counter[str]:
    """How many flows each publisher owns."""
    return Counter(str(record.owner.get("publisher")) for record in read_records(cluster).values() if record.owner)


def drain(cluster: Catalogue, publisher: str, *, force: bool = False) -> None:
    """Have a publisher give its flows to the others, each at a token, and take none, until `undrain`.

    `InvalidOption` if there is no other to take them, unless that is meant.
    """
    tree = cluster.coordination
    _check_runs(cluster, publisher)
    others = set(tree.children("publishers")) - {publisher} - set(tree.children(DRAINS))
    if not others and not force:
        raise InvalidOption(f"no other publisher runs that could take the flows of {publisher!r}: start one first")
    tree.create({}, DRAINS, publisher)


def undrain(cluster: Catalogue, publisher: str) -> None:
    """Let a publisher take flows again."""
    if not cluster.coordination.delete(DRAINS, publisher):
        raise InvalidOption(f"publisher {publisher!r} does not drain")


def pin(cluster: Catalogue, flow: Flow, publisher: str) -> None:
    """Have this publisher own a flow, for as long as it runs and can read the stream."""
    _check_runs(cluster, publisher)
    chosen = (cluster.coordination.read("publishers", publisher) or {}).get("streams")
    family = cluster.stream(flow.stream).definition.family
    if chosen is not None and not {flow.stream, family} & set(chosen):
        raise InvalidOption(f"publisher {publisher!r} does not read stream {flow.stream!r}")
    _say(cluster, flow, pin=publisher)


def unpin(cluster: Catalogue, flow: Flow) -> bool:
    """Let publishers share out a flow again; False if it was not pinned."""
    return _say(cluster, flow, pin=None)


def stop(cluster: Catalogue, flow: Flow) -> bool:
    """Have nobody own a flow: nothing is sent, and its datamarker stays; False if it was stopped already."""
    return _say(cluster, flow, stopped=True)


def resume(cluster: Catalogue, flow: Flow) -> bool:
    """Have a flow that was stopped go on at its datamarker; False if it was not stopped."""
    return _say(cluster, flow, stopped=None)


def pinned_to(cluster: Catalogue, flow: Flow) -> str | None:
    """The publisher that is to own a flow, by an operator's word."""
    found = (cluster.coordination.read(*flow.place, CONTROL) or {}).get("pin")
    return found if isinstance(found, str) else None


def _say(cluster: Catalogue, flow: Flow, **changes: Any) -> bool:
    """Change what is said of a flow, beside others who do; None takes a word back. False if nothing was to change."""
    tree, place = cluster.coordination, (*flow.place, CONTROL)
    while True:
        before = tree.read(*place)
        known = before or {}
        after = {key: value for key, value in {**known, **changes}.items() if value is not None}
        if after == known:
            return False
        if (before is None and tree.create(after, *place)) or tree.replace(after, before, *place):
            return True


def _check_runs(cluster: Catalogue, publisher: str) -> None:
    there = cluster.coordination.children("publishers")
    if publisher not in there:
        raise InvalidOption(f"no publisher {publisher!r} runs (publishers: {', '.join(there) or 'none'})")
