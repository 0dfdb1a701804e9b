from __future__ import annotations

import fcntl
import multiprocessing
import pickle
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import InvalidOption, LogUnavailable
from tidings.storage import sorted_run_file, sorted_runs
from tidings.storage.sorted_runs import RunReader, Runs, plan_merge
from tidings.testing import eventually

SCHEMA = pa.schema([("key", pa.int64()), ("client", pa.int64()), ("number", pa.int64()), ("name", pa.string())])

Row = tuple[int, int, int]
Model = dict[tuple[int, int], tuple[int, str]]


def opened(folder: Path, **options: Any) -> Runs:
    return Runs(folder, SCHEMA, **{"key": "key", "identity": ["client"], "order": "number", "parts": 3, **options})


def table(rows: list[Row], tag: str = "") -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    return pa.table([*columns, [f"{tag}.{at}" for at in range(len(rows))]], SCHEMA)


def told(rows: pa.Table) -> Model:
    found = {(row["key"], row["client"]): (row["number"], row["name"]) for row in rows.to_pylist()}
    assert len(found) == len(rows), "one row a key and identity"
    return found


def note_all(model: Model, rows: pa.Table) -> None:
    for row in rows.to_pylist():
        at = (row["key"], row["client"])
        if at not in model or row["number"] >= model[at][0]:
            model[at] = (row["number"], row["name"])


KEYS = st.integers(-4, 4) | st.sampled_from([2**63 - 1, -(2**63)])
APPEND = st.lists(st.tuples(KEYS, st.integers(0, 2), st.integers(0, 5)), max_size=12)
STEPS = st.lists(APPEND | st.sampled_from(["merge", "reopen", "rebuild"]), max_size=14)


@given(STEPS, st.integers(0, 20))
def test_runs_do_as_a_dict_would(steps: list[Any], small: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_run_file, "MAX_UNSPLIT_ROWS", small)  # so that some runs are split
        patch.setattr(sorted_runs, "REBUILT_RUN_ROWS", 5)
        model: Model = {}
        own = opened(Path(folder), merging=False)
        reader = pickle.loads(pickle.dumps(own))
        for number, step in enumerate(steps):
            if step == "merge":
                own.merge()
            elif step == "reopen":
                own = opened(Path(folder), merging=False)
            elif step == "rebuild":
                own.rebuild([own.scan(part) for part in range(3)], number)
            else:
                rows = table(step, str(number))
                own.append(rows, number)
                note_all(model, rows)
                assert own.note == number
            wanted = [-4, 0, 3, 3, 2**63 - 1, 7]
            expected = {at: row for at, row in model.items() if at[0] in wanted}
            assert told(own.lookup(wanted)) == told(reader.lookup(wanted)) == expected
            assert told(pa.concat_tables([reader.scan(part) for part in range(3)])) == model


@given(st.lists(st.integers(1, 10**7), max_size=300))
def test_merging_leaves_few_runs_and_writes_each_row_a_few_times(appends: list[int]) -> None:
    held: list[int] = []
    written = 0
    for rows in appends:
        held.append(rows)
        while (due := plan_merge(held)) is not None:
            written += sum(held[due:])
            held[due:] = [sum(held[due:])]
    assert len(held) <= 100
    assert written <= 12 * sum(appends) + sorted_runs.BASE_ROWS * len(appends)


def test_appends_of_one_size_leave_a_few_runs() -> None:
    held: list[int] = []
    for _ in range(1000):
        held.append(sorted_runs.BASE_ROWS)
        while (due := plan_merge(held)) is not None:
            held[due:] = [sum(held[due:])]
    assert len(held) <= 18


def test_runs_are_merged_in_the_background(tmp_path: Path) -> None:
    with opened(tmp_path) as own:
        for number in range(40):
            own.append(table([(key, 0, number) for key in range(50)]))
        eventually(lambda: len(own.runs) < sorted_runs.FANOUT_RUNS)
        assert {number for number, _ in told(own.lookup(range(50))).values()} == {39}
        eventually(lambda: len(list(tmp_path.glob("*.arrow"))) == len(own.runs))  # deleted once the manifest is there


