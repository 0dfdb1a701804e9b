"""`tidings apply`: a `tidings.yml` is compared with the cluster, and carried out."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import tidings.plugins
from tests.support.commands import Run, told, with_entry_points
from tidings.cli.apply_plan import Action, carry_out, plan
from tidings.cluster import Cluster
from tidings.config.spec import load
from tidings.errors import InvalidConfig, LogUnavailable, NotTakenBack
from tidings.stream_definition import StreamDefinition
from tidings_connectors.delta.log import DeltaLog

SPEC = """\
streams:
  contacts: {shards: 4, log: delta:data/contacts}
  clicks: {shards: 2, log: delta:data/clicks, retention: {age: P1D}}
applications:
  mailer:
    streams: [contacts]
    start: {contacts: {3: 0}}
"""


def test_apply_makes_what_the_file_says_and_does_nothing_the_second_time(
    run: Run, joined: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "tidings.yml").write_text(SPEC)
    done = run("apply", "--json")
    assert (done.code, done.err) == (0, "")
    assert [(one["action"], one["kind"], one["name"]) for one in done.json["actions"]] == [
        ("create", "stream", "contacts"),
        ("create", "stream", "clicks"),
        ("create", "application", "mailer"),
    ]
    assert [stream.definition.log for stream in joined.streams()] == [
        f"delta:{tmp_path}/data/clicks",
        f"delta:{tmp_path}/data/contacts",
    ]
    mailer = joined.coordination.read("applications", "mailer")
    assert mailer == {
        "name": "mailer",
        "streams": ["contacts"],
        "filter": None,
        "start": {"contacts": {"3": 0}},
        "mode": "reliable",
        "max_age": None,
        "balance": "random",
        "on_failure": "park",
    }
    assert {one["action"] for one in run("apply", "--json").json["actions"]} == {"unchanged"}
    again = run("apply")
    assert [line.split()[0] for line in again.out.splitlines()] == ["ACTION", *["unchanged"] * 3]
    assert again.err == "0 done\n"


def test_one_shard_is_called_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text("streams: {contacts: {shards: 1, log: delta:contacts}}\n")
    done = run("apply", "--json")
    assert [one["detail"] for one in done.json["actions"]] == [f"1 shard in delta:{tmp_path}/contacts"]
    (tmp_path / "tidings.yml").write_text("streams: {contacts: {shards: 2, log: delta:contacts}}\n")
    assert "the stream has 1 shard; that cannot become 2" in run("apply").err


def retained(cluster: Cluster, stream: str) -> tuple[int | None, int | None] | None:
    """The seconds and bytes that maintenance keeps."""
    log = cluster.stream(stream).log
    assert isinstance(log, DeltaLog)
    return log._table.refresh().retention


def test_apply_changes_what_may_change(run: Run, joined: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text(SPEC)
    assert run("apply").code == 0
    (tmp_path / "tidings.yml").write_text(SPEC.replace("P1D", "P2D").replace("[contacts]", "[contacts, clicks]"))
    done = {one["name"]: (one["action"], one["detail"]) for one in run("apply", "--json").json["actions"]}
    assert done == {
        "contacts": ("unchanged", ""),
        "clicks": ("change", "seconds kept 86,400 → 172,800"),
        "mailer": ("change", "streams contacts → contacts, clicks"),
    }
    assert joined.stream("clicks").definition.retention_seconds == 2 * 86400
    assert retained(joined, "clicks") == (2 * 86400, None), "those who write it go by that"
    mailer = joined.coordination.read("applications", "mailer")
    assert mailer
    assert mailer["streams"] == ["contacts", "clicks"]


def test_a_dry_run_prints_the_plan_and_touches_nothing(run: Run, joined: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text(SPEC)
    there = sorted(tmp_path.iterdir())
    result = run("apply", "--dry-run")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == ["ACTION", "create", "create", "create"]
    assert result.err == "3 to do; nothing was done (--dry-run)\n"
    assert sorted(tmp_path.iterdir()) == sorted({*there, tmp_path / "stdin"})
    assert joined.coordination.children() == []


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            SPEC.replace("shards: 4", "shards: 5"),
            "2: streams.contacts.shards: the stream has 4 shards; that cannot become 5",
        ),
        (
            SPEC.replace("data/contacts", "data/others"),
            "2: streams.contacts.log: the log of stream 'contacts' is not to be found in {folder}/data/others",
        ),
        (
            "streams:\n  new: {shards: 4, log: delta:data/new}\n  b: {log: delta:data/contacts}\n",
            "3: streams.b.log: delta:{folder}/data/contacts belongs to stream 'contacts' already: each stream has its",
        ),
        (
            "streams:\n  new: {log: delta:data/new}\n  b: {log: tape:x}\n",
            "3: streams.b.log: no log 'tape' is installed (installed: delta, delta-cdf",
        ),
        (
            "streams:\n  new: {log: delta:data/new}\napplications:\n  x: {streams: [nope]}\n",
            "4: applications.x.streams.0: there is no stream 'nope', neither in this file nor in the cluster",
        ),
        (
            "streams: {new: {log: delta:data/new}}\napplications:\n  x: {streams: [clicks], start: {clicks: {2: 7}}}\n",
            "3: applications.x.start.clicks.2: stream 'clicks' has shards 0 to 1, not 2",
        ),
        (
            "streams:\n  new: {log: delta:data/new}\napplications:\n  x: {streams: [new], balance: fair}\n",
            "4: applications.x.balance: no balancer 'fair' is installed (installed: none); random and zookeeper are",
        ),
        (
            "streams:\n  new: {log: delta:data/new}\napplications:\n  x: {streams: [new], on_failure: 'stream:nope'}\n",
            "4: applications.x.on_failure: there is no stream 'nope', neither in this file nor in the cluster",
        ),
        (
            "streams:\n  new: {log: delta:data/new}\napplications:\n  x: {streams: [new], on_failure: 'stream:new'}\n",
            "4: applications.x.on_failure: an application cannot keep what its handler fails at in 'new', which it",
        ),
        (
            "streams:\n  new: {log: delta:data/new}\npipelines:\n  p: {input: new, stage: nope, output: clicks}\n",
            "4: pipelines.p.stage: no stage 'nope' is installed (installed: ",
        ),
    ],
)
def test_what_is_at_odds_with_the_cluster_is_told_before_anything_is_written(
    run: Run, tmp_path: Path, text: str, mistake: str
) -> None:
    (tmp_path / "tidings.yml").write_text(SPEC)
    assert run("apply").code == 0
    (tmp_path / "tidings.yml").write_text(text)
    result = run("apply")
    assert (result.code, result.out) == (1, "")
    assert f"error: tidings.yml:{mistake.format(folder=tmp_path)}" in result.err
    assert not (tmp_path / "data" / "new").exists()
    assert [one["name"] for one in run("streams", "list", "--json").json] == ["clicks", "contacts"]


def test_a_folder_that_holds_another_stream_is_found_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    assert run("streams", "create", "old", "--log", "delta:data/old").code == 0
    assert run("streams", "drop", "old", "--yes").code == 0
    (tmp_path / "tidings.yml").write_text("streams:\n  new: {log: delta:data/new}\n  b: {log: delta:data/old}\n")
    result = run("apply")
    assert result.code == 1
    assert f"tidings.yml:3: streams.b.log: {tmp_path}/data/old holds stream 'old' with 16 shards" in result.err
    assert not (tmp_path / "data" / "new").exists()


def test_a_plan_that_was_overtaken_is_not_carried_out(run: Run, joined: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "tidings.yml"
    path.write_text(SPEC)
    assert run("apply").code == 0
    path.write_text(SPEC.replace("P1D", "P2D"))
    (change,) = (action for action in plan(load(path), joined) if action.verb == "change")
    path.write_text(SPEC.replace("P1D", "P3D"))
    assert run("apply").code == 0
    with pytest.raises(InvalidConfig, match="stream 'clicks' was changed since the plan was made: apply again"):
        carry_out([change], joined)
    assert joined.stream("clicks").definition.retention_seconds == 3 * 86400
    assert retained(joined, "clicks") == (3 * 86400, None)


def test_what_is_not_in_the_file_stays_as_it_is(contacts: Run, tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text("streams:\n  clicks: {log: delta:clicks}\n")
    assert contacts("apply").code == 0
    assert [one["name"] for one in contacts("streams", "list", "--json").json] == ["clicks", "contacts"]


def test_pipelines_are_checked_only(contacts: Run, tmp_path: Path) -> None:
    text = (
        "streams:\n  copies: {log: delta:copies}\npipelines:\n"
        "  p: {input: [contacts], stage: reshard, options: {shards: 16}, output: copies}\n"
    )
    (tmp_path / "tidings.yml").write_text(text)
    result = contacts("apply")
    assert result.code == 0, result.err
    assert result.out.splitlines()[2].split("  ")[0] == "checked"
    assert result.err == "1 done\npipelines were checked only; `tidings run` runs them\n"
    (tmp_path / "tidings.yml").write_text(text.replace("shards: 16", "shards: many"))
    told = "tidings.yml:4: pipelines.p.options.shards: must be a whole number, not 'many'"
    assert told in contacts("apply").err
    (tmp_path / "tidings.yml").write_text(text.replace("shards: 16", "shards: 15"))
    assert "tidings.yml:4: pipelines.p: stream 'copies' has 16 shards, not 15" in contacts("apply").err


def test_a_stage_that_is_none_is_told(contacts: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = EntryPoint("copy", "builtins:dict", "tidings.stages")
    monkeypatch.setattr(tidings.plugins, "entry_points", with_entry_points(stage))
    (tmp_path / "tidings.yml").write_text("pipelines:\n  p: {input: [contacts], stage: copy}\n")
    told = (
        "tidings.yml:2: pipelines.p.stage: stage 'copy' is <class 'dict'>, which is no subclass of tidings.stages.Stage"
    )
    assert told in contacts("apply").err


def test_the_file_names_the_cluster_unless_the_environment_or_an_option_does(
    run: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tidings.yml").write_text(f"zookeeper: {address}-file\nstreams:\n  a: {{log: delta:a}}\n")
    option = ["--zookeeper", f"{address}-option"]
    assert run("apply", "--dry-run", "--json", *option).json["zookeeper"] == f"{address}-option"
    assert run("apply", "--dry-run", "--json").json["zookeeper"] == address
    monkeypatch.delenv("TIDINGS_ZOOKEEPER")
    assert run("apply", "--dry-run", "--json").json["zookeeper"] == f"{address}-file"


@pytest.mark.parametrize("command", [("apply", "--dry-run"), ("run", "--dry-run")])
def test_credentials_do_not_go_where_a_file_says_that_was_only_found_above(
    run: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.delenv("TIDINGS_ZOOKEEPER")
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_CREDENTIALS", "user:secret")
    (tmp_path / "tidings.yml").write_text(
        f"zookeeper: {address}\nstreams: {{a: {{log: delta:a}}}}\npipelines: {{p: {{input: a, stage: latest}}}}\n"
    )
    refusal = f"our credentials are not sent to {address}, since {tmp_path}/tidings.yml was found in a "
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert refusal in run(*command).err
    for named in (("../tidings.yml",), ("--zookeeper", address)):
        assert refusal not in run(*command, *named).err
    monkeypatch.chdir(tmp_path)
    assert refusal not in run(*command).err
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.delenv("TIDINGS_ZOOKEEPER_CREDENTIALS")
    assert refusal not in run(*command).err


def test_a_broken_file_is_told_without_a_cluster(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", "127.0.0.1:1/nobody")
    (tmp_path / "tidings.yml").write_text("name: 3\nstreams: [\n")
    result = run("apply")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: tidings.yml:3:1: broken YAML: ")
    (tmp_path / "tidings.yml").write_text("name: 3\nother: 1\n")
    assert [line[:22] for line in run("apply").err.splitlines()] == ["error: tidings.yml:1: ", "error: tidings.yml:2: "]
    (tmp_path / "tidings.yaml").touch()
    assert "has both tidings.yml and tidings.yaml" in run("apply").err


def test_applications_of_a_file_are_those_of_the_command_line(small: Cluster, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tidings.yml"
    file.write_text("applications:\n  cache: {streams: [contacts], filter: kind = foo, start: earliest}\n")
    applied = run("apply")
    assert applied.code == 0
    assert applied.err.startswith("warning: the filter of application 'cache': `kind = foo` holds for no update")
    options = ("--filter", "kind = foo", "--start", "earliest")
    assert run("applications", "create", "cache", "--stream", "contacts", *options).code == 0, "it is the same"
    assert run("apply").err.endswith("0 done\n")


def test_an_application_is_applied_beside_a_subscriber_that_was_there_first(
    small: Cluster, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "tidings.yml").write_text("applications:\n  cache: {streams: [contacts]}\n")
    small.coordination.create({}, "applications", "cache", "subscribers", "one")
    assert run("apply").code == 0
    assert small.application("cache").streams == ("contacts",)


def test_a_file_with_a_filter_that_does_not_parse_is_told_with_its_line(contacts: Run, tmp_path: Path) -> None:
    file = tmp_path / "tidings.yml"
    file.write_text("applications:\n  cache:\n    streams: [contacts]\n    filter: a or\n")
    applied = contacts("apply")
    assert applied.code == 1
    message, text, caret = applied.err.splitlines()
    assert message.startswith("error: tidings.yml:4: applications.cache.filter: column 3: ")
    assert (text, caret) == ("error:   a or", "error:     ^")
    file.write_text("applications:\n  cache: {streams: [contacts], max_age: PT1M}\n")
    assert told(contacts("apply").err).endswith("max_age: is for mode: realtime; reliable sends every update")


@pytest.mark.parametrize(
    ("log", "options", "changed", "name"),
    [
        ("postgres:postgresql://tail@db/shop", {"publication": "p"}, {"publication": "q", "shard": "shop"}, "shard"),
        ("postgres:postgresql://tail@db/shop", {"publication": "p", "object": "{key}"}, {"publication": "p"}, "object"),
        ("postgres:postgresql://tail@db/shop", {"publication": "p"}, {"publication": "p", "slot": "other"}, "slot"),
        ("mysql:mysql://tail@db/shop", {"tables": ["a.b"]}, {"tables": ["a.b"], "domain": 7}, "domain"),
        ("delta-cdf:/data/orders", {"key": ["id"]}, {"key": ["id", "at"]}, "key"),
    ],
)
def test_what_decides_where_updates_are_cannot_be_changed(
    run: Run, joined: Cluster, tmp_path: Path, log: str, options: dict[str, Any], changed: dict[str, Any], name: str
) -> None:
    known = StreamDefinition("shop", 4, log, options=options)
    joined.coordination.create(known.to_json(), "streams", "shop")
    (tmp_path / "tidings.yml").write_text(
        json.dumps({"streams": {"shop": {"shards": 4, "log": log, "options": changed}}})
    )
    result = run("apply", "--dry-run")
    assert result.code == 1
    assert f"'{name}' decides where updates are" in result.err
    assert "make a new stream" in result.err


def test_an_option_that_is_written_out_as_it_is_anyway_is_no_change_of_places(
    run: Run, joined: Cluster, tmp_path: Path
) -> None:
    log = "postgres:postgresql://tail@db/shop"
    known = StreamDefinition("shop", 4, log, options={"publication": "p", "keys": {"public.a": ["id"]}})
    joined.coordination.create(known.to_json(), "streams", "shop")
    options = {
        "publication": "p",
        "object": "{schema}.{table}/{key}",
        "slot": "tidings_shop",
        "keys": {"public.a": ["id"], "public.b": ["id"]},
    }
    (tmp_path / "tidings.yml").write_text(
        json.dumps({"streams": {"shop": {"shards": 4, "log": log, "options": options}}})
    )
    assert "does not answer" in told(run("apply", "--dry-run").err), "and that is all"


WRONG_LOGS = """\
streams:
  new: {log: delta:data/new}
  told: {log: delta:data/told, options: {x: 1, y: 2}}
  bucket: {log: "delta:s3://bucket/stream"}
  taken: {log: delta:data/taken}
  table: {log: delta-cdf:data/table, options: {key: [id]}}
  options: {log: "mysql:mysql://tail@127.0.0.1:1/shop", options: {tables: [item], tabels: 1}}
  server: {log: "mysql:mysql://tail@127.0.0.1:1/shop", options: {tables: [shop.item]}}
  database: {log: "postgres:postgresql://tail@127.0.0.1:1/shop", options: {publication: p}}
