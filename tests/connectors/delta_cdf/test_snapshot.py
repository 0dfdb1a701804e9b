"""The rows that a Delta table has already, and all rows once more after something was lost."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.connectors.delta_cdf.test_log import FEED, merge, people, start, told
from tests.support import snapshot_steps
from tests.support.made_anew import Datastore, flows_are_told
from tests.support.snapshot_steps import rows_reach_who_comes_later
from tests.support.subscribers import Copy, Seen
from tidings.cluster import Cluster
from tidings.errors import LogRestored, LogUnavailable, PositionsLost
from tidings.flow_status import status
from tidings.log_opening import create_log, open_log
from tidings.logs import Log, Read
from tidings.positions import Position, Positions
from tidings.storage import durable
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually
from tidings.updates import SCHEMA
from tidings_connectors.cdc import snapshot
from tidings_connectors.cdc.snapshot import StreamSnapshot
from tidings_connectors.cdc.snapshot_note import LATE_BASE, Chunk, Note, SnapshotRun, TableProgress, waiting
from tidings_connectors.delta_cdf.log import DeltaCdfLog

small_chunks = snapshot_steps.small_chunks
BASE = 2**30


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A table whose feed came later than its first rows."""
    place = tmp_path / "shop" / "people"
    write_deltalake(place, people(**{f"_{number}": "x" for number in range(250)}))
    DeltaTable(place).alter.set_table_properties(FEED)
    write_deltalake(place, people(_300="fed"), mode="append")
    return place


def stream(place: Path, **options: Any) -> StreamDefinition:
    folder = str(place.parents[1] / "snapshots")
    return StreamDefinition(
        "people", 2, f"delta-cdf:{place}", options={"key": ["id"], "snapshot_folder": folder, **options}
    )