def test_a_reader_in_another_process_sees_what_was_appended_before(tmp_path: Path) -> None:
    with opened(tmp_path) as own, multiprocessing.get_context("spawn").Pool(1) as pool:
        for number in range(6):
            own.append(table([(1, number, number)]))
            assert len(pool.apply(_lookup, (tmp_path,))) == number + 1


_readers: dict[Path, RunReader] = {}


def _lookup(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _readers.setdefault(folder, RunReader(folder)).lookup([1]).to_pylist()
    return rows


def test_a_second_writer_takes_over_and_the_first_can_do_no_harm(tmp_path: Path) -> None:
    first = opened(tmp_path, merging=False)
    first.append(table([(1, 1, 1)]), "first")
    second = opened(tmp_path, merging=False)
    with pytest.raises(LogUnavailable, match="another process writes the runs"):
        first.append(table([(2, 2, 2)]))
    assert (len(second.lookup([1, 2])), second.note) == (1, "first")


def test_damaged_or_missing_runs_count_as_lost(tmp_path: Path) -> None:
    for damage in ("truncate", "delete", "manifest", "other"):
        own = opened(tmp_path, merging=False)
        own.append(table([(1, 1, 1)]), "something")
        [run] = own.runs[-1:]
        if damage == "truncate":
            (tmp_path / run.file).write_bytes((tmp_path / run.file).read_bytes()[:50])
        elif damage == "delete":
            (tmp_path / run.file).unlink()
        elif damage == "manifest":
            (tmp_path / sorted_runs.MANIFEST).write_text('{"form": 1, "wri')
        again = opened(tmp_path, merging=False, parts=5 if damage == "other" else 3)
        assert (len(again.lookup([1])), again.note) == (0, None), damage


def test_columns_of_runs_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="column 'name' of runs must be there, and of 64-bit integers"):
        opened(tmp_path, order="name")
    with pytest.raises(InvalidOption, match="column 'none' of runs must be there, and of 64-bit integers or text"):
        opened(tmp_path, identity=["none"])
    with pytest.raises(InvalidOption, match="one part at least"):
        opened(tmp_path, parts=0)


# What dies

WRITER = """
import sys, numpy as np, pyarrow as pa
from tidings.storage import sorted_run_file
from tidings.storage.sorted_runs import Runs
sorted_run_file.MAX_UNSPLIT_ROWS = 500
schema = pa.schema([("key", pa.int64()), ("client", pa.int64()), ("number", pa.int64()), ("name", pa.string())])
own = Runs(sys.argv[1], schema, key="key", identity=["client"], order="number", parts=3)
number = (own.note or 0)
while True:
    number += 1
    keys = np.arange(number % 7, 1000, 7)
    rows = {"key": keys, "client": keys * 0, "number": keys * 0 + number, "name": pa.array(keys).cast(pa.string())}
    own.append(pa.table(rows, schema), number)
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_loses_nothing_that_it_told_of(tmp_path: Path) -> None:
    rng = random.Random(3)
    for _ in range(8):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(rng.randrange(3, 60)):
            heard = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        heard = max([heard, *map(int, process.stdout.read().split())])
        process.wait()
        reader = RunReader(tmp_path)
        assert reader.note in (heard, heard + 1)
        expected = {(key, 0): reader.note - (reader.note - key) % 7 for key in range(1000)}
        found = {at: number for at, (number, _) in told(reader.lookup(range(1000))).items()}
        assert found == {at: number for at, number in expected.items() if number > 0}
    opened(tmp_path, merging=False)
    assert {path.name for path in tmp_path.glob("*.arrow")} == {run.file for run in RunReader(tmp_path).runs}


MEMORY = """
import sys, numpy as np, pyarrow as pa
from tidings.storage.sorted_runs import Runs
def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) // 1024
schema = pa.schema([("key", pa.int64()), ("client", pa.int64()), ("number", pa.int64()), ("name", pa.string())])
rng = np.random.default_rng(0)
peaks = []
with Runs(sys.argv[1], schema, key="key", identity=["client"], order="number") as own:
    for number in range(150):
        keys = rng.integers(-2**63, 2**63 - 1, 20_000)
        names = pa.array(keys).cast(pa.string())
        rows = {"key": keys, "client": keys, "number": np.full(len(keys), number), "name": names}
        own.append(pa.table(rows, schema))
        assert len(own.lookup(keys[:5000])) == 5000
        peaks.append(anonymous())
