"""`tidings apply`: a `tidings.yml` is compared with the cluster, and carried out."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import tidings.plugins
from tests.support.commands import Run, told, with_entry_points
from tidings.cli.apply_plan import execute, plan
from tidings.cluster import Cluster
from tidings.config.spec import load
from tidings.errors import InvalidConfig
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
    }
    assert {one["action"] for one in run("apply", "--json").json["actions"]} == {"unchanged"}
    again = run("apply")
    assert [line.split()[0] for line in again.out.splitlines()] == ["ACTION", *["unchanged"] * 3]
    assert again.err == "0 done\n"


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
        "mailer": ("change", "streams"),
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
            "3: streams.b.log: is the log of stream 'contacts' in this cluster; each stream has its own",
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
        execute(change, joined)
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
    refusal = f"TIDINGS_ZOOKEEPER_CREDENTIALS are not sent to {address}, since {tmp_path}/tidings.yml was found in a "
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


def test_a_file_with_a_filter_that_does_not_parse_is_told_with_its_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tidings.yml"
    file.write_text("applications:\n  cache:\n    streams: [contacts]\n    filter: a or\n    max_age: PT1M\n")
    applied = run("apply")
    assert applied.code == 1
    message, text, caret = applied.err.splitlines()
    assert message.startswith("error: tidings.yml:4: applications.cache.filter: column 3: ")
    assert (text, caret) == ("error:   a or", "error:     ^")
    file.write_text("applications:\n  cache: {streams: [contacts], max_age: PT1M}\n")
    assert told(run("apply").err).endswith("max_age: is for mode: realtime; reliable sends every update")


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
    assert run("apply", "--dry-run").code == 0
