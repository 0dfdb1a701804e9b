"""The log of a stream at another address, by `tidings streams move` and by `tidings apply`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.commands import Run, told
from tests.support.subscribers import Seen
from tidings.cluster import Cluster
from tidings.coordination.origins import read_origin
from tidings.flow_status import status
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings.testing import eventually

FED = {"delta.enableChangeDataFeed": "true"}


def publish(cluster: Cluster, *objects: str) -> None:
    with cluster.stream("contacts").producer() as producer:
        for one in objects:
            producer.publish(one, 1)


def table(folder: Path, *ids: int) -> None:
    for id in ids:
        rows = pa.table({"id": pa.array([id], pa.int64())})
        write_deltalake(folder, rows, mode="append", configuration=None if folder.exists() else FED)


def test_a_folder_that_was_moved_is_read_on_while_publishers_run(
    contacts: Run, joined: Cluster, tmp_path: Path
) -> None:
    run, seen = contacts, Seen()
    joined.create_application("cache", ["contacts"], start="earliest")
    with joined.subscribe("cache", seen), joined.publisher(token_interval=0.1, patience=1.0):
        publish(joined, "alice")
        eventually(lambda: [one.object for one in seen.updates] == ["alice"])
        shutil.copytree(tmp_path / "contacts", tmp_path / "copy")
        copied = told(run("streams", "move", "contacts", "--log", "delta:copy").err)
        assert f"is still in delta:{tmp_path}/contacts, too, where producers would go on writing" in copied
        (tmp_path / "contacts").rename(tmp_path / "elsewhere")
        assert run("streams", "move", "contacts", "--log", "delta:elsewhere", "--dry-run").err == (
            "it is the same one (--dry-run)\n"
        )
        done = run("streams", "move", "contacts", "--log", "delta:elsewhere")
        assert (done.code, done.err) == (0, f"stream 'contacts' is read from delta:{tmp_path}/elsewhere\n")
        publish(joined, "bob")
        eventually(lambda: {one.object for one in seen.updates} == {"alice", "bob"}, timeout=60)
        eventually(lambda: all(one.lag == 0 for one in status(joined)))
    # The copy is older than what was read, and there is nothing at the old place that would say so.
    (tmp_path / "elsewhere").rename(tmp_path / "away")
    older = told(run("streams", "move", "contacts", "--log", "delta:copy").err)
    assert "is not the one that was read, or not there" in older
    assert "wait until it is as far; if it is an older copy, make a new stream" in older


def test_a_log_that_is_another_one_is_refused(contacts: Run, joined: Cluster, tmp_path: Path) -> None:
    run = contacts
    known = read_origin(joined.coordination, joined.stream("contacts").definition)
    assert known is not None
    (tmp_path / "contacts").rename(tmp_path / "old")
    joined.coordination.delete("streams", "contacts")
    assert run("streams", "create", "contacts", "--shards", "4", "--log", "delta:new").code == 0
    here = read_origin(joined.coordination, joined.stream("contacts").definition)
    assert here is not None
    assert told(run("streams", "move", "contacts", "--log", "delta:old").err) == (
        f"error: {tmp_path}/old holds log {known['table']} of a stream 'contacts', and this stream is in log "
        f"{here['table']}: move that one"
    )
    assert "no other kind of log" in told(run("streams", "move", "contacts", "--log", "delta-cdf:old").err)
    assert run("streams", "move", "contacts").code == 2
    assert "has no replica 'east'" in told(run("streams", "move", "contacts", "--replica", "east=delta:old").err)


def test_what_was_never_noted_is_noted_by_a_publisher_and_asked_of_the_old_address(
    contacts: Run, joined: Cluster, tmp_path: Path
) -> None:
    run, definition = contacts, joined.stream("contacts").definition
    noted = read_origin(joined.coordination, definition)
    joined.coordination.delete("streams", "contacts", "origin")  # as of a stream that an earlier build has made
    (tmp_path / "contacts").rename(tmp_path / "elsewhere")
    assert "nothing is known yet of the datastore of stream 'contacts'" in told(
        run("streams", "move", "contacts", "--log", "delta:elsewhere").err
    )
    (tmp_path / "elsewhere").rename(tmp_path / "contacts")
    joined.create_application("cache", ["contacts"])
    with joined.publisher():
        eventually(lambda: read_origin(joined.coordination, definition) == noted)
    (tmp_path / "contacts").rename(tmp_path / "elsewhere")
    assert run("streams", "move", "contacts", "--log", "delta:elsewhere").code == 0


def test_apply_changes_addresses_at_which_the_same_table_is(run: Run, joined: Cluster, tmp_path: Path) -> None:
    table(tmp_path / "a" / "shop" / "orders", 1, 2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    table(tmp_path / "other" / "shop" / "orders", 1, 2)

    def apply(log: str, replica: str, *options: str) -> tuple[int, str, list[str]]:
        (tmp_path / "tidings.yml").write_text(
            f"streams:\n  orders:\n    shards: 1\n    log: delta-cdf:{log}/shop/orders\n    options: {{key: [id]}}\n"
            f"    replicas:\n      east: delta-cdf:{replica}/shop/orders\n"
        )
        done = run("apply", "--json", *options)
        return done.code, done.err, [one["detail"] for one in done.json["actions"]] if done.code == 0 else []

    assert apply("a", "b")[0] == 0
    for folder in ("a", "b"):
        (tmp_path / folder).rename(tmp_path / f"{folder}2")
    code, error, _ = apply("other", "other")
    assert (code, [line.partition(" has the id ")[0] for line in error.splitlines()]) == (
        1,
        [
            f"error: tidings.yml:4: streams.orders.log: the table in {tmp_path}/other/shop/orders",
            f"error: tidings.yml:7: streams.orders.replicas.east: the table in {tmp_path}/other/shop/orders",
        ],
    )
    code, error, details = apply("a2", "b2", "--dry-run")
    assert code == 0
    assert details[0].startswith(f"log delta-cdf:{tmp_path}/a/shop/orders → delta-cdf:{tmp_path}/a2/shop/orders, ")
    assert joined.stream("orders").definition.log == f"delta-cdf:{tmp_path}/a/shop/orders"
    assert apply("a2", "b2")[0] == 0
    # The primary is gone, and the replica takes its place; the address of what is gone is not asked any more.
    shutil.rmtree(tmp_path / "a2")
    assert apply("b2", "a2")[0] == 0
    known = joined.stream("orders").definition
    assert known.log == f"delta-cdf:{tmp_path}/b2/shop/orders"
    assert known.replicas == {"east": f"delta-cdf:{tmp_path}/a2/shop/orders"}
    (tmp_path / "b2" / "shop" / "orders").rename(tmp_path / "b2" / "shop" / "others")
    moved = run("streams", "move", "orders", "--log", f"delta-cdf:{tmp_path}/b2/shop/others")
    assert "must still be called 'shop/orders', and not 'shop/others'" in told(moved.err)


@pytest.mark.parametrize("own", [True, False])
def test_an_older_copy_that_was_written_to_is_refused(
    contacts: Run, joined: Cluster, tmp_path: Path, own: bool
) -> None:
    run, seen = contacts, Seen()
    name, place = ("contacts", tmp_path / "contacts") if own else ("orders", tmp_path / "shop" / "orders")
    copy = tmp_path / "copy" / "shop" / "orders"
    if not own:
        table(place, 0)
        joined.create_stream(name, 1, f"delta-cdf:{place}", options={"key": ["id"]})
    definition = joined.stream(name).definition
    copied = replace(definition, log=f"{definition.log.partition(':')[0]}:{copy}")

    def write(to: StreamDefinition, *numbers: int) -> None:
        for number in numbers:
            if own:
                with Stream(to).producer() as producer:
                    producer.publish(f"o/{number}", 1)
            else:
                table(Path(to.log.partition(":")[2]), number)

    def heard() -> set[int]:
        return {int(one.object.rpartition("/")[2]) for one in seen.updates}

    joined.create_application("cache", [name], start="earliest")
    with joined.subscribe("cache", seen), joined.publisher(token_interval=0.1):
        write(definition, 1, 2)
        eventually(lambda: {1, 2} <= heard())
        shutil.copytree(place, copy)
        write(definition, 3, 4)
        eventually(lambda: {1, 2, 3, 4} <= heard())
        version = max(int(path.stem) for path in (place / "_delta_log").glob("*.json"))
        eventually(lambda: (read_origin(joined.coordination, definition) or {}).get("version", 0) >= version)
    place.rename(tmp_path / "away")
    other = f"version {version} of the table in {copy} is not the one that was read, or not there"
    assert other in told(run("streams", "move", name, "--log", copied.log).err)
    write(copied, *range(100, 110))
    assert other in told(run("streams", "move", name, "--log", copied.log).err)
    shutil.rmtree(copy)
    (tmp_path / "away").rename(copy)
    assert run("streams", "move", name, "--log", copied.log).code == 0
