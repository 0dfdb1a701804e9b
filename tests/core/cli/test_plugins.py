"""`tidings plugins`: what is installed, and what of it does not work."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

import tidings.plugins
from tests.support.commands import Run, with_entry_points


def test_plugins_that_do_not_work_say_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("tape", "no_such_module:Tape", "tidings.logs")
    monkeypatch.setattr(tidings.plugins, "entry_points", with_entry_points(broken))
    found = {(one["kind"], one["name"]): one for one in run("plugins", "--json").json}
    delta, tape = found["log", "delta"], found["log", "tape"]
    assert (delta["state"], delta["problem"]) == ("ready", None)
    assert (tape["state"], tape["target"]) == ("broken", "no_such_module:Tape")
    assert "No module named 'no_such_module'" in tape["problem"]
    rows = run("plugins").out.splitlines()
    assert rows[0].split() == ["KIND", "NAME", "PACKAGE", "STATE"]
    assert [row for row in rows if row.split()[:4] == ["log", "tape", "no_such_module:Tape", "broken:"]]