"""


@pytest.mark.parametrize("command", [("apply",), ("apply", "--dry-run")])
def test_all_that_is_wrong_with_logs_is_told_at_once_and_before_anything_is_written(
    run: Run, joined: Cluster, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "taken").write_text("no folder")
    (tmp_path / "tidings.yml").write_text(WRONG_LOGS)
    result = run(*command)
    assert (result.code, result.out) == (1, "")
    words = [
        "3: streams.told.options.x: a log of ours takes no options",
        "3: streams.told.options.y: a log of ours takes no options",
        "4: streams.bucket.log: a Delta log lives on a file system",
        "5: streams.taken.log: ",
        "6: streams.table.log: ",
        "7: streams.options.options.tabels: stream 'options' has an option 'tabels', which a log of MariaDB does not",
        "7: streams.options.options.tables: option 'tables' of stream 'options' cannot be used: 'item' is no table",
        "8: streams.server.log: MariaDB at 127.0.0.1:1 cannot be reached",
        "9: streams.database.log: PostgreSQL at ",
    ]
    lines = [line.removeprefix("error: tidings.yml:") for line in result.err.splitlines()]
    assert [line[: len(word)] for line, word in zip(lines, words, strict=True)] == words
    assert joined.streams() == []
    assert [one.name for one in (tmp_path / "data").iterdir()] == ["taken"]


def test_options_that_are_to_change_are_checked_before_anything_is_written(
    run: Run, joined: Cluster, tmp_path: Path
) -> None:
    log = "mysql:mysql://tail@127.0.0.1:1/shop"
    joined.coordination.create(StreamDefinition("b", 16, log, options={"tables": ["a.b"]}).to_json(), "streams", "b")
    text = f'streams:\n  new: {{log: delta:data/new}}\n  b: {{log: "{log}", options: {{tables: [a.b, a.c]}}}}\n'
    (tmp_path / "tidings.yml").write_text(text)
    for command in (("apply", "--dry-run"), ("apply",)):
        assert "tidings.yml:3: streams.b.log: MariaDB at 127.0.0.1:1 cannot be reached" in told(run(*command).err)
    assert not (tmp_path / "data").exists()


def overtaken(path: Path, cluster: Cluster) -> list[Action]:
    """A plan that makes streams and an application, and changes others; the last stream cannot be made any more."""
    path.write_text(SPEC)
    carry_out(plan(load(path), cluster), cluster)
    later = SPEC.replace("P1D", "P2D").replace("{3: 0}", "{3: 1}")
    later = later.replace("streams:\n", "streams:\n  new: {log: delta:data/new}\n  old: {log: delta:data/old}\n", 1)
    path.write_text(later + "  other: {streams: [new]}\n")
    cluster.create_stream("old", 16, f"delta:{path.parent}/data/old")
    cluster.drop_stream("old")
    actions = plan(load(path), cluster)
    last = StreamDefinition("last", 1, f"delta:{path.parent}/data/last")
    (path.parent / "data" / "last").write_text("no folder")
    return [*actions, Action("stream", "last", "create", after=last.to_json())]


def test_what_was_made_is_taken_back_when_a_later_step_fails(joined: Cluster, tmp_path: Path) -> None:
    actions = overtaken(tmp_path / "tidings.yml", joined)
    with pytest.raises(LogUnavailable, match=r"data/last"):
        carry_out(actions, joined)
    assert [one.name for one in joined.streams()] == ["clicks", "contacts"]
    assert joined.stream("clicks").definition.retention_seconds == 86400
    assert retained(joined, "clicks") == (86400, None)
    (mailer,) = joined.applications()
    assert mailer.to_json()["start"] == {"contacts": {"3": 0}}
    assert not (tmp_path / "data" / "new").exists()
    assert (tmp_path / "data" / "old").exists(), "which was there before"


def test_what_cannot_be_taken_back_is_told(joined: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: DeltaLog) -> None:
        raise LogUnavailable("the disk is gone")

    actions = overtaken(tmp_path / "tidings.yml", joined)
    monkeypatch.setattr(DeltaLog, "destroy", refuses)
    stays = f"what was made in delta:{tmp_path}/data/new could not be taken back: the disk is gone"
    with pytest.raises(NotTakenBack, match=rf"data/last.*; and {stays}$"):
        carry_out(actions, joined)
    assert [one.name for one in joined.streams()] == ["clicks", "contacts"]


def test_mistakes_of_all_kinds_are_told_at_once(run: Run, joined: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text(
        "streams:\n"
        "  new: {log: delta:data/new}\n"
        "  new: {log: delta:data/new}\n"  # of the file as YAML
        "  many: {log: delta:data/many, shards: 0}\n"  # of the types
        "  a/b: {log: delta:data/c}\n"  # of a name
        "  far: {log: delta:data/far, replicas: {e/st: delta:data/far}}\n"
        "  told: {log: delta:data/told, options: {x: 1}}\n"  # of the log
        "applications:\n"
        "  mailer: {streams: [many, nope]}\n"  # beside the cluster
        "  odd: {streams: [told], max_age: PT1M}\n"
        "pipelines:\n"
        "  p: {input: told, stage: nope}\n"  # of a plugin
        "  q: {input: [], stage: latest}\n"
    )
    result = run("apply")
    lines = [line.removeprefix("error: tidings.yml:") for line in result.err.splitlines()]
    assert [line.split(": ")[:2] for line in lines] == [
        ["3", "streams.new"],
        ["4", "streams.many.shards"],
        ["5", "streams.a/b"],
        ["6", "streams.far"],
        ["7", "streams.told.options.x"],
        ["9", "applications.mailer.streams.1"],
        ["10", "applications.odd.max_age"],
        ["12", "pipelines.p.stage"],
        ["13", "pipelines.q.input"],
    ]
    assert (result.code, joined.streams(), joined.applications()) == (1, [], [])


def test_mistakes_of_a_file_are_told_though_there_is_no_cluster(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", "127.0.0.1:1/nobody")
    (tmp_path / "tidings.yml").write_text("streams:\n  many: {log: delta:data/many, shards: 0}\n")
    for command in (("apply",), ("run",)):
        assert told(run(*command, "--timeout", "1").err) == (
            "error: tidings.yml:2: streams.many.shards: must be at least 1, not 0"
        )


LAYERS = """\
nam: shop
name: 7
streams:
  tape: {log: tape:x, retention: {age: 7}}
  told: {log: delta:data/told, options: {x: 1}, caravans: {policy: nope}, colect: {}}
  tailed: {log: "delta-cdf:data/table", options: {key: [id]}}
  fine: {log: delta:data/fine}
