"""What delta-rs does to a Delta table, on the disk before anybody sees it.

delta-rs syncs nothing: after a power loss its commits and checkpoints may be there by name and without a byte. So it
works on a stand-in for the table, a folder of links to what it needs. What it makes there is synced and only then
linked into the table.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tidings.storage import durable
from tidings.storage.delta_commits import CHECKSUM, HINT, Action, Commits
from tidings.storage.delta_rs import containing_panics

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

PREFIX = "_stand-in-"  # no Delta reader looks below a name that begins with an underscore
ABANDONED_S = 3600.0  # a stand-in of this age is that of a process that died


def create(folder: Path, schema: pa.Schema, **options: Any) -> None:
    """Make a table; nothing changes if there is one."""
    from deltalake import DeltaTable

    commits = Commits(folder)
    if commits.newest() >= 0:
        return
    durable.make_folder(commits.folder)
    with containing_panics(folder), _stand_in(folder) as place:
        DeltaTable.create(place, schema, raise_if_key_not_exists=False, **options)
        commits.put(0, Commits(place).read(0) or [])


def write(folder: Path, change: Callable[[DeltaTable], object]) -> bool:
    """Carry out a change that makes one commit; False, and nothing changed, if another writer came first."""
    with _stand_in(folder, files=True) as place:
        version, actions = _changed(folder, place, change)
        return Commits(folder).put(version, actions) is not None


def rewrite(folder: Path, change: Callable[[DeltaTable], object]) -> bool:
    """Carry out a change that puts files in the place of others, whatever is added meanwhile.

    False, and nothing changed, if there was nothing to do, or one of those others is not there any more.
    """
    commits = Commits(folder)
    with _stand_in(folder, files=True) as place:
        version, actions = _changed(folder, place, change)
        replaced = {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
        while replaced:
            if commits.put(version, actions):
                return True
            meanwhile = commits.read(version)
            if meanwhile is None or any(_conflicts(action, replaced) for action in meanwhile):
                break
            version += 1
    return False


def _changed(folder: Path, place: Path, change: Callable[[DeltaTable], object]) -> tuple[int, list[Action]]:
    """Have a change made to the stand-in; the version of its commit and what that says. Its files are the table's."""
    from deltalake import DeltaTable

    with containing_panics(folder):
        table = DeltaTable(place)
        version = table.version() + 1
        change(table)
    actions = Commits(place).read(version) or []
    for action in actions:
        if add := action.get("add"):
            _take(place / unquote(add["path"]), folder / unquote(add["path"]))
    return version, actions


def _conflicts(action: Action, replaced: set[str]) -> bool:
    removed = unquote(action["remove"]["path"]) if "remove" in action else None
    return "metaData" in action or "protocol" in action or removed in replaced


def checkpoint(folder: Path) -> None:
    """Write a checkpoint, and once it is on the disk delete the commits that it makes needless."""
    from deltalake import DeltaTable

    commits = Commits(folder)
    with containing_panics(folder), _stand_in(folder) as place:
        table = DeltaTable(place)
        version = table.version()
        table.create_checkpoint()
        made = place / "_delta_log"
        for path in made.glob(f"{version:020}.checkpoint*.parquet"):
            _take(path, commits.folder / path.name)
        if commits.checkpointed() < version:
            hint = json.loads((made / HINT).read_bytes())
            # Of the one that is there, whoever made it.
            hint["tags"] = {CHECKSUM: commits.checkpoint_checksum(version)}
            draft = commits.folder / f".{place.name}.tmp"
            durable.replace(commits.hint, draft, lambda path: path.write_text(json.dumps(hint)))
    with containing_panics(folder):
        DeltaTable(folder).cleanup_metadata()


def vacuum(folder: Path, grace_hours: int, *, full: bool = False) -> None:
    """Delete the files that no version has named for this long; with `full`, those that none ever named, too.

    delta-rs finds them, by this machine's clock. It would note the deletion in two commits that it does not sync.
    """
    from deltalake import DeltaTable

    Commits(folder).check()
    with containing_panics(folder):
        table = DeltaTable(folder)
        options: dict[str, Any] = {"dry_run": True, "enforce_retention_duration": False}
        dead = table.vacuum(grace_hours, **options)
        unnamed = set(table.vacuum(grace_hours, **options, full=True)).difference(dead) if full else set()
    oldest = durable.time_in(folder) - grace_hours * 3600
    for name in (*dead, *unnamed):
        path = folder / unquote(name)
        with contextlib.suppress(FileNotFoundError):  # others do the same
            if name not in unnamed or path.stat().st_mtime <= oldest:  # else it may be named this moment
                path.unlink()


@contextlib.contextmanager
def _stand_in(folder: Path, *, files: bool = False) -> Iterator[Path]:
    """A folder with the table's log in it, from its last checkpoint on, and with its files, if they are needed."""
    Commits(folder).check()
    for old in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):
            if old.stat().st_mtime < durable.time_in(folder) - ABANDONED_S:
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=PREFIX) as name:
        place = Path(name)
        log = place / "_delta_log"
        log.mkdir()
        with contextlib.suppress(FileNotFoundError):  # as it is now, though another writer makes a checkpoint meanwhile
            shutil.copyfile(Commits(folder).hint, log / HINT)
        for path in Commits(folder).since(Commits(place).checkpointed()):
            os.symlink(path, log / path.name)
        if files:
            for path in folder.iterdir():
                if not path.name.startswith(("_", ".")):
                    os.symlink(path, place / path.name)
        yield place


def _take(made: Path, target: Path) -> None:
    """Sync a file of the stand-in, and give it its name in the table, both of which are then on the disk.

    A folder that the table had before is one and the same in the stand-in.
    """
    durable.sync_file(made)
    if made.resolve() != target.resolve():
        durable.make_folder(target.parent)
        with contextlib.suppress(FileExistsError):
            os.link(made, target)
    durable.sync_folder(target.parent)
