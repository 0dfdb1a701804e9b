"""Allocation policies: which flows share a reader of the log.

A policy is a pure function of where the flows are. To read a part of the log for each flow apart costs reading it many
times; to read it once for all makes those in front wait for those behind. `make bench ONLY=caravans` shows both.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tidings.allocation_policies import Limits, Rider

REREAD_COST = 1.0  # of an update that is read once more, in updates that one application waits for
CARAVAN_COST = 50_000.0  # of a further caravan, in the same: for a gap that is soon closed none is worth while
MAX_POINTS = 128  # places that are told apart: flows nearer to each other than that ride together anyway


def one_per_flow(riders: Sequence[Rider], limits: Limits) -> list[list[Rider]]:
    """A caravan for each flow; if that is more than there may be, those that are nearest to each other share.

    >>> [len(group) for group in one_per_flow([Rider("a", 0), Rider("b", 9), Rider("c", 10)], Limits(caravans=2))]
    [2, 1]
    """
    ordered = sorted(riders, key=lambda rider: -rider.behind)
    return _split(ordered, _widest_gaps([rider.behind for rider in ordered], limits.caravans))


def gaps(riders: Sequence[Rider], limits: Limits) -> list[list[Rider]]:
    """Groups that cost least: what is read more than once, beside how long flows wait for those behind them.

    >>> near, far = [Rider(n, n) for n in range(5)], [Rider("far", 1_000_000)]
    >>> [[rider.flow for rider in group] for group in gaps(near + far, Limits())]
    [['far'], [4, 3, 2, 1, 0]]
    >>> [len(group) for group in gaps(near + far, Limits(caravans=1))]
    [6]

    An update is of one shard, so a flow waits for its share of what is read; more shards do not make more groups.

    >>> apart = [Rider((at, shard), at * 1_000_000, shard) for at in range(10) for shard in range(16)]
    >>> len(gaps(apart, Limits())) == len(gaps(apart[::16], Limits()))
    True
    """
    if not riders:
        return []
    ordered = sorted(riders, key=lambda rider: -rider.behind)
    behind = np.array([rider.behind for rider in ordered], float)
    share = 1 / len({rider.shard for rider in riders})
    waiting = float((behind[0] - behind).sum()) * share
    if limits.caravans == 1 or waiting <= CARAVAN_COST:
        return [ordered]
    points, counts = _points(behind)
    return _split(ordered, [int(at) for at in np.cumsum(counts)[_cheapest(points, counts * share, limits.caravans)]])


def _points(behind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where flows are, from the farthest behind to the nearest, and how many there are; so many places at most."""
    step = 1.0
    while True:
        places, counts = np.unique(np.floor(behind / step), return_counts=True)
        if len(places) <= MAX_POINTS:
            return places[::-1] * step, counts[::-1]
        step = max(2 * step, (behind[0] - behind[-1]) / MAX_POINTS)


def _cheapest(points: np.ndarray, weights: np.ndarray, most: int) -> list[int]:
    """After which points to cut, so that the whole costs least.

    A group that reaches from point i to point j costs its reader, what that reads on its way to the head, and what the
    flows in front wait for the rearmost.
    """
    total = len(points)
    before = np.concatenate([[0.0], np.cumsum(weights)])
    moment = np.concatenate([[0.0], np.cumsum(points * weights)])
    # cost[i, j]: of a group of the points i to j
    first, last = np.meshgrid(np.arange(total), np.arange(total), indexing="ij")
    waits = points[first] * (before[last + 1] - before[first]) - (moment[last + 1] - moment[first])
    cost = np.where(first <= last, CARAVAN_COST + REREAD_COST * points[first] + waits, np.inf)
    best, cuts = cost[0], [[-1] * total]
    totals = [float(best[-1])]
    for _ in range(1, min(most, total)):
        candidates = best[:-1, None] + cost[1:, :]  # the last group begins after point i
        chosen = np.argmin(candidates, axis=0)
        cuts.append(chosen.tolist())
        best = candidates[chosen, np.arange(total)]
        totals.append(float(best[-1]))
    groups, end, found = int(np.argmin(totals)), total - 1, []
    for number in range(groups, 0, -1):
        end = cuts[number][end]
        found.append(end)
    return found[::-1]


def _widest_gaps(behind: Sequence[int], most: int) -> list[int]:
    """Where to cut a sorted list into so many parts, at the widest gaps."""
    widths = [behind[at - 1] - behind[at] for at in range(1, len(behind))]
    widest = sorted(range(len(widths)), key=lambda at: -widths[at])[: most - 1]
    return sorted(at + 1 for at in widest)


def _split(ordered: list[Rider], cuts: Sequence[int]) -> list[list[Rider]]:
    ends = [0, *cuts, len(ordered)]
    return [ordered[start:end] for start, end in itertools.pairwise(ends) if start < end]
