"""Families of streams on the command line and in a `tidings.yml`."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import Run, told
from tidings.cluster import Cluster

SPEC = """\
streams:
  shop:
    shards: 2
    logs: {east: delta:east, west: delta:west}
applications:
  cache: {streams: [shop], start: {shop.east: {0: 0}}}
"""


def actions(run: Run, *options: str) -> list[tuple[str, str, str]]:
    done = run("apply", "--json", *options)
    assert done.code == 0, done.err
    return [(one["action"], one["name"], one["detail"]) for one in done.json["actions"]]


def test_a_family_is_made_shown_and_dropped(run: Run, joined: Cluster, tmp_path: Path) -> None:
    made = run("streams", "create", "shop", "--shards", "2", "--log", "east=delta:e", "--log", "west=delta:w")
    assert made.err.splitlines() == [
        f"stream 'shop.east' has 2 shards in delta:{tmp_path}/e",
        f"stream 'shop.west' has 2 shards in delta:{tmp_path}/w",
    ]
    assert [line.split()[0] for line in run("streams", "describe", "shop").out.splitlines()[1:]] == [
        "shop.east",
        "shop.west",
    ]
    assert run("streams", "describe", "shop.east", "--json").json["family"] == "shop"
    assert run("applications", "create", "cache", "--stream", "shop").code == 0
    flows = run("flows", "list", "--application", "cache", "--stream", "shop", "--json").json
    assert [(one["stream"], one["shard"]) for one in flows] == [
        (stream, shard) for stream in ("shop.east", "shop.west") for shard in (0, 1)
    ]
    assert run("flows", "describe", "cache/shop.east/1").code == 0
    assert "is a family of streams" in told(run("streams", "tail", "shop", "--no-follow").err)
    assert "is used by application 'cache'" in run("streams", "drop", "shop", "--yes").err
    dropped = run("streams", "drop", "shop", "--yes", "--force")
    assert dropped.err == f"shop.east, shop.west are dropped; what is in delta:{tmp_path}/e, delta:{tmp_path}/w stays\n"
    assert joined.streams() == []


def test_the_logs_of_a_family_have_names(run: Run, joined: Cluster) -> None:
    wrong = run("streams", "create", "shop", "--log", "east=delta:e", "--log", "delta:w")
    assert wrong.code == 2
    assert "'delta:w' is one of several logs, and has no name: write NAME=SCHEME:PLACE" in wrong.err
    twice = run("streams", "create", "shop", "--log", "east=delta:e", "--log", "east=delta:w")
    assert (twice.code, "'east' is given twice" in twice.err) == (2, True)


def test_apply_makes_a_family_adds_a_server_to_it_and_tells_of_one_that_is_left(
    run: Run, joined: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "tidings.yml"
    file.write_text(SPEC)
    assert [one[:2] for one in actions(run)] == [("create", "shop.east"), ("create", "shop.west"), ("create", "cache")]
    assert {one[0] for one in actions(run)} == {"unchanged"}
    file.write_text(SPEC.replace("west: delta:west", "north: delta:north"))
    planned = [
        ("unchanged", "shop.east", ""),
        ("create", "shop.north", f"2 shards in delta:{tmp_path}/north"),
        ("unchanged", "shop.west", "not in the file: `tidings streams drop shop.west`"),
        ("unchanged", "cache", ""),
    ]
    assert actions(run, "--dry-run") == planned
    assert actions(run) == planned
    assert [one.name for one in joined.streams_named("shop")] == ["shop.east", "shop.north", "shop.west"]


def test_apply_tells_what_is_wrong_with_a_family(run: Run, joined: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "tidings.yml"

    def mistakes(text: str) -> list[str]:
        file.write_text(text)
        return [line.removeprefix("error: tidings.yml:") for line in run("apply").err.splitlines()]

    assert mistakes("streams:\n  shop: {logs: {}}\n") == [
        "2: streams.shop.logs: must name one at least, as in {east: 'postgres:…'}"
    ]
    assert mistakes("streams:\n  shop: {log: 'delta:a', logs: {east: 'delta:b'}}\n") == [
        "2: streams.shop.log: is there beside `logs`: keep one of them"
    ]
    assert mistakes(
        "streams:\n  shop:\n    logs:\n      east: delta:a\n      e/: delta:b\n      west: delta:b\n      up: delta:b\n"
        "    replicas: {x: 'delta:c'}\n  shop.east: {log: 'delta:d'}\n"
    ) == [
        "4: streams.shop.logs.east: makes stream 'shop.east', which this file defines by itself, too",
        "5: streams.shop.logs.e/: 'shop.e/' is no name for a stream: use 1 to 128 letters, digits, '.', '_' and '-'",
        f"7: streams.shop.logs.up: delta:{tmp_path}/b belongs to stream 'shop.west' already: each stream has its own",
        "8: streams.shop.replicas: is for a stream with one `log`; this one has `logs`",
    ]
    joined.create_stream("shop", 1, f"delta:{tmp_path}/shop")
    assert mistakes(SPEC)[:1] == ["2: streams.shop: cannot have `logs`: there is a stream 'shop' with one `log`"]
    joined.drop_stream("shop")
    assert mistakes(SPEC.replace("[shop]", "[shop, shop.west]")) == [
        "6: applications.cache.streams: names stream 'shop.west' twice, by itself and by its family"
    ]
    assert mistakes(SPEC.replace("shop.east: {0", "shop.north: {0")) == [
        "6: applications.cache.start.shop.north: stream 'shop.north' is none of the application's"
    ]
    joined.create_family("shop", {"east": f"delta:{tmp_path}/east"}, 2)
    assert mistakes("streams:\n  shop: {log: 'delta:other'}\n") == [
        "2: streams.shop: cannot be one stream: it is a family (shop.east)"
    ]
