from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.places import SUPPORT
from tidings.errors import LogUnavailable, PositionsLost
from tidings.log_opening import create_log, open_log
from tidings.logs import Transaction
from tidings.positions import Position, Positions
from tidings.storage import delta_commits, durable
from tidings.storage.delta_commits import OutcomeUnknown
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings.testing import check_log, eventually, held, make_updates
from tidings_connectors.delta.log import DeltaLog

WRITER = SUPPORT / "log_writer.py"


def acknowledged(path: Path) -> list[tuple[str, int]]:
    """The lines that were written whole."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [(name, int(seq)) for name, seq in (line.split() for line in lines)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_writers_killed_at_random_lose_repeat_and_invent_nothing(
    log: DeltaLog, definition: StreamDefinition, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    notes = [tmp_path / f"acknowledged-{writer}" for writer in range(4)]
    arguments = [str(log.folder), str(definition.shards)]
    writers = [
        subprocess.Popen([sys.executable, WRITER, *arguments, str(n), str(seed * 10 + n), notes[n]]) for n in range(4)
    ]
    try:
        eventually(lambda: all(len(acknowledged(note)) > 20 for note in notes), timeout=120)
        for victim in (0, 1):
            target = len(acknowledged(notes[victim])) + rng.randrange(1, 200)
            eventually(lambda: len(acknowledged(notes[victim])) >= target, every=0.001)  # noqa: B023
            time.sleep(rng.random() / 50)  # anywhere within a commit
            writers[victim].kill()
            writers[victim].wait()
        survivors = [len(acknowledged(note)) for note in notes[2:]]
        eventually(
            lambda: all(len(acknowledged(note)) > n + 100 for note, n in zip(notes[2:], survivors, strict=True)),
            timeout=120,
        )
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()

    check_log(log, definition.shards)
    rows = held(log)
    place = dict(zip(rows["object"].to_pylist(), rows["seq"].to_pylist(), strict=True))
    assert max(Counter(rows["object"].to_pylist()).values()) == 1, "no update is there twice"
    for number, note in enumerate(notes):
        for name, seq in acknowledged(note):
            assert place[name] == seq, "what was acknowledged is where it was said to be"
        mine = sorted(int(name.split("-")[1]) for name in place if name.startswith(f"{number}-"))
        assert mine == list(range(len(mine))), "what is there was published, in order, without a hole"


LARGE_APPENDS = """
import sys
from tidings.stream_definition import StreamDefinition
from tidings.testing import make_updates
from tidings_connectors.delta import log
log.SEGMENT_ROWS = 100
own = log.DeltaLog.open(sys.argv[1], StreamDefinition("contacts", 4, f"delta:{sys.argv[1]}"))
while True:
    own.append(make_updates(500))
    print("appended", flush=True)
