"""The JSON Schema of `tidings.yml` says what the models say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.places import ROOT
from tidings.cli.schema import page
from tidings.config.schema import DESCRIPTIONS, schema
from tidings.config.spec import load
from tidings.errors import InvalidConfig

CHECK = jsonschema.Draft202012Validator(schema())


def test_the_schema_in_the_docs_is_what_the_command_prints() -> None:
    kept = (ROOT / "docs" / "tidings.schema.json").read_text(encoding="utf-8")
    assert kept == page(), "make it anew: tidings schema > docs/tidings.schema.json"
    jsonschema.Draft202012Validator.check_schema(json.loads(kept))


def test_every_key_is_described_and_no_other() -> None:
    found = schema()
    models = {"Spec": found, **found["$defs"]}
    assert {name: set(model["properties"]) for name, model in models.items()} == {
        name: set(keys) for name, keys in DESCRIPTIONS.items()
    }


def test_the_schema_accepts_the_example() -> None:
    CHECK.validate(yaml.safe_load((ROOT / "examples" / "tidings.yml").read_text(encoding="utf-8")))


WHOLE = """\
name: demo
zookeeper: zk1:2181,zk2:2181/demo
storage: state
streams:
  contacts: {shards: 8, log: delta:contacts, retention: {age: P7D, size: 10GiB}, collect: {latest_per_key: true}}
  clicks: {log: delta:clicks, retention: {size: 4096}, caravans: {policy: gaps, rate: 5, total_rate: 7.5}}
  shop: {logs: {east: "delta:east", west: "delta:west"}, retention: , options: }
  letters: {log: delta:letters}
applications:
  mailer: {streams: [contacts], filter: amount > 5, mode: realtime, max_age: PT1H, start: earliest}
  other: {streams: [contacts], start: "2026-01-01T00:00:00Z", on_failure: "stream:letters"}
  third: {streams: [contacts], start: {contacts: {"0": 7}}, on_failure: skip}
pipelines:
  p: {input: contacts, stage: filter, options: {filter: a = 1}, output: clicks, max_rows: 10}
  q: {input: [contacts, clicks], stage: latest}
"""


def test_the_schema_accepts_a_file_with_every_key(tmp_path: Path) -> None:
    path = tmp_path / "tidings.yml"
    path.write_text(WHOLE)
    assert load(path).name == "demo"
    CHECK.validate(yaml.safe_load(WHOLE))


@pytest.mark.parametrize(
    "value",
    [
        {"strems": {}},
        {"name": ""},
        {"zookeeper": 7},
        {"streams": []},
        {"streams": {"a/b": {"log": "delta:a"}}},
        {"streams": {"a": {}}},
        {"streams": {"a": {"log": "delta:a", "logs": {"b": "delta:b"}}}},
        {"streams": {"a": {"log": "delta:a", "shards": 0}}},
        {"streams": {"a": {"log": "delta:a", "shards": 5000}}},
        {"streams": {"a": {"log": "delta:a", "retention": {"age": 7}}}},
        {"streams": {"a": {"log": "delta:a", "caravans": {"rate": 0}}}},
        {"applications": {"a": {}}},
        {"applications": {"a": {"streams": []}}},
        {"applications": {"a": {"streams": ["b"], "mode": "fast"}}},
        {"applications": {"a": {"streams": ["b"], "on_failure": "ignore"}}},
        {"applications": {"a": {"streams": ["b"], "start": 7}}},
        {"pipelines": {"a": {"input": [], "stage": "latest"}}},
        {"pipelines": {"a": {"input": "b"}}},
    ],
)
def test_what_the_schema_refuses_is_refused_by_tidings_too(tmp_path: Path, value: dict[str, Any]) -> None:
    assert not CHECK.is_valid(value)
    path = tmp_path / "tidings.yml"
    path.write_text(json.dumps(value))
    with pytest.raises(InvalidConfig):
        load(path)
