"""Metrics are named as Prometheus has it, and the page, the dashboard and the alerts know those that there are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from prometheus_client import Metric

from tests.support.metric_families import SUFFIXES, documented_name, families, labels_of
from tests.support.places import ROOT
from tests.support.promql import named

FAMILIES = list(families())
SAMPLES = {family.name + suffix: family for family in FAMILIES for suffix in SUFFIXES[family.type]}
LABELS = {
    *("application", "stream", "shard", "state", "callback", "pipeline", "version"),
    *("channel", "reason", "limit", "op", "outcome", "direction"),
}
UNITS = ("seconds", "bytes", "ratio", "updates", "rows")
OTHER_UNITS = {
    *("ms", "millis", "milliseconds", "micros", "second", "minutes", "hours", "days"),
    *("kb", "mb", "byte", "kilobytes", "megabytes", "percent"),
}
PAGE = (ROOT / "docs" / "metrics.md").read_text()
HANDBOOK = (ROOT / "docs" / "operations.md").read_text()
ALERTS = [
    rule
    for group in yaml.safe_load((ROOT / "docs" / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((ROOT / "docs" / "grafana" / "tidings.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def check_expression(expression: str) -> None:
    """Raise AssertionError if an expression names a metric or a label that there is not."""
    found = named(expression.replace("$__rate_interval", "5m"))
    assert found.metrics - SAMPLES.keys() <= {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
    known = {label for name in found.metrics & SAMPLES.keys() for label in labels_of(SAMPLES[name])}
    assert found.labels <= known | {"job", "instance", "le"}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_metric_is_named_as_prometheus_has_it(family: Metric) -> None:
    name = family.name
    assert re.fullmatch(r"tidings(_[a-z][a-z0-9]*)*", name)
    assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_info", "_created")), "the type says that"
    assert not set(name.split("_")) & OTHER_UNITS, "only base units, in the plural"
    assert not [unit for unit in UNITS if f"_{unit}_" in name], "the unit is last"
    assert "timestamp" not in name or name.endswith("_timestamp_seconds")
    assert family.type in SUFFIXES
    assert family.documentation[0].isupper() or family.documentation[0].isdigit()
    assert family.documentation.endswith(".")
    assert set(labels_of(family)) <= LABELS, "a label has few values"


def test_a_metric_is_declared_once() -> None:
    names = [family.name for family in FAMILIES]
    assert sorted(names) == sorted(set(names))


def test_the_page_lists_every_metric_and_no_other() -> None:
    row = re.compile(r"^\| `(tidings_\w+)` \| (\w+) \| ([^|]*)\|", re.MULTILINE)
    listed = [(name, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in row.findall(PAGE)]
    assert sorted(listed) == sorted((documented_name(one), one.type, labels_of(one)) for one in FAMILIES)
    assert set(re.findall(r"`(tidings_(?!stage)\w+)`", PAGE)) <= {documented_name(one) for one in FAMILIES}


@pytest.mark.parametrize("page", ["operations", "security", "gateway", "pipelines", "decisions"])
def test_other_pages_name_metrics_that_there_are(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    found = set(re.findall(r"`(tidings_(?:publisher|subscriber|pipeline|gateway|consumergroup|zookeeper)_\w+)", text))
    assert found <= SAMPLES.keys() | {documented_name(one) for one in FAMILIES}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_names_metrics_that_there_are_and_what_to_do(alert: dict[str, Any]) -> None:
    check_expression(alert["expr"])
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"]["summary"].endswith(".")
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert (page, anchor) == ("docs/operations.md", alert["alert"].lower())
    assert f"\n### {alert['alert']}\n" in HANDBOOK
    used = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
    grouped = re.search(r"by \(([^)]*)\)", alert["expr"])
    if grouped:
        assert used <= set(grouped[1].split(", ")), "a summary shows labels that the rule keeps"


def test_what_the_handbook_says_of_alerts_is_of_alerts_that_there_are() -> None:
    section = HANDBOOK.split("\n## Alerts\n")[1].split("\n## ")[0]
    names = [alert["alert"] for alert in ALERTS]
    assert re.findall(r"^### (.*)$", section, re.MULTILINE) == names
    assert set(re.findall(r"\bTidings[A-Z]\w+", section)) == set(names)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_metrics_that_there_are(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        check_expression(target["expr"])
        kept = named(target["expr"]).labels | {"instance"}
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept | {"pipeline"}


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken)), "panels lie upon each other"
    assert max(x for x, _ in taken) < 24
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"} == variables
    shown = {name for panel in PANELS for one in panel["targets"] for name in named(one["expr"]).metrics}
    families_shown = {SAMPLES[name].name for name in shown & SAMPLES.keys()}
    prefixes = ("tidings_publisher", "tidings_subscriber", "tidings_consumergroup")
    ours = {one.name for one in FAMILIES if one.name.startswith(prefixes)}
    assert ours <= families_shown, "every metric of publishers and subscribers is on it"
