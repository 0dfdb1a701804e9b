"""The `tidings` command, against a real ZooKeeper and real Delta logs."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as installed
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st

import tidings.plugins
from tidings.cli import app, main
from tidings.cli.lines import MAX_LINE_BYTES, parse_line
from tidings.cli.options import shard_set
from tidings.cli.plan import execute, plan
from tidings.cli.reference import page
from tidings.cluster import Cluster, connect
from tidings.config import load
from tidings.errors import InvalidConfig, InvalidUpdate, LogUnavailable
from tidings.testing import eventually
from tidings_connectors.delta import DeltaLog

PROGRAM = [sys.executable, "-c", "import sys; from tidings.cli import main; sys.exit(main())"]
PATIENCE = 60.0


@dataclass
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def address(zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A cluster of the test's own, as the environment names it; the test's folder is the working directory."""
    address = f"{zookeeper}/{uuid.uuid4()}"
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", address)
    monkeypatch.delenv("TIDINGS_ZOOKEEPER_CREDENTIALS", raising=False)
    monkeypatch.chdir(tmp_path)
    return address


@pytest.fixture
def joined(address: str) -> Iterator[Cluster]:
    """The same cluster, seen from Python."""
    with connect(address) as cluster:
        yield cluster


@pytest.fixture
def run(address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in this process, with this text or these bytes on stdin."""

    def run(*arguments: str, stdin: str | bytes = b"") -> Result:
        file = tmp_path / "stdin"
        file.write_bytes(stdin.encode() if isinstance(stdin, str) else stdin)
        with file.open() as opened, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", opened)
            capsys.readouterr()
            code = main(list(arguments))
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def contacts(run: Run) -> Run:
    """The same, with a stream `contacts` of 4 shards."""
    assert run("streams", "create", "contacts", "--shards", "4", "--log", "delta:contacts").code == 0
    return run


@contextlib.contextmanager
def started(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process of its own, killed at the end if it still runs."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen([*PROGRAM, *arguments], **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(*updates: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(update)}\n" for update in updates)


def published(run: Run, *updates: dict[str, Any]) -> dict[str, Any]:
    result = run("streams", "publish", "contacts", "--json", stdin=lines(*updates))
    assert result.code == 0, result.err
    positions: dict[str, Any] = result.json["positions"]
    return positions


def objects(run: Run) -> list[str]:
    """The objects that the stream holds, those of one shard in their order."""
    result = run("streams", "tail", "contacts", "--from", "earliest", "--no-follow", "--json")
    return [update["object"] for update in result.json_lines]


# Streams


def test_a_stream_is_made_listed_described_and_dropped(run: Run, tmp_path: Path) -> None:
    made = run(
        "streams", "create", "contacts", "--shards", "4", "--log", "delta:data/contacts", "--retention-age", "P7D"
    )
    assert (made.code, made.out) == (0, "")
    assert made.err == f"stream 'contacts' has 4 shards in delta:{tmp_path}/data/contacts\n"
    definition = {
        "name": "contacts",
        "shards": 4,
        "log": f"delta:{tmp_path}/data/contacts",
        "retention_seconds": 7 * 86400,
        "retention_bytes": None,
    }
    assert run("streams", "list", "--json").json == [definition]
    table = run("streams", "list").out.splitlines()
    assert table[0].split("  ")[0] == "STREAM"
    assert table[1].split()[:3] == ["contacts", "4", definition["log"]]
    described = run("streams", "describe", "contacts", "--json").json
    nothing = {"floor": None, "head": None, "updates": 0}
    assert described == {**definition, "held": [{"shard": shard, **nothing} for shard in range(4)]}
    assert run("streams", "drop", "contacts", "--yes", "--json").json["purged"] is False
    assert run("streams", "list", "--json").json == []


def test_making_the_same_stream_again_changes_nothing_and_another_is_refused(contacts: Run) -> None:
    again = contacts("streams", "create", "contacts", "--shards", "4", "--log", "delta:contacts", "--json")
    assert (again.code, again.json["shards"]) == (0, 4)
    other = contacts("streams", "create", "contacts", "--shards", "5", "--log", "delta:contacts")
    assert other.code == 1
    assert other.err.startswith("error: stream 'contacts' is there already, with 4 shards in ")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a/b", "--log", "delta:x"], 1, "error: 'a/b' is no name for a stream"),
        (["a", "--log", "here"], 1, "error: 'here' is no log: write a scheme and a place"),
        (["a", "--log", "tape:x"], 1, "error: no log 'tape' is installed (installed: delta)"),
        (["a", "--log", "delta:x", "--shards", "0"], 1, "error: stream 'a' cannot have 0 shards: from 1 to 4,096"),
        (["a", "--log", "delta:x", "--shards", "many"], 2, "Invalid value for '--shards'"),
        (["a", "--log", "delta:x", "--retention-age", "7d"], 2, "'7d' is no duration: write ISO 8601, as in P7D"),
        (["a", "--log", "delta:x", "--retention-size", "10G"], 2, "'10G' is no size: write bytes, or a unit"),
        (["a"], 2, "Missing option '--log'"),
        (["--log", "delta:x"], 2, "Missing argument 'NAME'"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(
    run: Run, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    result = run("streams", "create", *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "x").exists()
    assert run("streams", "list", "--json").json == []


def test_a_folder_that_holds_another_stream_is_refused(contacts: Run) -> None:
    result = contacts("streams", "create", "clicks", "--shards", "4", "--log", "delta:contacts")
    assert result.code == 1
    assert "holds stream 'contacts' with 4 shards, not stream 'clicks' with 4 shards" in result.err


@pytest.mark.parametrize("command", ["describe", "tail", "publish", "truncate", "drop"])
def test_an_unknown_stream_is_named_with_those_that_are_there(contacts: Run, command: str) -> None:
    more = {"truncate": ["--older-than", "P1D", "--dry-run"], "drop": ["--yes"]}.get(command, [])
    result = contacts("streams", command, "nope", *more)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: there is no stream 'nope' in ")
    assert result.err.endswith("(streams: contacts)\n")


def test_describe_counts_what_is_held_in_each_shard(contacts: Run) -> None:
    positions = published(contacts, *({"object": f"object-{n}", "version": n} for n in range(20)))
    held = contacts("streams", "describe", "contacts", "--json").json["held"]
    assert {str(one["shard"]): one["head"] for one in held if one["updates"]} == positions
    assert all(one["floor"] == 0 and one["updates"] == one["head"] + 1 for one in held if one["updates"])
    text = contacts("streams", "describe", "contacts").out
    assert "updates held       20\n" in text
    assert "SHARD  FLOOR  HEAD  UPDATES" in text


def test_describe_shows_what_it_can_when_the_log_is_gone(contacts: Run, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "contacts")
    result = contacts("streams", "describe", "contacts", "--json")
    assert result.code == 1
    assert result.json["held"][3] == {"shard": 3, "floor": None, "head": None, "updates": None}
    assert result.err.startswith("error: the log of stream 'contacts' ")
    rows = contacts("streams", "describe", "contacts").out.splitlines()
    assert rows[-1].split() == ["3", "-", "-", "-"]


def test_drop_refuses_where_nobody_can_be_asked(contacts: Run) -> None:
    result = contacts("streams", "drop", "contacts")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: drop asks before it drops, and there is no terminal to ask on: add --yes\n"
    assert len(contacts("streams", "list", "--json").json) == 1


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 1, 1), (b"y\n", 0, 0)])
def test_drop_asks_on_a_terminal(
    contacts: Run, monkeypatch: pytest.MonkeyPatch, answer: bytes, code: int, left: int
) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    with monkeypatch.context() as patch, os.fdopen(theirs) as terminal:
        patch.setattr(sys, "stdin", terminal)
        assert main(["streams", "drop", "contacts"]) == code
    os.close(ours)
    assert len(contacts("streams", "list", "--json").json) == left


@pytest.mark.parametrize("purge", [False, True])
def test_a_dropped_stream_keeps_its_updates_unless_they_are_purged(contacts: Run, tmp_path: Path, purge: bool) -> None:
    published(contacts, {"object": "a"})
    assert contacts("streams", "drop", "contacts", "--yes", *(["--purge"] if purge else [])).code == 0
    assert (tmp_path / "contacts").exists() is not purge


# Publish


def test_lines_become_updates(contacts: Run) -> None:
    update = {
        "object": "a",
        "version": 2**63 - 1,
        "source": "me",
        "payload": "zwölf",
        "attributes": {"region": "eu"},
        "time": "2026-01-01T01:00:00+01:00",
    }
    binary = {"object": "b", "payload_base64": base64.b64encode(b"\xff\x00").decode()}
    result = contacts("streams", "publish", "contacts", stdin=lines(update, binary) + "\n  \n")
    assert (result.code, result.out, result.err) == (0, "", "2 updates durable\n")
    first, second = sorted(
        contacts("streams", "tail", "contacts", "--from", "earliest", "--no-follow", "--json").json_lines,
        key=lambda line: str(line["object"]),
    )
    assert {key: first[key] for key in update} == {**update, "time": "2026-01-01T00:00:00Z"}
    assert (first["kind"], first["range"], first["seq"], first["index"]) == ("data", 1, 0, 0)
    assert (second["payload_base64"], second["version"], second["attributes"]) == ("/wA=", None, None)
    assert second["time"].endswith("Z")


def test_a_last_line_without_an_end_counts_and_so_does_a_byte_order_mark(contacts: Run, tmp_path: Path) -> None:
    (tmp_path / "file.jsonl").write_bytes(b'\xef\xbb\xbf{"object": "a"}\r\n{"object": "b"}')
    result = contacts("streams", "publish", "contacts", "--file", "file.jsonl", "--json")
    assert result.json["published"] == 2
    assert sorted(objects(contacts)) == ["a", "b"]


def test_no_lines_publish_nothing(contacts: Run) -> None:
    assert contacts("streams", "publish", "contacts", "--json").json == {"published": 0, "positions": {}}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"object": "a", "version": -1}', "version -1 of object 'a' is negative"),
        (
            b'{"object": "a", "version": 9223372036854775808}',
            "version 9223372036854775808 of object 'a' is above 2^63-1",
        ),
        (b'{"object": "a", "version": 1.5}', "version 1.5 of object 'a' is not a whole number"),
        (b'{"object": "a", "version": true}', "version True of object 'a' is not a whole number"),
        (b'{"object": "a", "version": NaN}', "no JSON: NaN is not a number there"),
        (b'{"object": "a", "version": 1' + b"0" * 5000 + b"}", "no JSON that can be read: Exceeds the limit"),
        (b'{"object": ""}', "an update names its object; this one's name is empty"),
        (b'{"object": "' + b"x" * 1025 + b'"}', "has 1,025 bytes; the limit is 1,024"),
        (b'{"object": 7}', "object 7 is int, not text"),
        (b'{"object": "\\ud800"}', "is not valid UTF-8"),
        (b'{"version": 1}', 'the update does not name its "object"'),
        (b'{"object": "caf\xe9"}', "byte 16 of the line is not UTF-8"),
        (b'{"object": "a"', "no JSON: Expecting ',' delimiter (character 15)"),
        (b"object: a", "no JSON: Expecting value (character 1)"),
        (b'["a", 1]', "no JSON object: ['a', 1]"),
        (b"null", "no JSON object: None"),
        (b'"' + b"[" * 100_000, "no JSON: Unterminated string"),
        (b"[" * 100_000, "no update: it is nested too deeply"),
        (b'{"object": "a", "colour": "red"}', "an update has no key 'colour'; it has object, version, "),
        (b'{"object": "a", "object": "b"}', "the key 'object' is there twice"),
        (b'{"object": "a", "attributes": {"k": "v", "k": "w"}}', "the key 'k' is there twice"),
        (b'{"object": "a", "attributes": {"k": 1}}', "attribute 'k' of object 'a' is int, not text"),
        (b'{"object": "a", "attributes": ["k"]}', "attributes of object 'a' are list, not a mapping"),
        (b'{"object": "a", "payload": {"x": 1}}', "\"payload\" is {'x': 1}, not text"),
        (b'{"object": "a", "payload": "\\ud800"}', '"payload" is no valid text; send bytes as "payload_base64"'),
        (b'{"object": "a", "payload_base64": "?"}', '"payload_base64" is not base64'),
        (b'{"object": "a", "payload_base64": 7}', '"payload_base64" is not base64'),
        (b'{"object": "a", "payload": "x", "payload_base64": "eA=="}', 'has both "payload" and "payload_base64"'),
        (b'{"object": "a", "payload": "' + b"x" * (2**20 + 1) + b'"}', "has 1,048,577 bytes; the limit is 1,048,576"),
        (b'{"object": "a", "time": "yesterday"}', "\"time\" is 'yesterday', not a time with its zone"),
        (b'{"object": "a", "time": "2026-01-01T00:00:00"}', "not a time with its zone, as in 2026-01-01T00:00:00Z"),
        (b'{"object": "a", "time": "0001-01-01T00:00:00+14:00"}', "not a time with its zone"),
        (b'{"object": "a", "time": 1767225600}', '"time" is 1767225600, not a time with its zone'),
        (b'{"object": "a", "kind": "rumour"}', "kind 'rumour' of object 'a' is none of data, gc, tombstone"),
        (b'{"object": "a", "payload": "' + b"x" * MAX_LINE_BYTES + b'"}', "the line is longer than 8,388,608 bytes"),
    ],
)
def test_a_bad_line_is_told_by_its_number_and_nothing_after_it_is_published(
    contacts: Run, line: bytes, reason: str
) -> None:
    result = contacts("streams", "publish", "contacts", stdin=b'{"object": "x"}\n' + line + b'\n{"object": "y"}\n')
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: 1 update durable; line 2: ")
    assert reason in result.err
    assert result.err.count("\n") == 1
    assert objects(contacts) == ["x"]


@pytest.mark.parametrize("bad", [1, 10, 11, 35])
def test_all_before_a_bad_line_is_durable_whatever_the_size_of_a_batch(contacts: Run, bad: int) -> None:
    text = [lines({"object": "a", "version": n}) for n in range(1, 51)]
    text[bad - 1] = "broken\n"
    result = contacts("streams", "publish", "contacts", "--batch", "10", "--json", stdin="".join(text))
    assert result.code == 1
    assert f"{bad - 1} update{'' if bad == 2 else 's'} durable; line {bad}: no JSON" in result.err
    assert result.json["published"] == bad - 1 == len(objects(contacts))


def test_a_file_that_cannot_be_read_is_named(contacts: Run, tmp_path: Path) -> None:
    result = contacts("streams", "publish", "contacts", "--file", "absent.jsonl")
    assert (result.code, result.err) == (1, "error: absent.jsonl cannot be read: No such file or directory\n")
    result = contacts("streams", "publish", "contacts", "--file", str(tmp_path))
    assert (result.code, result.err) == (1, f"error: {tmp_path} cannot be read: Is a directory\n")


def test_what_tail_prints_can_be_published_as_it_is(contacts: Run) -> None:
    update = {"object": "a", "version": 3, "source": "me", "payload": "x\ny", "attributes": {"k": "ü"}}
    published(contacts, update, {"object": "b", "payload_base64": "/w=="}, {"object": "c"})
    tail = ["streams", "tail", "--from", "earliest", "--no-follow", "--json"]
    first = contacts(*tail, "contacts").out
    assert contacts("streams", "create", "copy", "--shards", "4", "--log", "delta:copy").code == 0
    assert contacts("streams", "publish", "copy", stdin=first).code == 0
    assert contacts(*tail, "copy").out == first


def test_a_log_that_fails_ends_the_publication_and_what_is_durable_is_told(
    contacts: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = DeltaLog.append
    calls = iter([append, append])

    def full(log: DeltaLog, *arguments: Any) -> Any:
        if (really := next(calls, None)) is None:
            raise LogUnavailable("no space left")
        return really(log, *arguments)

    monkeypatch.setattr(DeltaLog, "append", full)
    text = lines(*({"object": "a", "version": n} for n in range(50)))
    result = contacts("streams", "publish", "contacts", "--batch", "10", "--json", stdin=text)
    assert (result.code, result.err) == (1, "20 updates durable\nerror: no space left\n")
    assert result.json["published"] == 20 == len(objects(contacts))


@given(st.binary(max_size=300))
def test_any_line_is_an_update_or_is_refused_but_nothing_else(line: bytes) -> None:
    with contextlib.suppress(InvalidUpdate):
        assert "object" in parse_line(line)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["object", "payload", "time", "x"]), inner),
    )
)
def test_any_json_is_an_update_or_is_refused_but_nothing_else(value: Any) -> None:
    with contextlib.suppress(InvalidUpdate):
        parse_line(json.dumps(value).encode())


def test_input_that_comes_slowly_is_published_at_once(contacts: Run, joined: Cluster) -> None:
    log = joined.stream("contacts").log
    with started("streams", "publish", "contacts") as process:
        assert process.stdin
        for n in range(1, 4):
            process.stdin.write(lines({"object": "a", "version": n}).encode())
            process.stdin.flush()
            eventually(lambda n=n: sum(one.head.seq + 1 for one in log.bounds().values()) == n, PATIENCE)  # type: ignore[misc]
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, b"3 updates durable\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_publication_that_is_stopped_tells_what_is_durable(
    contacts: Run, joined: Cluster, number: signal.Signals, code: int
) -> None:
    log = joined.stream("contacts").log
    with started("streams", "publish", "contacts", "--json") as process:
        assert process.stdin
        process.stdin.write(lines({"object": "a"}, {"object": "b"}).encode())
        process.stdin.flush()
        eventually(lambda: sum(one.head.seq + 1 for one in log.bounds().values()) == 2, PATIENCE)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (code, b"2 updates durable\n")
    assert json.loads(out)["published"] == 2


# Tail


def test_tail_starts_where_it_is_told(contacts: Run) -> None:
    published(contacts, *({"object": "a", "version": n} for n in range(10)))
    (shard,) = {line["shard"] for line in _tail(contacts, "--from", "earliest")}
    versions = [line["version"] for line in _tail(contacts, "--from", json.dumps({shard: 7}))]
    assert versions == [7, 8, 9]
    assert _tail(contacts, "--from", "latest") == []
    assert [line["version"] for line in _tail(contacts, "--from", "earliest", "--limit", "3")] == [0, 1, 2]
    assert [line["version"] for line in _tail(contacts, "--from", json.dumps({shard: 10}))] == []


def _tail(run: Run, *arguments: str) -> list[Any]:
    result = run("streams", "tail", "contacts", "--no-follow", "--json", *arguments)
    assert result.code == 0, result.err
    return result.json_lines


def test_tail_prints_only_the_shards_that_are_asked_for(contacts: Run) -> None:
    published(contacts, *({"object": f"object-{n}"} for n in range(100)))
    all_lines = _tail(contacts, "--from", "earliest")
    some = _tail(contacts, "--from", "earliest", "--shards", "0,2-3")
    assert some == [line for line in all_lines if line["shard"] != 1]
    assert {line["shard"] for line in some} == {0, 2, 3}
    assert len(_tail(contacts, "--from", "earliest", "--shards", "0,2-3", "--limit", "5")) == 5


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
            assert json.loads(_line(process))["version"] == n
            published(contacts, {"object": "a", "version": n + 1})
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (code, b"")


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
    assert ready, "nothing was printed"
    return process.stdout.readline()


def test_tail_ends_when_nobody_reads_it_even_if_nothing_comes(contacts: Run) -> None:
    published(contacts, {"object": "a"})
    with started("streams", "tail", "contacts", "--from", "earliest") as process:
        assert _line(process)
        assert process.stdout
        process.stdout.close()
        assert process.wait(PATIENCE) == 1
        assert process.stderr
        assert process.stderr.read() == b""


# Truncate


def test_truncate_shows_what_is_held_before_and_after(contacts: Run) -> None:
    for n in range(3):
        published(contacts, {"object": "a", "version": n})
    (shard,) = {line["shard"] for line in _tail(contacts, "--from", "earliest")}
    before = json.dumps({**dict.fromkeys("0123", 0), str(shard): 2})
    dry = contacts("streams", "truncate", "contacts", "--before", before, "--dry-run", "--json").json
    assert dry["executed"] is False
    assert len(objects(contacts)) == 3
    done = contacts("streams", "truncate", "contacts", "--before", before, "--execute", "--json").json
    assert (done["before"], done["after"]) == (dry["before"], dry["after"])
    assert done["after"][shard] == {"shard": shard, "floor": 2, "head": 2, "updates": 1}
    assert done["after"] == contacts("streams", "describe", "contacts", "--json").json["held"]
    assert [line["version"] for line in _tail(contacts, "--from", "earliest")] == [2]
    published(contacts, {"object": "a", "version": 3})
    result = contacts("streams", "truncate", "contacts", "--larger-than", "1B", "--execute")
    assert result.err == "2 updates were held, 1 are held now\n"
    assert result.out.splitlines()[1 + shard].split() == [str(shard), "2", "3", "3", "2", "1"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--older-than", "P1D"], 2, "error: truncate takes either --dry-run, "),
        (["--older-than", "P1D", "--dry-run", "--execute"], 2, "error: truncate takes either --dry-run, "),
        (["--execute"], 2, "error: truncate takes exactly one of --before, --older-than and --larger-than"),
        (["--execute", "--older-than", "P1D", "--larger-than", "1B"], 2, "error: truncate takes exactly one of "),
        (["--execute", "--older-than", "1d"], 2, "'1d' is no duration"),
        (["--execute", "--larger-than", "0"], 2, "'0' is no size"),
        (["--execute", "--before", "all"], 2, "'all' is no set of positions"),
        (["--execute", "--before", '{"4": 1}'], 1, "error: there is no shard 4: the stream has shards 0 to 3"),
        (["--execute", "--before", '{"0": 1000}'], 1, "error: shard 0 ends at 0: there is no update 1,000 yet"),
        (["--execute", "--before", '{"1": 1000}'], 1, "error: shard 1 has no update yet, so none before 1,000"),
    ],
)
def test_a_truncation_that_cannot_be_is_refused(contacts: Run, arguments: list[str], code: int, message: str) -> None:
    published(contacts, {"object": "a"})  # in shard 0
    result = contacts("streams", "truncate", "contacts", *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert objects(contacts) == ["a"]


# Apply

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
            "2: streams.contacts.log: the stream's log is delta:{folder}/data/contacts;",
        ),
        (
            "streams:\n  new: {shards: 4, log: delta:data/new}\n  b: {log: delta:data/contacts}\n",
            "3: streams.b.log: is the log of stream 'contacts' in this cluster; each stream has its own",
        ),
        (
            "streams:\n  new: {log: delta:data/new}\n  b: {log: tape:x}\n",
            "3: streams.b.log: no log 'tape' is installed (installed: delta)",
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
    monkeypatch.setattr(tidings.plugins, "entry_points", _with_entry_points(stage))
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


# Plugins


def _with_entry_points(*more: EntryPoint) -> Callable[..., Sequence[EntryPoint]]:

    def entry_points(group: str) -> Sequence[EntryPoint]:
        return [*installed(group=group), *(one for one in more if one.group == group)]

    return entry_points


def test_plugins_that_do_not_work_say_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("tape", "no_such_module:Tape", "tidings.logs")
    monkeypatch.setattr(tidings.plugins, "entry_points", _with_entry_points(broken))
    found = {(one["kind"], one["name"]): one for one in run("plugins", "--json").json}
    delta, tape = found["log", "delta"], found["log", "tape"]
    assert (delta["state"], delta["problem"]) == ("ready", None)
    assert (tape["state"], tape["target"]) == ("broken", "no_such_module:Tape")
    assert "No module named 'no_such_module'" in tape["problem"]
    rows = run("plugins").out.splitlines()
    assert rows[0].split() == ["KIND", "NAME", "PACKAGE", "STATE"]
    assert [row for row in rows if row.split()[:4] == ["log", "tape", "no_such_module:Tape", "broken:"]]


# The command as a whole


@pytest.mark.parametrize(
    "arguments", [["nope"], ["streams", "nope"], ["streams", "list", "--nope"], ["streams", "tail"], ["--nope"]]
)
def test_bad_usage_is_told_with_exit_code_2(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "Usage: tidings" in result.err
    assert "Error: " in result.err


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version") == Result(0, f"tidings {tidings.__version__}\n", "")


def test_every_command_and_option_is_described() -> None:
    def check(command: Any, path: str) -> None:
        assert command.help, path
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{path} {parameter.name}"
        for name, inner in getattr(command, "commands", {}).items():
            check(inner, f"{path} {name}")

    check(typer.main.get_command(app), "tidings")


def test_the_page_about_the_command_line_is_what_the_commands_say() -> None:
    written = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == page(), "make it anew: python -m tidings.cli.reference > docs/cli.md"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tidings.cli import main; assert main(['--help']) == main(['streams', '--help']) == 0; "
        "heavy = {'pyspark', 'deltalake', 'kazoo', 'pyarrow', 'numpy', 'yaml', 'rich'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "tidings streams publish" in result.stdout


def test_a_dead_zookeeper_is_one_sentence() -> None:
    arguments = ["streams", "list", "--zookeeper", "127.0.0.1:1/nobody", "--timeout", "1"]
    result = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: no ZooKeeper answers at 127.0.0.1:1 within 1 s")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("address", ["here", "a:b", "h:1//x", "h:1 /x"])
def test_an_address_that_is_none_is_refused(run: Run, address: str) -> None:
    result = run("streams", "list", "--zookeeper", address)
    assert result.code == 1
    assert result.err.startswith(f"error: {address!r} is no ZooKeeper address")


def test_credentials_come_from_the_environment_and_are_never_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_CREDENTIALS", "secret")
    result = run("streams", "list")
    assert (result.code, result.err) == (1, "error: TIDINGS_ZOOKEEPER_CREDENTIALS is not of the form user:password\n")
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_CREDENTIALS", "user:secret")
    assert "secret" not in run("-vv", "streams", "list").err
    assert run("streams", "create", "ours", "--log", "delta:ours").code == 0
    monkeypatch.delenv("TIDINGS_ZOOKEEPER_CREDENTIALS")
    assert len(run("streams", "list", "--json").json) == 1
    denied = run("streams", "drop", "ours", "--yes")
    assert denied.code == 1
    assert "does not permit that" in denied.err
    assert len(run("streams", "list", "--json").json) == 1


def test_a_closed_pipe_is_no_reason_for_a_trace(contacts: Run) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with started("streams", "describe", "contacts", stdout=writer) as process:
        os.close(writer)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (1, b"")


def test_a_bug_shows_its_trace(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(tidings.plugins, "installed", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["plugins"])


def test_output_that_is_no_terminal_has_no_colours_and_is_not_cut_off(run: Run, tmp_path: Path) -> None:
    long = "x" * 200
    assert run("streams", "create", "contacts", "--shards", "1", "--log", f"delta:{long}").code == 0
    out = run("streams", "list").out
    assert f"delta:{tmp_path}/{long} " in out
    assert "\x1b" not in out


def test_the_signal_handler_and_the_exception_hook_are_put_back(run: Run) -> None:
    before = signal.getsignal(signal.SIGTERM), sys.excepthook
    assert run("plugins").code == 0
    assert (signal.getsignal(signal.SIGTERM), sys.excepthook) == before