"""


def test_an_append_of_several_segments_whose_writer_is_killed_is_there_whole_or_not_at_all(log: DeltaLog) -> None:
    rng = random.Random(5)
    told = 0
    for _ in range(8):
        command = [sys.executable, "-c", LARGE_APPENDS, str(log.folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(rng.randrange(2, 5)):
                began = time.monotonic()
                assert writer.stdout.readline()
                took = time.monotonic() - began
                told += 1
            time.sleep(rng.random() * took)  # anywhere within an append
            writer.kill()
            told += len(writer.stdout.read().split())
        rows = held(log).num_rows
        assert rows % 500 == 0
        assert rows // 500 >= told
        told = rows // 500
    check_log(log, 4)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, to mount a small tmpfs")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_an_error_and_no_acknowledgement_and_later_it_goes_on(small_disk: Path) -> None:
    definition = StreamDefinition("contacts", 4, f"delta:{small_disk / 'contacts'}")
    log = DeltaLog.create(str(small_disk / "contacts"), definition)
    stream = Stream(definition)
    ballast = small_disk / "ballast"
    with stream.producer(max_rows=10) as producer:
        producer.publish_many(make_updates(10)).result()
        with open(ballast, "wb") as file:
            file.write(b"x" * 2**20 * 3)
        results = [producer.publish_many(make_updates(10, seed=seed, payload_bytes=30_000)) for seed in range(20)]
        errors = [error for result in results if (error := result.exception())]
        assert errors
        assert all(isinstance(error, LogUnavailable) and "No space left on device" in str(error) for error in errors)
        durable = 10 + 10 * (len(results) - len(errors))
        assert held(log).num_rows == durable
        ballast.unlink()
        producer.publish_many(make_updates(10)).result()
    check_log(log, 4)
    assert held(log).num_rows == durable + 10


def test_on_a_full_disk_a_log_can_be_truncated_if_something_is_dead(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = StreamDefinition("contacts", 4, f"delta:{small_disk / 'contacts'}")
    log = DeltaLog.create(str(small_disk / "contacts"), definition)

    def truncate() -> None:
        log.truncate(Positions({shard: Position(bounds.head.seq + 1) for shard, bounds in log.bounds().items()}))

    log.append(make_updates(20, payload_bytes=10_000))
    with monkeypatch.context() as patch:
        patch.setattr(delta_commits, "milliseconds", lambda: int((time.time() - 7200) * 1000))
        truncate()
    log.append(make_updates(20))
    with open(small_disk / "ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    truncate()
    assert held(log).num_rows == 0


def test_a_writer_that_is_stopped_holds_nobody_up(log: DeltaLog, definition: StreamDefinition, tmp_path: Path) -> None:
    note = tmp_path / "acknowledged"
    arguments = [str(log.folder), str(definition.shards), "0", "0", note]
    writer = subprocess.Popen([sys.executable, WRITER, *map(str, arguments)])
    try:
        eventually(lambda: len(acknowledged(note)) > 20, timeout=60)
        writer.send_signal(signal.SIGSTOP)
        with Stream(definition).producer() as producer:
            for number in range(50):
                producer.publish(f"mine-{number}").result(timeout=10)
        writer.send_signal(signal.SIGCONT)
        before = len(acknowledged(note))
        eventually(lambda: len(acknowledged(note)) > before + 20, timeout=60)
    finally:
        writer.kill()
        writer.wait()
    check_log(log, definition.shards)


def test_a_commit_that_is_torn_by_a_fault_is_not_seen(log: DeltaLog) -> None:
    log.append(make_updates(10))
    draft = log.folder / "_delta_log" / ".torn.tmp"
    draft.write_text('{"add": {"path": "nothing.parq')
    (log.folder / "torn.parquet").write_bytes(b"PAR1 and no more")
    log.append(make_updates(10))
    assert held(log).num_rows == 20
    check_log(log, 4)


def failing_syncs(monkeypatch: pytest.MonkeyPatch, log: DeltaLog, times: int) -> None:
    """Let the next syncs of the folder of commits fail."""
    failures = iter(range(times))

    def sync(folder: Path) -> None:
        if folder == log.folder / "_delta_log" and next(failures, None) is not None:
            raise OSError(errno.EIO, "Input/output error")
        durable.sync_folder(folder)

    monkeypatch.setattr(delta_commits, "sync_folder", sync)


def test_a_sync_that_fails_after_the_commit_is_tried_again(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_syncs(monkeypatch, log, 1)
    log.append(make_updates(10))
    assert held(log).num_rows == 10


def test_an_append_of_which_it_is_not_known_whether_it_lasts_is_an_error_and_destroys_nothing(
    log: DeltaLog, definition: StreamDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_syncs(monkeypatch, log, 3)
    with pytest.raises(OutcomeUnknown, match="may not outlast a power loss"):
        log.append(make_updates(10), Transaction("query", 1))
    for each in (log, open_log(definition)):
        assert held(each).num_rows == 10
        check_log(each, 4)
    failing_syncs(monkeypatch, log, 3)
    with pytest.raises(LogUnavailable):
        log.append(make_updates(10), Transaction("query", 1))
    assert log.append(make_updates(10), Transaction("query", 1)) is None, "it found its own commit, and synced it"
    assert held(log).num_rows == 10


def test_a_writer_that_was_stopped_until_its_version_was_cleaned_up_appends_at_the_end(
    log: DeltaLog, definition: StreamDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = DeltaLog.open(str(log.folder), definition)
    other.append(make_updates(3))

    def stopped(folder: Path) -> None:
        monkeypatch.setattr(delta_commits, "sync_folder", durable.sync_folder)
        for seed in range(5):
            other.append(make_updates(5, seed=seed))
        then = time.time() - 7200
        for path in (log.folder / "_delta_log").iterdir():
            os.utime(path, (then, then))
        other.append(make_updates(5))
        other.maintenance.checkpoint()
        assert len(list((log.folder / "_delta_log").glob("*.json"))) < 3
        durable.sync_folder(folder)

    monkeypatch.setattr(delta_commits, "sync_folder", stopped)
    appended = log.append(make_updates(10))
    assert appended is not None
    for each in (log, other, open_log(definition)):
        assert held(each).num_rows == 43
        check_log(each, 4)


def test_a_reader_that_slept_takes_no_commit_for_one_that_was_cleaned_up(
    log: DeltaLog, definition: StreamDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(make_updates(5))
    sleeper = open_log(definition)
    log.append(make_updates(5))
    log.maintenance.checkpoint()
    (log.folder / "_delta_log" / f"{2:020}.json").write_text('{"commitInfo": {"operation": "of a writer that slept"}}')
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 7200)
    assert held(sleeper) == held(log)


@pytest.mark.parametrize("how", ["made anew", "restored"])
def test_a_reader_that_runs_while_its_log_is_made_anew_or_restored_is_told(
    log: DeltaLog, definition: StreamDefinition, tmp_path: Path, how: str
) -> None:
    log.append(make_updates(10))
    older = shutil.copytree(log.folder, tmp_path / "older")
    for _ in range(3):
        log.append(make_updates(10))
    reader = open_log(definition)
    after = reader.reach(Positions(), None)
    shutil.rmtree(log.folder)
    if how == "restored":
        shutil.copytree(older, log.folder)
    else:
        create_log(definition).close()
    heads = {shard: bounds.head for shard, bounds in open_log(definition).bounds().items()}
    for _ in range(2):
        with pytest.raises(PositionsLost, match="made anew, or restored from an older copy") as caught:
            reader.tail(after, 10)
        assert caught.value.lost == {shard: (Position(head.seq + 1), after[shard]) for shard, head in heads.items()}
    log.append(make_updates(10))  # by a writer that was there before, too
    assert held(reader) == held(open_log(definition))
    check_log(reader, 4)
