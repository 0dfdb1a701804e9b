"""`tidings streams publish`: lines of JSON become updates, and what is durable is told."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import PATIENCE_S, Run, ended, lines, objects, on_terminal, published, started, tail
from tidings.cli.jsonl import MAX_LINE_BYTES, parse_line
from tidings.cluster import Cluster
from tidings.errors import InvalidUpdate, LogUnavailable
from tidings.testing import eventually
from tidings_connectors.delta.log import DeltaLog


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
        (
            b'{"object": "a", "attributes": {"k": 1}}',
            "attribute 'k' is 1, not text: write \"1\"",
        ),
        (b'{"object": "a", "attributes": {"k": {}}}', "attribute 'k' of object 'a' is dict, not text"),
        (b'{"object": "a", "attributes": ["k"]}', "attributes of object 'a' are list, not a mapping"),
        (b'{"object": "a", "payload": 7}', '"payload" is 7, not text: write it between quotes; only objects and lists'),
        (b'{"object": "a", "payload": {"x": 1e999}}', '"payload" cannot be written as JSON'),
        (b'{"object": "a", "payload": "\\ud800"}', '"payload" is no valid text; send bytes as "payload_base64"'),
        (b'{"object": "a", "payload_base64": "?"}', '"payload_base64" is not base64'),
        (b'{"object": "a", "payload_base64": 7}', '"payload_base64" is not base64'),
        (b'{"object": "a", "payload": "x", "payload_base64": "eA=="}', 'has both "payload" and "payload_base64"'),
        (b'{"object": "a", "payload": "' + b"x" * (2**20 + 1) + b'"}', "has 1,048,577 bytes; the limit is 1,048,576"),
        (b'{"object": "a", "time": "yesterday"}', "\"time\" is 'yesterday', not a time with its zone"),
        (b'{"object": "a", "time": "2026-01-01T00:00:00"}', "not a time with its zone, as in 2026-01-01T00:00:00Z"),
        (b'{"object": "a", "time": "0001-01-01T00:00:00+14:00"}', "not a time with its zone"),
        (b'{"object": "a", "time": 1767225600}', '"time" is 1767225600, not a time with its zone'),
        (b'{"object": "a", "kind": "rumour"}', "kind 'rumour' of object 'a' is none of data, gc"),
        (b'{"object": "a", "payload": "' + b"x" * MAX_LINE_BYTES + b'"}', "the line is longer than 16,777,216 bytes"),
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
            eventually(lambda n=n: sum(one.head.seq + 1 for one in log.bounds().values()) == n, PATIENCE_S)  # type: ignore[misc]
        _, err = process.communicate(timeout=PATIENCE_S)
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
        eventually(lambda: sum(one.head.seq + 1 for one in log.bounds().values()) == 2, PATIENCE_S)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (code, b"2 updates durable\n")
    assert json.loads(out)["published"] == 2


def test_on_a_terminal_a_bar_shows_what_is_durable(contacts: Run, tmp_path: Path) -> None:
    file = tmp_path / "updates.jsonl"
    file.write_text(lines(*({"object": f"o{n}"} for n in range(300))))
    result = on_terminal("streams", "publish", "contacts", "--batch", "100", "--json", "--file", str(file))
    assert (result.code, result.json["published"]) == (0, 300)
    assert "━" in result.err, "that is what the bar is drawn with"
    assert "200 updates durable" in result.err
    assert result.err.endswith("\x1b[2K"), "the bar is gone when the command ends"


def test_where_no_terminal_shows_it_there_is_no_bar(contacts: Run, tmp_path: Path) -> None:
    file = tmp_path / "updates.jsonl"
    file.write_text(lines(*({"object": f"o{n}"} for n in range(300))))
    with started("streams", "publish", "contacts", "--batch", "100", "--file", str(file)) as process:
        result = ended(process)
    assert (result.code, result.out, result.err) == (0, "", "300 updates durable\n")


def test_a_payload_that_is_an_object_or_a_list_is_published_as_json(contacts: Run) -> None:
    payloads = [{"amount": 3, "to": "Åsa"}, [1, "two", None], {}, "text"]
    published(contacts, *({"object": "alice", "version": n, "payload": one} for n, one in enumerate(payloads)))
    found = [one["payload"] for one in tail(contacts, "--from", "earliest")]
    assert found == ['{"amount":3,"to":"Åsa"}', '[1,"two",null]', "{}", "text"]
