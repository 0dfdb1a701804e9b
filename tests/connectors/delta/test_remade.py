"""A log that is purged, made anew or restored from a copy, under whoever has it open."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tidings.errors import LogMismatch, LogUnavailable
from tidings.log_opening import open_log
from tidings.logs import Transaction
from tidings.storage import delta_commits, durable
from tidings.stream_definition import StreamDefinition
from tidings.testing import check_log, held, make_updates
from tidings_connectors.delta.log import DeltaLog


def remake(log: DeltaLog, definition: StreamDefinition, commits: int) -> DeltaLog:
    """Delete a log, make it anew, and append so often to it."""
    shutil.rmtree(log.folder)
    new = DeltaLog.create(str(log.folder), definition)
    for seed in range(commits):
        new.append(make_updates(20, seed=100 + seed))
    return new


@pytest.mark.parametrize("commits", [0, 1, 4, 5, 9])
def test_a_writer_of_a_log_that_was_made_anew_appends_at_its_end(
    log: DeltaLog, definition: StreamDefinition, commits: int
) -> None:
    for seed in range(5):
        log.append(make_updates(20, seed=seed))
    new = remake(log, definition, commits)
    assert log.append(make_updates(10, seed=50)) is not None
    new.append(make_updates(10, seed=51))
    for each in (log, new, open_log(definition)):
        assert held(each).num_rows == 20 * commits + 20
        check_log(each, 4)


@pytest.mark.parametrize("other", [{"shards": 8}, {"shards": 2}, {"name": "clicks"}])
def test_a_writer_of_a_log_that_became_that_of_another_stream_is_refused(
    log: DeltaLog, definition: StreamDefinition, other: dict[str, int]
) -> None:
    for seed in range(3):
        log.append(make_updates(20, seed=seed))
    place = {"name": definition.name, "shards": definition.shards, "log": definition.log, **other}
    another = StreamDefinition(**place)  # type: ignore[arg-type]  # all of them are there
    new = remake(log, another, 6)
    with pytest.raises(LogMismatch, match="holds stream"):
        log.append(make_updates(10))
    with pytest.raises(LogMismatch, match="holds stream"):
        log.bounds()
    check_log(open_log(another), another.shards)
    assert held(new).num_rows == 120


def test_a_writer_of_a_log_that_was_restored_from_an_older_copy_appends_at_its_end(
    log: DeltaLog, definition: StreamDefinition, tmp_path: Path
) -> None:
    for seed in range(5):
        log.append(make_updates(20, seed=seed))
        if seed == 1:
            shutil.copytree(log.folder, tmp_path / "copy")
    shutil.rmtree(log.folder)
    shutil.copytree(tmp_path / "copy", log.folder)
    log.append(make_updates(10, seed=50))
    for each in (log, open_log(definition)):
        assert held(each).num_rows == 50
        check_log(each, 4)


def test_a_log_that_was_copied_as_it_is_goes_on_as_it_was(log: DeltaLog, tmp_path: Path) -> None:
    log.append(make_updates(20), Transaction("query", 1))
    log.folder.rename(tmp_path / "copy")
    shutil.copytree(tmp_path / "copy", log.folder, copy_function=shutil.copyfile)  # other files, at another time
    before = log.bounds()
    assert log.bounds() is before, "nothing was loaded anew"
    assert log.append(make_updates(20), Transaction("query", 1)) is None


def test_a_log_that_is_purged_is_an_error(log: DeltaLog) -> None:
    log.append(make_updates(20))
    shutil.rmtree(log.folder)
    for attempt in (lambda: log.append(make_updates(20)), log.bounds):
        with pytest.raises(LogUnavailable):
            attempt()
    assert not log.folder.exists()


@pytest.mark.parametrize("after_link", [False, True])
def test_a_log_that_is_made_anew_between_a_look_and_the_commit_gets_no_gap(
    log: DeltaLog, definition: StreamDefinition, monkeypatch: pytest.MonkeyPatch, after_link: bool
) -> None:
    for seed in range(5):
        log.append(make_updates(20, seed=seed))
    commits = log.folder / "_delta_log"

    def remade() -> None:
        """As if all were deleted and made anew, but for the draft that is under way."""
        for path in [*commits.glob("[0-9]*"), *log.folder.glob("*.parquet")]:
            path.unlink()
        DeltaLog.create(str(log.folder), definition).append(make_updates(20, seed=100))

    def once(name: str, real: Callable[..., object], module: object) -> None:
        def meddling(*arguments: object) -> object:
            monkeypatch.setattr(module, name, real)
            remade()
            return real(*arguments)

        monkeypatch.setattr(module, name, meddling)

    if after_link:  # between the last look before the link, and the link
        once("link", delta_commits.os.link, delta_commits.os)  # type: ignore[attr-defined]  # for tests
    else:
        once("sync_folder", durable.sync_folder, delta_commits)
    log.append(make_updates(10, seed=50))
    assert sorted(path.name for path in commits.glob("[0-9]*")) == [f"{version:020}.json" for version in range(3)]
    for each in (log, open_log(definition)):
        assert held(each).num_rows == 30
        check_log(each, 4)
