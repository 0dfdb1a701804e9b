"""A check that never fails proves nothing: each invariant is broken here on purpose."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.support import invariants

PUBLISHED = pa.table(
    {
        "shard": [0] * 6,
        "seq": range(6),
        "object": [f"o-{n}" for n in range(6)],
        "version": range(6),
        "attributes": pa.nulls(6, pa.map_(pa.string(), pa.string())),
    }
)


def batch(time: float, *seqs: int, epoch: int = 1, until: float | None = None) -> list[str]:
    rows = [f"row {time} {epoch} 0 {seq} o-{seq} {seq}" for seq in seqs]
    return [*rows, f"end {time if until is None else until} {epoch} 0"]


def check(folder: Path, **recorders: list[str]) -> None:
    for id, lines in recorders.items():
        (folder / f"{id}.record").write_text("".join(f"{line}\n" for line in lines))
    invariants.check(invariants.read(folder / f"{id}.record" for id in recorders), PUBLISHED)


def test_a_flow_that_moves_and_repeats_after_an_acknowledged_position_is_in_order(tmp_path: Path) -> None:
    first = ["notice 1 0", *batch(2, 0, 1), "token 3 1 0 1", *batch(4, 2, 3)]
    check(tmp_path, r1=first, r2=["notice 5 0", *batch(6, 2, 3, epoch=2), *batch(7, 4, 5, epoch=2)])


def test_a_loss_that_was_told_is_no_hole(tmp_path: Path) -> None:
    check(tmp_path, r1=["notice 1 0", *batch(2, 0, 1), "loss 3 0 2 3", *batch(4, 4, 5)])


@pytest.mark.parametrize(
    ("broken", "r1", "r2"),
    [
        ("S: 0/2 was never", ["notice 1 0", *batch(2, 0, 1), "row 3 1 0 2 o-9 9"], []),
        ("D: 1 of shard 0", ["notice 1 0", *batch(2, 0, 1, 2, 3, 4)], []),
        ("O: .* has 3 after 1", ["notice 1 0", *batch(2, 0, 1, 3, 2, 4, 5)], []),
        ("O: .* has 1 after 1", ["notice 1 0", *batch(2, 0, 1), *batch(3, 1, 2, 3, 4, 5)], []),
        ("O: .* without a notice", batch(2, 0, 1, 2, 3, 4, 5), []),
        ("O: .* follows no ack", ["notice 1 0", *batch(2, 0, 1, 2)], ["notice 3 0", *batch(4, 1, 2, 3, 4, 5)]),
        ("O: .* acknowledges 3", ["notice 1 0", *batch(2, 0, 1), "token 3 1 0 3", *batch(4, 2, 3, 4, 5)], []),
        (
            "O: .* loses 3 to 3",
            ["notice 1 0", *batch(2, 0, 1), "loss 3 0 3 3", *batch(4, 4, 5)],
            ["notice 9 0", *batch(10, 0, 1, 2)],
        ),
        ("F: .* epoch 1 after 2", ["notice 1 0", *batch(2, 0, 1, 2, epoch=2), *batch(3, 3, 4, 5, epoch=1)], []),
        (
            "F: .* at once",
            ["notice 1 0", *batch(2, 0, 1, 2, until=9)],
            ["notice 3 0", *batch(4, 0, 1, 2, 3, 4, 5, epoch=2)],
        ),
    ],
)
def test_what_breaks_an_invariant_is_found(tmp_path: Path, broken: str, r1: list[str], r2: list[str]) -> None:
    with pytest.raises(AssertionError, match=broken):
        check(tmp_path, r1=r1, r2=r2)