applications:
  mailer: {streams: [nope], filter: a or, balance: fair}
  odd: {streams: [fine], max_age: PT1M, balance: fair}
pipelines:
  p: {input: fine, stage: nope, max_rows: 0}
  q: {input: fine, stage: filter, options: {filter: a = 1}, output: tailed}
"""
ALONE = [  # what shows without a cluster
    "1: nam",
    "2: name",
    "4: streams.tape.log",
    "4: streams.tape.retention.age",
    "5: streams.told.caravans.policy",
    "5: streams.told.colect",
    "5: streams.told.options.x",
    "6: streams.tailed.log",
    "9: applications.mailer.balance",
    "9: applications.mailer.filter",
    "10: applications.odd.balance",
    "10: applications.odd.max_age",
    "12: pipelines.p.max_rows",
    "12: pipelines.p.stage",
]


def keys_blamed(error: str) -> list[str]:
    """The line and the key of each mistake; a filter's is followed by the filter, and a caret."""
    found = [
        line.removeprefix("error: tidings.yml:").split(": ") for line in error.splitlines() if "tidings.yml" in line
    ]
    return sorted((": ".join(one[:2]) for one in found), key=lambda one: (int(one.split(":")[0]), one))


def test_no_mistake_hides_another_be_it_of_the_file_of_a_plugin_or_beside_the_cluster(
    run: Run, joined: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "tidings.yml").write_text(LAYERS)
    for command in (("apply",), ("apply", "--dry-run")):
        result = run(*command)
        assert (result.code, result.out) == (1, "")
        beside = ["9: applications.mailer.streams.0", "13: pipelines.q.output"]
        assert sorted(keys_blamed(result.err)) == sorted([*ALONE, *beside])
    assert joined.streams() == []
    assert not (tmp_path / "data").exists()


