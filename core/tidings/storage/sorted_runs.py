"""Sorted runs: keyed state that is looked up in every batch, at a cost that follows the batch and not the state.

A folder holds immutable files of rows sorted by a 64-bit key (`sorted_run_file`), and a manifest that names them. An
append adds a small run; runs of one size are merged into a larger one in the background, so that a row is written a few
times in all, and there are a few runs to look into. A lookup is a binary search for a whole batch of keys in each.

Runs are a cache: what they hold can be made again from somewhere else. `note` says what they have seen of it, and
changes with the rows, in one step. Files are synced before the manifest names them, and the manifest is replaced by a
rename: whatever dies in between, a reader finds the old state or the new one.

One process writes; any number of others read, and see what was appended before their lookup began.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import logging
import math
import os
import threading
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import InvalidOption, LogUnavailable
from tidings.storage import durable
from tidings.storage.sorted_run_file import Checksums, Forget, Layout, RunFile, Share, merge_runs, write_run

FANOUT_RUNS = 4  # so many of one size are merged into one
BASE_ROWS = 4096  # runs of fewer count as of one size
REBUILT_RUN_ROWS = 1_000_000  # when all runs are made anew
LOCK_TIMEOUT_S, LOCK_INTERVAL_S = 10.0, 0.01  # the lock is held for as long as a small file takes
MANIFEST = "manifest.json"
FORMAT_VERSION = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SortedRun:
    """A run as the manifest names it."""

    file: str
    rows: int
    checksums: Checksums


@dataclass(frozen=True)
class Manifest:
    """Which runs there are, the oldest first, and what they have seen."""

    layout: Layout
    runs: tuple[SortedRun, ...] = ()
    note: Any = None
    writer: str = ""

    def encode(self) -> bytes:
        """As it stands in the file."""
        layout = self.layout
        value = {
            "form": FORMAT_VERSION,
            "writer": self.writer,
            "key": layout.key,
            "identity": layout.identity,
            "order": layout.order,
            "parts": layout.parts,
            "schema": base64.b64encode(layout.schema.serialize()).decode(),
            "note": self.note,
            "runs": [[run.file, run.rows, run.checksums] for run in self.runs],
        }
        text = json.dumps(value).encode()
        return text + b"\n%08x" % zlib.crc32(text)

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest in this folder; None if there is none that can be read."""
        try:
            text, _, checksum = (folder / MANIFEST).read_bytes().partition(b"\n")
            if int(checksum, 16) != zlib.crc32(text):
                raise ValueError("damaged")
            value = json.loads(text)
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["schema"])))
            layout = Layout(schema, value["key"], tuple(value["identity"]), value["order"], value["parts"])
            runs = tuple(SortedRun(file, rows, tuple(map(tuple, sums))) for file, rows, sums in value["runs"])
            return cls(layout, runs, value["note"], value["writer"]) if value["form"] == FORMAT_VERSION else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, pa.ArrowException):
            logger.warning("the manifest in %s cannot be read: the runs there count as lost", folder)
            return None


