"""`tidings jars`: a bar on a terminal while there is something to fetch, and nowhere else."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import ended, on_terminal, started
from tidings.runtime import jars


@pytest.fixture
def nothing_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.delenv("TIDINGS_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return jars.cache()


@pytest.mark.slow
def test_on_a_terminal_a_bar_shows_what_is_fetched(nothing_fetched: Path) -> None:
    first = on_terminal("jars", stdin=subprocess.DEVNULL)
    assert (first.code, first.out) == (0, f"{nothing_fetched}\n")
    assert "━" in first.err, "that is what the bar is drawn with"
    # It is drawn some times a second, so that not every step is seen; the last one always is.
    assert re.search(r"fetched [\w.-]+\.jar ", first.err)
    again = on_terminal("jars", stdin=subprocess.DEVNULL)
    assert (again.code, again.out) == (0, first.out)
    assert "━" not in again.err, "there was nothing to fetch"


@pytest.mark.slow
def test_where_no_terminal_shows_it_there_is_no_bar(nothing_fetched: Path) -> None:
    with started("jars", "--json") as process:
        result = ended(process)
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == {"conf": "runtime", "folder": str(nothing_fetched), "jars": list(jars.pins())}
