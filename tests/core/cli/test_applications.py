"""`tidings applications`: create, list, describe and drop."""

from __future__ import annotations

import os
import pty
from typing import Any

import pytest

from tests.support.commands import Run, ended, lags, publish, started, told
from tidings import Handler
from tidings.cluster import Cluster
from tidings.errors import InvalidOption
from tidings.testing import eventually
from tidings.updates import Update

pytestmark = pytest.mark.usefixtures("small")


def test_an_application_is_defined_listed_described_and_dropped(run: Run) -> None:
    options = ["--stream", "contacts", "--filter", "region = eu", "--mode", "realtime", "--max-age", "PT30S"]
    made = run("applications", "create", "cache", *options, "--balance", "zookeeper")
    assert (made.code, made.out, made.err) == (0, "", "application 'cache' reads contacts\n")
    (listed,) = run("applications", "list", "--json").json
    assert listed == {
        "name": "cache",
        "streams": ["contacts"],
        "filter": "region = eu",
        "start": "latest",
        "mode": "realtime",
        "max_age": 30,
        "balance": "zookeeper",
        "on_failure": "park",
    }
    table = run("applications", "list").out.splitlines()
    assert table[0].split() == ["APPLICATION", "STREAMS", "MODE", "START", "FILTER"]
    assert table[1].split() == ["cache", "contacts", "realtime", "latest", "region", "=", "eu"]
    described = run("applications", "describe", "cache", "--json").json
    assert described == {**listed, "subscribers": [], "flows": {"unassigned": 2}, "lag": None}
    assert "flows              2 unassigned\n" in run("applications", "describe", "cache").out
    assert run("applications", "drop", "cache").code == 2, "nobody can be asked"
    assert run("applications", "drop", "cache", "--yes").err.startswith("application 'cache' is dropped")
    assert run("applications", "list", "--json").json == []


def test_dropping_asks_first(cache: Cluster) -> None:
    for answer, code, left in ((b"n\n", 1, 1), (b"y\n", 0, 0)):
        terminal, end = pty.openpty()
        with started("applications", "drop", "cache", stdin=end) as process:
            os.write(terminal, answer)
            result = ended(process)
        assert result.code == code
        assert result.err.startswith("Drop application 'cache' and its datamarkers? [y/N]:")
        assert len(cache.applications()) == left
        os.close(terminal)
        os.close(end)


def test_an_application_that_is_there_is_made_again_only_if_it_is_the_same(run: Run) -> None:
    arguments = ("applications", "create", "cache", "--stream", "contacts", "--json")
    assert run(*arguments).json == run(*arguments).json
    other = run(*arguments, "--start", "earliest")
    assert (other.code, told(other.err)) == (
        1,
        (
            "error: application 'cache' is there already, with another definition: change it by `tidings applications "
            "update`; to drop it is to lose where its flows stand"
        ),
    )


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00Z"),
        ('{"contacts": {"1": 1200}}', {"contacts": {"1": 1200}}),
    ],
)
def test_an_application_starts_where_it_is_told(run: Run, text: str, start: Any) -> None:
    made = run("applications", "create", "cache", "--stream", "contacts", "--start", text, "--json")
    assert made.json["start"] == start


def test_a_filter_that_cannot_be_meant_is_warned_of(run: Run) -> None:
    made = run("applications", "create", "cache", "--stream", "contacts", "--filter", "shard = 7")
    assert made.code == 0
    assert made.err.startswith("warning: the filter of application 'cache': `shard = 7` holds for no update")
    assert len(made.err.splitlines()) == 2, "once, and as a command tells it"


def test_a_filter_that_does_not_parse_is_shown_with_a_caret(run: Run) -> None:
    made = run("applications", "create", "cache", "--stream", "contacts", "--filter", "mcd_key xists")
    assert made.code == 2
    message = (
        "Error: Invalid value for '--filter': column 9: "
        "expected 'exists', 'in', 'between', 'matches' or a comparison such as '=', not 'xists'"
    )
    assert made.err.splitlines()[-3:] == [message, "  mcd_key xists", "          ^"]
    assert run("applications", "list", "--json").json == []


def test_an_application_is_changed_while_it_runs_but_for_where_it_begins(cache: Cluster, run: Run) -> None:
    seen: list[str] = []

    class Notes(Handler):
        def on_update(self, update: Update) -> None:
            seen.append(update.object)

    with cache.publisher(token_interval=0.1), cache.subscribe("cache", Notes()):
        publish(cache, 1, objects=("alice",))
        eventually(lambda: seen == ["alice"])
        changed = run("applications", "update", "cache", "--filter", "object = bob", "--balance", "zookeeper", "--json")
        assert changed.json == {
            **cache.application("cache").to_json(),
            "filter": "object = bob",
            "balance": "zookeeper",
            "on_failure": "park",
            "start": "earliest",
        }
        eventually(lambda: _gets(cache, seen, "bob"))
        publish(cache, 2, objects=("carol", "bob", "dave"))
        eventually(lambda: lags(cache) == [0, 0])
        assert {"carol", "dave"}.isdisjoint(seen)
        assert "is changed: filter" in run("applications", "update", "cache", "--no-filter").err
    with pytest.raises(InvalidOption, match="'start' of application 'cache' cannot change"):
        cache.update_application("cache", start="latest")  # type: ignore[call-arg]  # as one who does not check types
    for wrong, code, told_of in (
        ((), 2, "nothing is to be changed"),
        (("--filter", "a = b", "--no-filter"), 2, "one or the other"),
        (("--filter", "("), 2, "--filter"),
        (("--stream", "nope"), 1, "there is no stream 'nope'"),
        (("--balance", "nope"), 1, "nope"),
        (("--max-age", "PT1S"), 1, "for realtime mode"),
    ):
        refused = run("applications", "update", "cache", *wrong)
        assert (refused.code, told_of in refused.err) == (code, True), wrong
    assert "there is no application 'nope'" in run("applications", "update", "nope", "--no-filter").err


def _gets(cluster: Cluster, seen: list[str], name: str) -> bool:
    """Whether an update comes that only the new filter lets through; it is published until it does."""
    publish(cluster, 1, objects=(name,))
    return name in seen


def test_an_application_whose_subscribers_run_is_dropped_by_force_only(cache: Cluster, run: Run) -> None:
    with cache.subscribe("cache", Handler(), id="one"):
        refused = run("applications", "drop", "cache", "--yes")
        assert (refused.code, told(refused.err)) == (
            1,
            "error: subscribers of application 'cache' run (one): stop them first, or add --force",
        )
        assert run("applications", "drop", "cache", "--yes", "--force").code == 0
    assert cache.applications() == []