@dataclass(frozen=True)
class RunsSnapshot:
    """Runs as they were at one time."""

    manifest: Manifest
    files: Sequence[RunFile]

    @property
    def rows(self) -> int:
        """How many rows there are at most: those that newer ones have replaced are counted until runs are merged."""
        return sum(run.rows for run in self.manifest.runs)

    def lookup(self, keys: npt.ArrayLike, share: Share | None = None) -> pa.Table:
        """The newest row of each identity that has one of these keys; or a share of these rows."""
        wanted = np.sort(np.asarray(keys, np.int64))
        if len(wanted):
            wanted = wanted[np.append(True, wanted[1:] != wanted[:-1])]  # as np.unique does, in a quarter of the time
        found = [rows for file in self.files for rows in file.find(wanted, share)] if len(wanted) else []
        return self._newest(found)

    def counts(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many rows each of these keys has at most, as `rows` counts them; none of them is read."""
        return sum((file.counts(keys) for file in self.files), np.zeros(len(keys), np.int64))

    def scan(self, part: int) -> pa.Table:
        """The newest rows of one part: of all keys with `key mod parts` = `part`."""
        return self._newest([file.part(part) for file in self.files])

    def check(self) -> None:
        """Raise `LogUnavailable` if a file is not what was written."""
        for file in self.files:
            file.check()

    def _newest(self, tables: Sequence[pa.Table]) -> pa.Table:
        layout = self.manifest.layout
        return layout.newest(pa.concat_tables([layout.schema.empty_table(), *tables]))


class RunReader:
    """Looks up what the runs in a folder hold, from whichever process; it sees each append that came before a lookup.

    It can be pickled, and so travel to Spark's workers. May be used from several threads.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._manifest: Manifest | None = None
        self._files: dict[str, RunFile] = {}

    def __reduce__(self) -> tuple[type[RunReader], tuple[Path]]:
        return RunReader, (self.folder,)

    @property
    def note(self) -> Any:
        """What the runs have seen, as the writer put it."""
        return self._current()[0].note

    @property
    def runs(self) -> tuple[SortedRun, ...]:
        """The runs that there are, the oldest first."""
        return self._current()[0].runs

    def snapshot(self) -> RunsSnapshot:
        """The runs as they are now, which stay as they are for as long as one holds it."""
        return RunsSnapshot(*self._current())

    def lookup(self, keys: npt.ArrayLike, share: Share | None = None) -> pa.Table:
        """The newest row of each identity that has one of these keys; or a share of these rows."""
        return self.snapshot().lookup(keys, share)

    def counts(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many rows each of these keys has at most."""
        return self.snapshot().counts(keys)

    def scan(self, part: int) -> pa.Table:
        """The newest rows of one part: of all keys with `key mod parts` = `part`."""
        return self.snapshot().scan(part)

    def _current(self) -> tuple[Manifest, list[RunFile]]:
        """The manifest, and its runs opened. The writer deletes runs that a newer manifest does not name."""
        for _ in range(100):
            with self._lock, contextlib.suppress(FileNotFoundError):
                self._refresh()
                if self._manifest is not None:
                    return self._manifest, [self._files[run.file] for run in self._manifest.runs]
            if not (self.folder / MANIFEST).exists():
                break
        raise LogUnavailable(f"there are no runs in {self.folder} that can be read")

    def _refresh(self) -> None:
        stat = os.stat(self.folder / MANIFEST)
        seen = (stat.st_ino, stat.st_mtime_ns)
        if seen != self._seen:
            manifest = Manifest.read(self.folder)
            if manifest is not None:
                self._open(manifest)
            self._seen, self._manifest = seen, manifest

    def _open(self, manifest: Manifest) -> None:
        self._files = {
            run.file: self._files.get(run.file) or RunFile(self.folder / run.file, manifest.layout, run.checksums)
            for run in manifest.runs
        }


class Runs(RunReader):
    """The writer of the runs in a folder, which it makes if need be; it reads them, too. A context manager.

    `identity` and `key` tell rows apart; of those alike, the one with the largest `order` counts, and among equals the
    one that was appended last. These columns are 64-bit integers, never null; those of the identity may be text, too.

    `superseded` says which of some rows others among them make needless; they are left out whenever runs are merged.
    `forget` says which are as good as none; they are left out when all runs are merged into one. Until then they stand
    for what they replaced.

    A second writer takes the folder over: whatever the first still appends is an error, `LogUnavailable`.
    """

    def __init__(
        self,
        folder: str | Path,
        schema: pa.Schema,
        *,
        key: str,
        order: str,
        identity: Sequence[str] = (),
        parts: int = 16,
        superseded: Forget | None = None,
        forget: Forget | None = None,
        merging: bool = True,
    ) -> None:
        super().__init__(folder)
        self._superseded = [superseded] if superseded else []
        self._forget = [forget] if forget else []
        self.layout = Layout(schema, key, tuple(identity), order, parts)
        _check(self.layout)
        self._writer = uuid.uuid4().hex
        self._writing = threading.Lock()
        self._merge_lock = threading.Lock()
        self._due = threading.Event()
        self._closed = False
        self._take_over()
        self._merger: threading.Thread | None = None
        if merging:
            self._merger = threading.Thread(target=self._merge_when_due, name="tidings-runs", daemon=True)
            self._merger.start()

    def append(self, rows: pa.Table, note: Any = None) -> None:
        """Add rows, and change the note, if one is given, in the same step."""
        rows = rows.select(self.layout.schema.names).cast(self.layout.schema)
        with self._writing:
            made: list[SortedRun] = []
            if len(rows):
                made = [self._write([rows], len(rows))]
            manifest = self._latest()
            self._publish(replace(manifest, runs=(*manifest.runs, *made), note=manifest.note if note is None else note))
        self._due.set()

    def rebuild(self, tables: Iterable[pa.Table], note: Any = None) -> None:
        """Put these rows in the place of all that are there. They are held in memory a part at a time."""
        with self._merge_lock, self._writing:
            runs, pending = [], self.layout.schema.empty_table()
            for table in tables:
                pending = pa.concat_tables([pending, table.select(self.layout.schema.names).cast(self.layout.schema)])
                if len(pending) >= REBUILT_RUN_ROWS:
                    runs.append(self._write([pending], len(pending)))
                    pending = self.layout.schema.empty_table()
            if len(pending):
                runs.append(self._write([pending], len(pending)))
            self._publish(replace(self._latest(), runs=tuple(runs), note=note))
        self._due.set()

    def merge(self) -> bool:
        """Merge once what is due to be merged; False if nothing is. It happens by itself in the background."""
        with self._merge_lock:
            due = plan_merge([run.rows for run in self._latest().runs])
            if due is None:
                return False
            manifest, files = self._current()
            old = manifest.runs[due:]
            size = sum(run.rows for run in old)
            name = _new_name()
            needless = self._superseded + ([] if due else self._forget)
            merged = merge_runs(self.folder / name, self.layout, files[due:], size, needless)
            with self._writing:
                now = self._latest()
                # Others may have been appended behind these meanwhile, and none before them.
                rest = now.runs[due + len(old) :]
                self._publish(replace(now, runs=(*now.runs[:due], SortedRun(name, *merged), *rest)))
            return True

    def close(self) -> None:
        """Stop merging. What was appended is on the disk."""
        self._closed = True
        self._due.set()
        if self._merger is not None:
            self._merger.join()

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, rows: list[pa.Table], size: int) -> SortedRun:
        name = _new_name()
        return SortedRun(name, *write_run(self.folder / name, self.layout, rows, size))

    def _latest(self) -> Manifest:
        return self._current()[0]

    def _take_over(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            there = Manifest.read(self.folder)
            if there is None or there.layout != self.layout or not self._whole(there):
                there = Manifest(self.layout)
            self._replace(replace(there, writer=self._writer))
            self._sweep(there)

    def _whole(self, manifest: Manifest) -> bool:
        try:
            self._open(manifest)
            RunsSnapshot(manifest, list(self._files.values())).check()
        except (OSError, pa.ArrowException, LogUnavailable) as error:
            logger.warning("the runs in %s are damaged, and count as lost: %s", self.folder, error)
            self._files = {}
            return False
        return True

    def _publish(self, manifest: Manifest) -> None:
        with self._locked():
            there = Manifest.read(self.folder)
            if there is None or there.writer != self._writer:
                raise LogUnavailable(f"another process writes the runs in {self.folder} now, or they were deleted")
            self._replace(manifest)
            self._sweep(manifest, set(there.runs) - set(manifest.runs))

    def _replace(self, manifest: Manifest) -> None:
        draft = self.folder / f"{self._writer}.tmp"
        durable.replace(self.folder / MANIFEST, draft, lambda path: path.write_bytes(manifest.encode()))

    def _sweep(self, manifest: Manifest, gone: Iterable[SortedRun] | None = None) -> None:
        """Delete runs that are merged; with `gone` None, all files that no manifest names, as after a death."""
        if gone is not None:
            names = {run.file for run in gone}
        else:
            named = {run.file for run in manifest.runs}
            names = {path.name for path in self.folder.iterdir() if path.suffix in (".arrow", ".tmp")} - named
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Between a look at the manifest and its replacement no other writer may replace it."""
        with open(self.folder / "lock", "wb") as file:
            self._lock_file(file)
            yield

    def _lock_file(self, file: BinaryIO) -> None:
        waited_until = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > waited_until:
                    raise TimeoutError(
                        f"another process has locked the runs in {self.folder}, and has not gone on for "
                        f"{LOCK_TIMEOUT_S:g} s: if it is stopped, end it"
                    ) from None
                time.sleep(LOCK_INTERVAL_S)

    def _merge_when_due(self) -> None:
        while not self._closed:
            self._due.wait()
            self._due.clear()
            try:
                while not self._closed and self.merge():
                    pass
            except LogUnavailable as error:
                logger.debug("nothing is merged any more: %s", error)
                return
            except OSError as error:
                logger.warning("the runs in %s could not be merged, and will be later: %s", self.folder, error)


def plan_merge(rows: Sequence[int]) -> int | None:
    """Where to begin: the runs from there to the newest are to be merged into one; None if nothing is due.

    Runs are of one size if their numbers of rows have the same logarithm. When there are enough of a size at the end,
    none larger among them, they become one of the next.

    >>> plan_merge([9_000_000, 100, 100, 100]), plan_merge([9_000_000, 100, 100, 100, 100])
    (None, 1)
    """
    sizes = [max(0, int(math.log(max(count, 1) / BASE_ROWS, FANOUT_RUNS))) for count in rows]
    due: int | None = None
    for size in sorted(set(sizes)):
        first = len(sizes)
        while first and sizes[first - 1] <= size:
            first -= 1
        alike = [at for at in range(first, len(sizes)) if sizes[at] == size]
        if len(alike) >= FANOUT_RUNS:
            due = alike[0]
    return due


def _check(layout: Layout) -> None:
    if layout.parts < 1:
        raise InvalidOption(f"runs have one part at least, not {layout.parts}")
    for name in (layout.key, layout.order, *layout.identity):
        at = layout.schema.get_field_index(name)
        text = name in layout.identity
        if at < 0 or layout.schema.field(at).type not in (pa.int64(), *([pa.string()] if text else [])):
            kinds = "64-bit integers or text" if text else "64-bit integers"
            raise InvalidOption(f"column {name!r} of runs must be there, and of {kinds}")


def _new_name() -> str:
    return f"{uuid.uuid4().hex}.arrow"
