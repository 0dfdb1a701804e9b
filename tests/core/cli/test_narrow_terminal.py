"""Lists on a terminal of 80 columns: every header is whole, and no line is longer than the terminal is wide."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from rich.console import Console

from tidings.cli.command import app
from tidings.cli.output import GAP, fit, make_table
from tidings.cluster import Cluster
from tidings.flows import Flow
from tidings.publisher.reports import PLACE

LONG = "a-name-that-is-rather-long-for-a-terminal"
LISTS = (
    (["streams", "list"], "STREAM SHARDS LOG SECONDS BYTES"),
    (["streams", "describe", LONG], "SHARD FLOOR HEAD UPDATES"),
    (["applications", "list"], "APPLICATION STREAMS MODE START FILTER"),
    (["applications", "describe", LONG], "SUBSCRIBER LOAD WEIGHT"),
    (["flows", "list"], "APPLICATION STREAM SHARD LAG STATE"),
    (["flows", "list", "--summary"], "APPLICATION STREAM FLOWS UNASSIGNED LAG LAG-SECONDS"),
    (["publishers", "list"], "PUBLISHER ADDRESS FLOWS STATE UNREADABLE"),
    (["subscribers", "list"], "SUBSCRIBER APPLICATION FLOWS LOAD STATE UNREACHABLE"),
    (["caravans", "list"], "STREAM PUBLISHER CARAVAN BEHIND FLOWS RATE"),
    (["gc", "status"], "STREAM UPDATES COLLECTED RATIO LAST RUN REFUSED"),
    (["audit"], "# TIME WHO ACTION SUBJECT OUTCOME"),
    (["plugins"], ""),
    (["thialfi", "status", "shop"], "TABLE ROWS"),
)


@pytest.fixture
def crowded(joined: Cluster, tmp_path: Path) -> Cluster:
    """A cluster of long names, with numbers of many digits."""
    tree, folder = joined.coordination, tmp_path / ("folder-" * 10)
    joined.create_stream(
        LONG, 2, f"delta:{folder}", retention_seconds=10**8, retention_bytes=10**15, collect={"latest_per_key": True}
    )
    joined.create_application(LONG, [LONG], filter="region = eu or region = us or (vip exists and not lost exists)")
    publisher = {"address": "publisher-1.example:7400", "host": "publisher-1.example", "pid": 1234567}
    told = {LONG: "the log cannot be read, for a reason that takes a whole sentence to tell"}
    tree.create({**publisher, "streams": None, "unreadable": told}, "publishers", f"p-{LONG}", ephemeral=True)
    subscriber = {"address": "x:1", "load": 0.5, "weight": 1.0, "capacity": 1.0, "pid": 1234567, "unreachable": told}
    tree.create(subscriber, "applications", LONG, "subscribers", f"s-{LONG}", ephemeral=True)
    caravan = {"number": 1, "behind": 10**9, "flows": 10_000, "rate": 123456.7, "bytes_read": 10**13}
    tree.create({"caravans": [caravan], "bytes_read": 10**13, "bytes_sent": 10**12}, PLACE, LONG, f"p-{LONG}")
    service = {"identity": "i", "streams": [LONG], "pipeline": "shop", "storage": str(tmp_path), "options": {}}
    tree.create(service, "thialfi", "shop")
    return joined


def shown(capfd: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> list[str]:
    """The lines that a command shows on a terminal of 80 columns."""
    terminal, end = pty.openpty()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(end, "w") as screen, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        with pytest.raises(SystemExit):
            typer.main.get_command(app)(arguments, prog_name="tidings")
        screen.flush()
        text = bytearray()
        os.set_blocking(terminal, False)
        while True:
            try:
                text += os.read(terminal, 65_536)
            except BlockingIOError:
                break
    os.close(terminal)
    assert b"\x1b[3" not in text, "NO_COLOR is set"
    return [line.rstrip() for line in re.sub(r"\x1b\[\d*m", "", text.decode()).splitlines()]


def test_every_header_is_whole_and_every_line_fits(
    crowded: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, header in LISTS:
        lines = shown(capfd, monkeypatch, arguments)
        at = [number for number, line in enumerate(lines) if set(header.split()) <= set(line.split())]
        assert at, (arguments, lines)
        assert [line for line in lines[at[0] :] if len(line) > 80] == [], arguments
        assert "1,234,567" not in "".join(lines), "a pid is no amount"


def test_long_texts_give_way_and_numbers_stay_whole() -> None:
    rows = [["x" * 100, 123456789, "y" * 60, None], ["x", 1, "y", None]]
    table = make_table(["NAME", "NUMBER", "REASON", "NOTHING"], rows, (), 80)
    widths = [column.width or 0 for column in table.columns]
    assert sum(widths) + 3 * GAP == 80
    assert widths[1] == len("123,456,789")
    assert widths[3] == len("NOTHING")


def test_a_path_is_broken_behind_slashes() -> None:
    rows = [["contacts", 16, "delta:/srv/warehouse/of-the-shop/tables/that-are-kept/contacts", None]]
    table = make_table(["STREAM", "SHARDS", "LOG", "SECONDS KEPT"], rows, (), 60)
    screen = Console(file=io.StringIO(), width=60)
    with screen.capture() as shown:
        screen.print(table)
    assert [line.rstrip() for line in shown.get().splitlines()] == [
        "STREAM    SHARDS  LOG                           SECONDS KEPT",
        "contacts      16  delta:/srv/warehouse/         -",
        "                  of-the-shop/tables/",
        "                  that-are-kept/contacts",
    ]


def test_the_time_of_an_event_is_whole_and_to_the_second(
    cache: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = {"time": "2026-01-01T12:30:05.123456Z", "publisher": "publisher-1", "reason": "it had no owner before"}
    cache.coordination.create({"epoch": 1, "owners": [owner]}, *Flow("cache", "contacts", 0).place, "epoch")
    _, first, *_ = shown(capfd, monkeypatch, ["flows", "history", "cache/contacts/0"])
    assert first.startswith("2026-01-01T12:30:05Z ")


def test_nothing_gives_way_where_there_is_room() -> None:
    assert fit({0: 10, 1: 20}, {0: 1, 1: 1}, 30) == {0: 10, 1: 20}
