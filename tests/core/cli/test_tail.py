"""`tidings streams tail`: where it starts, what it prints, how it ends."""

from __future__ import annotations

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import PATIENCE_S, Run, line, published, started, tail
from tidings.cli.options import shard_set


def test_tail_starts_where_it_is_told(contacts: Run) -> None:
    published(contacts, *({"object": "a", "version": n} for n in range(10)))
    (shard,) = {line["shard"] for line in tail(contacts, "--from", "earliest")}
    versions = [line["version"] for line in tail(contacts, "--from", json.dumps({shard: 7}))]
    assert versions == [7, 8, 9]
    assert tail(contacts, "--from", "latest") == []
    assert [line["version"] for line in tail(contacts, "--from", "earliest", "--limit", "3")] == [0, 1, 2]
    assert [line["version"] for line in tail(contacts, "--from", json.dumps({shard: 10}))] == []


def test_tail_prints_only_the_shards_that_are_asked_for(contacts: Run) -> None:
    published(contacts, *({"object": f"object-{n}"} for n in range(100)))
    all_lines = tail(contacts, "--from", "earliest")
    some = tail(contacts, "--from", "earliest", "--shards", "0,2-3")
    assert some == [line for line in all_lines if line["shard"] != 1]
    assert {line["shard"] for line in some} == {0, 2, 3}
    assert len(tail(contacts, "--from", "earliest", "--shards", "0,2-3", "--limit", "5")) == 5


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--shards", "4"], 1, "error: stream 'contacts' has shards 0 to 3, not 4"),
        (["--shards", "a"], 2, "'a' is no shard; write numbers and ranges, as in 0,3,5-7"),
        (["--shards", "3-1"], 2, "'3-1' is no range of shards: 3 is above 1"),
        (["--shards", ""], 2, "'' is no shard"),
        (["--from", "yesterday"], 2, "'yesterday' is no set of positions"),
        (["--from", "[1]"], 2, "[1] is no set of positions"),
        (["--from", "[" * 100_000], 2, "is no set of positions"),
        (["--from", '{"0": -7}'], 2, "-7 is no position"),
        (["--from", '{"9": 0}'], 1, "error: --from names shard 9, which the stream does not have"),
        (["--limit", "0"], 2, "'--limit'"),
    ],
)
def test_a_tail_that_cannot_be_is_refused(contacts: Run, arguments: list[str], code: int, message: str) -> None:
    result = contacts("streams", "tail", "contacts", *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err


@given(st.sets(st.integers(0, 4095), min_size=1))
def test_any_set_of_shards_can_be_written(shards: set[int]) -> None:
    assert shard_set(",".join(map(str, shards))) == shards
    assert shard_set(f"{min(shards)}-{max(shards)}") == set(range(min(shards), max(shards) + 1))


def test_tail_prints_nothing_that_a_terminal_would_obey(contacts: Run) -> None:
    published(contacts, {"object": "a\x1b[2Jb", "payload": "one\ntwo\x07", "attributes": {"k\r": "\x9b"}})
    result = contacts("streams", "tail", "contacts", "--from", "earliest", "--no-follow")
    (line,) = result.out.splitlines()
    assert line.split("  ")[2:] == ["a\\x1b[2Jb", "-", "k\\r=\\x9b", "one\\ntwo\\x07"]


def test_positions_that_are_lost_are_told_exactly(contacts: Run) -> None:
    positions = published(contacts, {"object": "a"}, {"object": "a"}, {"object": "a"})
    ((shard, head),) = positions.items()
    before = json.dumps({**dict.fromkeys("0123", 0), shard: head + 1})
    assert contacts("streams", "truncate", "contacts", "--before", before, "--execute").code == 0
    result = contacts("streams", "tail", "contacts", "--from", json.dumps({shard: 1}))
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines()[0] == f"lost: shard {shard}: 1 to {head}"
    assert result.err.splitlines()[1].startswith(f"error: stream 'contacts' no longer holds 1 to {head}")
    ahead = contacts("streams", "tail", "contacts", "--from", json.dumps({shard: 9}))
    assert ahead.code == 1
    assert "but the log ends at 2" in ahead.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_tail_prints_updates_as_they_come_until_it_is_stopped(contacts: Run, number: signal.Signals, code: int) -> None:
    published(contacts, {"object": "a", "version": 0})
    with started("streams", "tail", "contacts", "--from", "earliest", "--json") as process:
        for n in range(3):
            assert json.loads(line(process))["version"] == n
            published(contacts, {"object": "a", "version": n + 1})
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (code, b"")


def test_tail_ends_when_nobody_reads_it_even_if_nothing_comes(contacts: Run) -> None:
    published(contacts, {"object": "a"})
    with started("streams", "tail", "contacts", "--from", "earliest") as process:
        assert line(process)
        assert process.stdout
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr
        assert process.stderr.read() == b""