def test_what_shows_without_a_cluster_is_told_without_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", "127.0.0.1:1/nobody")
    (tmp_path / "tidings.yml").write_text(LAYERS)
    alone = keys_blamed(run("apply", "--timeout", "1").err)
    assert sorted(alone) == sorted(ALONE)
    assert keys_blamed(run("up", "--dry-run").err) == alone, "before anything is started"


def test_a_section_that_is_no_mapping_hides_no_mistake_in_the_others(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text("streams: [a]\napplications:\n  x: {streams: [a], balance: fair}\n")
    assert keys_blamed(run("apply").err) == ["1: streams", "3: applications.x.balance"], "and a may be a stream of it"


def test_a_log_that_cannot_be_opened_any_more_is_warned_of_with_its_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text(SPEC)
    assert run("apply").code == 0
    shutil.rmtree(tmp_path / "data" / "clicks")
    for command in (("apply",), ("apply", "--dry-run")):
        result = run(*command)
        assert result.code == 0, "other streams and applications can be changed all the same"
        warning = result.err.splitlines()[0]
        assert warning.startswith("warning: tidings.yml:3: streams.clicks.log: ")
        assert f"{tmp_path}/data/clicks" in warning


def test_a_folder_that_cannot_be_made_is_told_by_a_dry_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "tidings.yml").write_text("streams:\n  a: {log: delta:file/deep/down}\n  b: {log: delta:ok}\n")
    error = told(run("apply", "--dry-run").err)
    assert error.startswith(f"error: tidings.yml:2: streams.a.log: the log of stream 'a' in {tmp_path}/file/deep/down")