print(max(peaks[20:40]), max(peaks[-20:]), sum(run.rows for run in own.runs))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_state(tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True)
    early, late, rows = map(int, told.stdout.split())
    assert rows == 3_000_000
    assert late < early + 60, f"{early} MB with 0.6 M rows, {late} MB with 3 M, which are 180 MB on the disk"


def test_ranges_of_nothing_are_nothing() -> None:
    assert sorted_run_file.ranges(np.array([], np.int64), np.array([], np.int64)).tolist() == []


@pytest.mark.parametrize("unsplit", [0, 100])
def test_a_flipped_bit_is_an_error_that_names_the_run_or_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsplit: int
) -> None:
    monkeypatch.setattr(sorted_run_file, "MAX_UNSPLIT_ROWS", unsplit)
    own = opened(tmp_path, merging=False)
    own.append(table([(key, 0, key) for key in range(20)]), note="seen")
    rows = own.lookup(range(20))
    rng = random.Random(1)
    for path in (tmp_path / own.runs[0].file, tmp_path / sorted_runs.MANIFEST):
        content = path.read_bytes()
        for bit in rng.sample(range(len(content) * 8), 500):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            reader = RunReader(tmp_path)
            try:
                found = reader.lookup(range(20)), reader.note
            except LogUnavailable as error:
                named = str(error)
            else:
                assert found == (rows, "seen"), f"bit {bit} of {path.name}"
                continue
            assert path.name in named or path.name == sorted_runs.MANIFEST
        path.write_bytes(content)


def test_a_writer_that_finds_a_damaged_run_begins_anew(tmp_path: Path) -> None:
    own = opened(tmp_path, merging=False)
    own.append(table([(key, 0, key) for key in range(2000)]), note="seen")
    run = tmp_path / own.runs[0].file
    content = bytearray(run.read_bytes())
    content[len(content) // 2] ^= 1
    run.write_bytes(content)
    again = opened(tmp_path, merging=False)
    assert again.note is None
    assert again.runs == ()


def test_a_writer_that_is_stopped_with_the_lock_keeps_others_waiting_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_runs, "LOCK_TIMEOUT_S", 0.1)
    with opened(tmp_path) as runs:
        with (tmp_path / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(TimeoutError, match="if it is stopped, end it"):
                runs.append(table([(1, 1, 1)]))
        runs.append(table([(1, 1, 1)]))


def test_an_identity_may_be_text(tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.int64()), ("name", pa.string()), ("number", pa.int64())])
    with Runs(tmp_path, schema, key="key", identity=["name"], order="number", merging=False) as own:
        for number in range(5):
            own.append(pa.table([[7, 7, 3], ["a", "b", "a"], [number, -number, number]], schema))
        assert own.merge()
        assert sorted(map(tuple, (row.values() for row in own.lookup([7, 3]).to_pylist()))) == [
            (3, "a", 4),
            (7, "a", 4),
            (7, "b", 0),
        ]


@pytest.mark.parametrize("small", [0, 1000])
def test_a_key_with_many_rows_is_read_in_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr(sorted_run_file, "MAX_UNSPLIT_ROWS", small)
    with opened(tmp_path, merging=False) as own:
        for number in range(3):
            own.append(table([(key, client, number) for key in (5, 6) for client in range(10)]))
        assert own.counts(np.array([6, 4, 5])).tolist() == [30, 0, 30]
        shares = [own.lookup([5], sorted_run_file.Share("client", part, 4)) for part in range(4)]
        assert [sorted(share["client"].to_pylist()) for share in shares] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
        assert set(pa.concat_tables(shares)["number"].to_pylist()) == {2}
