"""How many updates are left of a stream that keeps the latest of each key, on the workloads of Sprinkler's paper.

Each update is of a key, which is picked by its rank: the k-th most popular key has the weight k^-skew.

- Zeta with new keys: between two new keys lie so many updates of others as a Poisson distribution says, 10 on average.
  A new key takes a rank by a Zeta distribution of the same skew, and those behind it move back by one.
- Zeta, infinite set: all keys are there from the beginning, without end; so a key is new when it is first updated.
- Zipf, fixed: 100,000 keys. Zipf with new keys: the same, and one new key to ten updates of others.

The updates are published into a stream, and collected each time that there are ten times as many. What is left must be
one update a key. `bench/results/gc-savings.svg` is figure 10 of the paper, drawn from this run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.log_log_plot import Line, Panel, draw
from bench.report import Row
from tidings.stream_definition import StreamDefinition
from tidings.updates import from_rows
from tidings_connectors.delta.log import DeltaLog
from tidings_gc_tombstones.collector import Collector

SKEWS = (1.1, 1.3, 1.5, 2.0)
SIZES = (1_000, 10_000, 100_000, 1_000_000)
KEYS = 100_000  # of the finite set
UPDATES_PER_KEY = 10  # between two new keys: Sprinkler's λ, and its ratio for the finite set
APPEND_ROWS = 100_000
PICTURE = Path(__file__).parent / "results" / "gc-savings.svg"
CAPTION = (
    "The paper has 'roughly three-fourths' for Zeta, and 'roughly 85 %' for Zipf at skew 1.1, and does not say after "
    "how many events. Where a key comes with an event of its own, one update of each new key is left: 1 of 11, "
    "whatever the skew. The paper's 3/4 would be 3 updates to a new key; it does not say how many there were to its "
    "λ = 10. In an infinite set, what is left of n updates grows as n^(1/skew): skew 1.1 saves 3/4 only at some 40 "
    "million. In a fixed set it stops growing: skew 1.1 saves 85 % at some 150,000 updates, and more later. New keys "
    "'make little difference' in the paper; here each leaves an update, so they do where little else is left."
)

Integers = npt.NDArray[np.int64]
Generator = Callable[[np.random.Generator, float, int], Integers]


def zeta_with_new_keys(rng: np.random.Generator, skew: float, count: int) -> Integers:
    """One key at the beginning; the time between two new keys is Poisson distributed."""
    gaps = rng.poisson(UPDATES_PER_KEY, count // UPDATES_PER_KEY * 2 + 10) + 1
    return growing_set(rng, skew, count, 1, np.cumsum(gaps))


def zeta_infinite(rng: np.random.Generator, skew: float, count: int) -> Integers:
    """Keys by a Zeta distribution over an infinite set."""
    return rng.zipf(skew, count).astype(np.int64)


def zipf_fixed(rng: np.random.Generator, skew: float, count: int) -> Integers:
    """Keys by a Zipf distribution over a finite set."""
    return ranks(rng, skew, np.full(count, KEYS))


def zipf_with_new_keys(rng: np.random.Generator, skew: float, count: int) -> Integers:
    """The same, and one new key after each ten updates of others."""
    return growing_set(rng, skew, count, KEYS, np.arange(UPDATES_PER_KEY, count, UPDATES_PER_KEY + 1))


def ranks(rng: np.random.Generator, skew: float, keys: Integers) -> Integers:
    """A rank from 0 on for each update, by a Zipf distribution over as many keys as there are at the time."""
    weights = np.cumsum(np.arange(1, keys.max() + 1, dtype=np.float64) ** -skew)
    return np.searchsorted(weights, rng.random(len(keys)) * weights[keys - 1], "right")


def growing_set(rng: np.random.Generator, skew: float, count: int, at_first: int, new_at: Integers) -> Integers:
    """Updates of a set of keys to which one is added at these places, at a rank of its own."""
    is_new = np.zeros(count, np.bool_)
    is_new[new_at[new_at < count]] = True
    keys = at_first + np.cumsum(is_new)
    picked = np.where(is_new, rng.zipf(skew, count) - 1, ranks(rng, skew, keys))
    by_rank, updated = list(range(at_first)), []
    for rank, new in zip(picked.tolist(), is_new.tolist(), strict=True):
        if new:  # one beyond the last rank is the last
            by_rank.insert(rank, len(by_rank))
        updated.append(by_rank[min(rank, len(by_rank) - 1)])
    return np.array(updated, np.int64)


def left(keys: Integers, sizes: tuple[int, ...]) -> list[int]:
    """How many updates are left, of so many, after a collection at each size."""
    stored, at = [], 0
    with tempfile.TemporaryDirectory() as folder:
        stream = StreamDefinition("bench", 16, f"delta:{folder}/log", collect={"latest_per_key": True})
        log = DeltaLog.create(f"{folder}/log", stream)
        with Collector(stream, log) as collector:
            for size in sizes:
                for start in range(at, size, APPEND_ROWS):
                    log.append(updates(keys[start : min(size, start + APPEND_ROWS)]))
                at = size
                for _ in collector.run():
                    pass
                stored.append(log.sizes().updates)
                assert stored[-1] == len(np.unique(keys[:size])), "what is left is not one update a key"
        log.close()
    return stored


_ONE = from_rows([{"object": "key"}])


def updates(keys: Integers) -> pa.Table:
    """An update for each key, without a payload."""
    names = pa.array(keys).cast(pa.string())
    columns = {"object": names, "version": pa.array(np.arange(len(keys)))}
    return pa.table([columns.get(field.name, _repeated(field, len(keys))) for field in _ONE.schema], schema=_ONE.schema)


def _repeated(field: pa.Field, count: int) -> pa.Array:
    return pa.repeat(_ONE[field.name][0], count)


def run(quick: bool) -> list[Row]:
    sizes = SIZES[:3] if quick else SIZES
    models: dict[str, tuple[Generator, float]] = {
        "Zeta, new keys": (zeta_with_new_keys, 75.0),
        "Zeta, infinite set": (zeta_infinite, 75.0),
        "Zipf, fixed": (zipf_fixed, 85.0),
        "Zipf, new keys": (zipf_with_new_keys, 85.0),
    }
    stored: dict[tuple[str, float], list[int]] = {}
    for name, (generate, _) in models.items():
        for skew in SKEWS:
            stored[name, skew] = left(generate(np.random.default_rng(11), skew, sizes[-1]), sizes)
    draw_figure(stored, sizes)
    rows = []
    for (name, skew), counts in stored.items():
        for size, count in zip(sizes, counts, strict=True):
            rows.append(Row(f"{name}, skew {skew}: left of {size:,}", count, "updates"))
        saved = 100 * (1 - counts[-1] / sizes[-1])
        if name == "Zeta, new keys" or skew == SKEWS[0]:
            figure, paper = "10a" if name.startswith("Zeta") else "10b", models[name][1]
            rows.append(
                Row(f"{name}, skew {skew}: saved", saved, "%", f"Sprinkler, figure {figure}", paper, saved / paper)
            )
        else:
            rows.append(Row(f"{name}, skew {skew}: saved", saved, "%"))
    return rows


def draw_figure(stored: dict[tuple[str, float], list[int]], sizes: tuple[int, ...]) -> None:
    """Figure 10 of the paper: on the left what is generated by Zeta, on the right by Zipf."""
    panels = []
    for family in ("Zeta", "Zipf"):
        lines = [Line("generated", list(sizes), list(sizes), "4 3")]
        for (name, skew), counts in stored.items():
            if name.startswith(family):
                dashes = "" if name in ("Zeta, new keys", "Zipf, fixed") else "1 3"
                lines.append(Line(f"{name.split(', ')[1]}, {skew}", list(sizes), counts, dashes))
        panels.append(Panel(f"{family}: updates left, by updates generated", lines))
    draw(PICTURE, panels)