def forget_versions(place: Path) -> None:
    """Have the table let go of all versions but the newest."""
    DeltaTable(place).create_checkpoint()
    for path in sorted((place / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()


def drained(log: Log, at: Positions, limit: int = 1000) -> list[Any]:
    found = []
    with contextlib.closing(log.reader()) as reader:
        while any(at[shard] < held.head for shard, held in log.bounds().items()):
            rows, at = reader.read(at, limit)
            found += told(rows)
    return found


def test_the_rows_that_are_there_stand_after_the_version_that_they_are_of(place: Path) -> None:
    with contextlib.closing(create_log(stream(place, snapshot=True))) as log:
        merge(place, people(_7="seven"))
        eventually(lambda: log.bounds()[0].head == Position(4, -1))
        rows = drained(log, start(log))
        assert [row[3] for row in rows] == ["snapshot"] * 251 + ["update"]
        assert [row[:2] for row in rows[:251]] == [(2, BASE + index) for index in range(251)]
        assert {row[2] for row in rows[:251]} == {f"shop.people/{number}" for number in (*range(250), 300)}
        assert drained(log, start(log), limit=7) == rows
        halfway = Positions({0: Position(2, BASE + 120), 1: Position(2, BASE + 120)})
        assert drained(log, halfway) == rows[121:]
    with contextlib.closing(open_log(stream(place, snapshot=True))) as log:
        assert drained(log, start(log)) == rows
        log.confirm(Positions(dict.fromkeys(range(2), Position(3, -1))))  # type: ignore[attr-defined]
        assert not list(place.parents[1].rglob("snapshots/**/*.parquet"))


def test_changes_that_were_vacuumed_are_a_loss_with_exact_positions(place: Path) -> None:
    for name in ("one", "two"):
        merge(place, people(_7=name))
    table = DeltaTable(place)
    table.delete("id = 8")
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    for path in (place / "_change_data").glob("*"):
        path.unlink()
    write_deltalake(place, people(_400="later"), mode="append")
    with contextlib.closing(open_log(stream(place))) as log:
        with pytest.raises(PositionsLost) as caught:
            drained(log, Positions({0: Position(2, 5), 1: Position(3, -1)}))
        assert caught.value.lost == {0: (Position(2, 6), Position(6, -1)), 1: (Position(3), Position(6, -1))}
        assert [row[2] for row in drained(log, start(log))] == ["shop.people/400"]


@pytest.mark.parametrize("loss", ["cleaned", "restored"])
def test_a_copy_is_whole_again_after_a_loss(cluster: Cluster, place: Path, loss: str) -> None:
    made = stream(place, on_data_loss="snapshot")
    cluster.create_stream("people", 2, made.log, options=made.options)
    cluster.create_application("cache", ["people"], start="latest")
    copy = Copy()

    def same() -> bool:
        rows = DeltaTable(place).to_pyarrow_table().to_pylist()
        return copy.rows == {f"shop.people/{row['id']}": row for row in rows}

    commits = place / "_delta_log"
    with cluster.subscribe("cache", copy), cluster.publisher(token_interval=0.2):
        eventually(lambda: not copy.rows and all(one.datamarker for one in status(cluster)))
        write_deltalake(place, people(_500="x"), mode="append")
        write_deltalake(place, people(_501="x"), mode="append")
        eventually(lambda: len(copy.rows) == 2)
    DeltaTable(place).delete("id = 500")
    write_deltalake(place, people(_502="x"), mode="append")
    if loss == "cleaned":
        forget_versions(place)
    else:
        for path in sorted(commits.glob("*.json"))[3:]:
            path.unlink()
    with cluster.subscribe("cache", copy), cluster.publisher(token_interval=0.2):
        eventually(same, timeout=60)
        assert sorted(shard for shard, _, _ in copy.lost) == [0, 1]
        write_deltalake(place, people(_600="after"), mode="append")
        eventually(same)


def test_a_loss_is_told_when_there_are_rows_to_go_on_with(place: Path) -> None:
    with contextlib.closing(create_log(stream(place, on_data_loss="snapshot"))) as log:
        ahead = Positions({0: Position(90, -1), 1: Position(90, -1)})
        with contextlib.closing(log.reader()) as reader:

            def told_of() -> bool:
                try:
                    return reader.read(ahead, 10).upto != ahead
                except LogRestored:
                    return True

            eventually(told_of)
        assert [row[3] for row in drained(log, start(log))] == ["snapshot"] * 251


def test_a_dropped_stream_takes_its_rows_with_it_and_the_next_one_has_its_own(cluster: Cluster, place: Path) -> None:
    made = stream(place, snapshot=True)
    for count in (251, 252):
        with contextlib.closing(cluster.create_stream("people", 2, made.log, options=made.options).log) as log:
            assert [row[3] for row in drained(log, start(log))].count("snapshot") == count
        cluster.drop_stream("people")
        assert not list((place.parents[1] / "snapshots").rglob("*.parquet"))
        write_deltalake(place, people(**{f"_{count}": "x"}), mode="append")


def test_a_folder_that_cannot_be_used_is_told_and_a_full_disk_is_gone_on_from(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.parent / "file").touch()
    with pytest.raises(LogUnavailable, match=r"cannot be kept in .*/file/rows/people: Not a directory"):
        create_log(stream(place, snapshot=True, snapshot_folder=str(place.parent / "file" / "rows")))
    replace, written = durable.replace, []

    def full(path: Path, *rest: Any) -> None:
        written.append(path)
        if len(written) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "replace", full)
        with pytest.raises(LogUnavailable, match=r"cannot be kept in .*: No space left on device"):
            create_log(stream(place, snapshot=True))
    with contextlib.closing(create_log(stream(place, snapshot=True))) as log:
        assert [row[3] for row in drained(log, start(log))].count("snapshot") == 251


def test_pieces_of_a_large_table_are_bounded(place: Path) -> None:
    with contextlib.closing(create_log(stream(place, snapshot=True))):
        files = list((place.parents[1] / "snapshots").rglob("*.parquet"))
        assert len(files) >= 3
        assert max(pa.parquet.read_metadata(file).num_rows for file in files) <= 100


@pytest.mark.parametrize("policy", ["gaps", "single"])
def test_who_comes_later_gets_the_rows_too_and_nobody_else_does(cluster: Cluster, place: Path, policy: str) -> None:
    made = stream(place, snapshot=True)
    cluster.create_stream("people", 2, made.log, options=made.options, caravans={"policy": policy})
    rows_reach_who_comes_later(
        cluster,
        "people",
        place.parents[1] / "snapshots",
        251,
        lambda number: write_deltalake(place, people(**{f"_{number}": "later"}), mode="append"),
    )


@pytest.fixture
def quiet(place: Path) -> Iterator[DeltaCdfLog]:
    """A log whose snapshot every flow has passed, and forgotten."""
    with contextlib.closing(create_log(stream(place, snapshot=True))) as log:
        assert isinstance(log, DeltaCdfLog)
        log.confirm(Positions(dict.fromkeys(range(2), log.bounds()[0].head)))
        yield log


def late(log: DeltaCdfLog) -> StreamSnapshot:
    assert log._late is not None
    return log._late


def stands(at: Position) -> Positions:
    return Positions(dict.fromkeys(range(2), at))


class Held(NamedTuple):
    """A late snapshot that is being taken: it goes on when it is told."""

    began: threading.Event
    goes_on: threading.Event


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    held, read = Held(threading.Event(), threading.Event()), StreamSnapshot._read

    def slow(self: StreamSnapshot, *given: Any) -> None:
        if self._aside:
            held.began.set()
            assert held.goes_on.wait(60)
        read(self, *given)

    monkeypatch.setattr(StreamSnapshot, "_read", slow)
    return held


def test_who_waits_for_a_late_snapshot_is_served_when_it_is_complete_and_stays_where_it_is_till_then(
    quiet: DeltaCdfLog, held: Held
) -> None:
    began, goes_on = held
    begin = stands(quiet.earliest())
    with contextlib.closing(quiet.reader()) as reader, contextlib.closing(quiet.reader()) as other:
        for one in (reader, other):
            assert one.read(begin, 100) == Read(SCHEMA.empty_table(), begin)
        assert began.wait(30)
        assert reader.read(begin, 100).upto == begin
        goes_on.set()
        eventually(lambda: late(quiet).note().complete)
        assert told(reader.read(begin, 1000).rows) == told(other.read(begin, 1000).rows)
    assert len(drained(quiet, begin)) == 251


def test_who_follows_the_log_does_not_wait_for_a_late_snapshot(cluster: Cluster, place: Path, held: Held) -> None:
    made = stream(place, snapshot=True)
    cluster.create_stream("people", 2, made.log, options=made.options, caravans={"policy": "single"})
    cluster.create_application("first", ["people"], start="earliest")
    first, second = Seen(), Seen()
    with cluster.publisher(token_interval=0.2), cluster.subscribe("first", first):
        eventually(lambda: len(first.updates) == 251)
        eventually(lambda: not list(place.parents[1].rglob("snapshots/**/*.parquet")), timeout=60)
        cluster.create_application("second", ["people"], start="earliest")
        with cluster.subscribe("second", second):
            assert held.began.wait(30)
            write_deltalake(place, people(_400="meanwhile"), mode="append")
            eventually(lambda: len(first.updates) == 252)
            assert second.updates == []
            told = "it begins with a snapshot of its own, which is read for it or taken just now"
            eventually(lambda: {one.reason for one in status(cluster, application="second")} == {told})
            held.goes_on.set()
            eventually(lambda: len(second.updates) == 252)
    assert len(first.updates) == 252
    (shard,) = {update.shard for update in second.updates if update.object == "shop.people/400"}
    assert [update.object for update in second.updates if update.shard == shard][-1] == "shop.people/400"


def test_a_late_snapshot_that_was_interrupted_is_taken_anew(quiet: DeltaCdfLog, place: Path) -> None:
    interrupted = SnapshotRun(
        seq=2, base=LATE_BASE, chunks=[Chunk(file="gone", checksum=0, table="shop.people", first=0, rows=100)]
    )
    late(quiet)._write(Note(tables={"shop.people": TableProgress(order=[], done=True)}, runs=[interrupted]))
    write_deltalake(place, people(_400="more"), mode="append")
    rows = drained(quiet, stands(quiet.earliest()))
    assert [row[3] for row in rows] == ["snapshot"] * 252
    assert {row[0] for row in rows} == {3}


def test_one_who_waits_gets_a_newer_late_snapshot_when_the_table_has_let_go_of_what_follows_the_older(
    quiet: DeltaCdfLog, place: Path
) -> None:
    begin = stands(quiet.earliest())
    late(quiet).take()
    write_deltalake(place, people(_400="more"), mode="append")
    write_deltalake(place, people(_401="more"), mode="append")
    forget_versions(place)
    rows = drained(quiet, begin)
    assert [row[3] for row in rows] == ["snapshot"] * 253


def test_the_rest_of_a_late_snapshot_that_is_gone_is_told_as_a_loss(quiet: DeltaCdfLog) -> None:
    begin = stands(quiet.earliest())
    late(quiet).take()
    with contextlib.closing(quiet.reader()) as reader:
        upto = reader.read(begin, 100).upto
        late(quiet).release(Position(3, -1))
        with pytest.raises(PositionsLost, match="the rest of a snapshot") as loss:
            reader.read(upto, 100)
    assert loss.value.lost == dict.fromkeys(range(2), (Position(2, upto[0].index + 1), Position(3, -1)))


@pytest.fixture
def slow_release(monkeypatch: pytest.MonkeyPatch, small_chunks: None) -> None:
    monkeypatch.setattr(snapshot, "RELEASE_DELAY_S", 60)


@pytest.mark.usefixtures("slow_release")
def test_rows_that_all_have_passed_stay_for_who_begins_with_them_just_then(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stream(place, snapshot=True)
    with contextlib.closing(create_log(made)) as one, contextlib.closing(open_log(made)) as other:
        assert isinstance(one, DeltaCdfLog)
        assert isinstance(other, DeltaCdfLog)
        head = one.bounds()[0].head
        rows = drained(one, stands(one.earliest()))
        marked = one._snapshot
        assert marked is not None
        one.confirm(stands(head))
        assert marked.note().passed is not None
        begin = stands(other.earliest())
        assert marked.note().passed is None
        with contextlib.closing(other.reader()) as reader:
            upto = reader.read(begin, 100).upto
        one.confirm(stands(head))  # by one who does not know of the other yet
        other.confirm(upto)
        monkeypatch.setattr(snapshot, "RELEASE_DELAY_S", 0)
        other.confirm(upto)
        assert drained(other, begin) == rows
        one.confirm(stands(head))
        assert not list(place.parents[1].rglob("snapshots/**/*.parquet"))
        with pytest.raises(PositionsLost, match="the rest of a snapshot"):
            drained(other, upto)


@pytest.mark.usefixtures("slow_release")
def test_late_rows_that_all_have_passed_stay_for_who_waits(place: Path) -> None:
    with contextlib.closing(create_log(stream(place, snapshot=True))) as log:
        assert isinstance(log, DeltaCdfLog)
        assert log._snapshot is not None
        log._snapshot.discard()
        begin = stands(waiting(log.bounds()[0].floor))
        late(log).take()
        taken = late(log).note().runs
        late(log).release(log.bounds()[0].head)
        assert late(log).note().passed is not None
        assert len(drained(log, begin)) == 251
        assert late(log).note().passed is None
        assert late(log).note().runs == taken


@pytest.mark.parametrize("pattern", ["*.parquet", "note.json"])
def test_a_flipped_bit_of_a_snapshot_is_an_error_that_names_it(place: Path, pattern: str) -> None:
    create_log(stream(place, snapshot=True)).close()
    files = sorted(place.parents[1].glob(f"snapshots/people/{pattern}"))
    for path, part in itertools.product(files, (0.3, 0.5, 0.7)):
        content = path.read_bytes()
        at = int(len(content) * part)
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with (
            pytest.raises(LogUnavailable, match=str(path.parent)),
            contextlib.closing(open_log(stream(place, snapshot=True))) as log,
        ):
            drained(log, start(log))
        path.write_bytes(content)


def test_rows_that_are_large_are_cut_into_smaller_pieces(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", 1)
    with contextlib.closing(create_log(stream(place, snapshot=True))) as log:
        assert isinstance(log, DeltaCdfLog)
        assert log._snapshot is not None
        assert {chunk.rows for run in log._snapshot.note().runs for chunk in run.chunks} == {1}


@pytest.mark.parametrize("snapshot", [False, True])
def test_flows_of_a_stream_that_was_made_anew_over_another_table_are_told(
    cluster: Cluster, tmp_path: Path, snapshot: bool
) -> None:
    def table(name: str) -> Datastore:
        place = tmp_path / name / "people"
        write_deltalake(place, people(_0="x"), configuration=FEED)
        return Datastore(
            f"delta-cdf:{place}",
            {"key": ["id"], "snapshot": snapshot, "snapshot_folder": str(tmp_path / "rows")},
            lambda number: write_deltalake(place, people(**{f"_{number}": "x"}), mode="append"),
        )

    flows_are_told(cluster, table("old"), table("new"))


def test_streams_that_share_a_folder_and_a_name_have_each_its_own_rows(tmp_path: Path) -> None:
    for name in ("one", "two"):
        place = tmp_path / name / "people"
        write_deltalake(place, people(_1=name), configuration=FEED)
    made = [stream(tmp_path / name / "people", snapshot=True) for name in ("one", "two")]
    made = [replace(one, options={**one.options, "snapshot_folder": str(tmp_path / "rows")}) for one in made]
    for name, one in zip(("one", "two"), [one.made_now() for one in made], strict=True):
        with contextlib.closing(create_log(one)) as log:
            assert [row[4]["name"] for row in drained(log, start(log))] == [name]
    # Streams of earlier versions have no identity but that of their datastore.
    create_log(made[0]).close()
    for use in (create_log, open_log):
        with pytest.raises(
            LogUnavailable, match=r"/people is not of stream 'people' as it is now .*: delete the folder"
        ):
            use(made[1])
    note = next((tmp_path / "rows").glob("people/note.json"))
    text = note.read_bytes().rpartition(b"\n")[0].replace(b'"of":', b'"for":')
    note.write_bytes(text + b"\n%08x" % zlib.crc32(text))
    with pytest.raises(LogUnavailable, match="an earlier version has written it"):
        open_log(made[0])
