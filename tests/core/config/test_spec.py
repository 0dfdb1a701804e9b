"""`tidings.yml`: what is accepted, and what is said about everything else."""

from __future__ import annotations

import contextlib
import string
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.places import ROOT
from tidings.config.files import find
from tidings.config.spec import (
    ApplicationSpec,
    CaravansSpec,
    PipelineSpec,
    RetentionSpec,
    Spec,
    StreamSpec,
    load,
)
from tidings.config.units import parse_duration, parse_size
from tidings.errors import InvalidConfig, InvalidOption
from tidings.log_opening import resolve_log

WHOLE = """\
name: demo
zookeeper: 127.0.0.1:2181/demo
streams:
  contacts:
    shards: 8
    log: delta:data/contacts
    retention: {age: P7D, size: 10GiB}
  clicks:
    log: delta:/data/clicks
applications:
  mailer:
    streams: [contacts, clicks]
    filter: region = 'eu'
    start: 2026-01-01T01:00:00+01:00
    mode: realtime
    max_age: PT1H
    balance: zookeeper
    on_failure: stream:letters
pipelines:
  latest:
    input: contacts
    stage: thialfi
    options: {channels: [web, push]}
    output: clicks
"""


def spec_of(folder: Path, text: str | bytes) -> Spec:
    path = folder / "tidings.yml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(path)


def mistakes_of(folder: Path, text: str | bytes) -> list[str]:
    """The lines of the error, without the file's name, which every line must begin with."""
    with pytest.raises(InvalidConfig) as caught:
        spec_of(folder, text)
    prefix = f"{folder / 'tidings.yml'}:"
    lines = str(caught.value).splitlines()
    assert all(line.startswith(prefix) for line in lines)
    return [line.removeprefix(prefix) for line in lines]


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, WHOLE)
    contacts, clicks = spec.definitions()
    assert (contacts.name, contacts.shards, contacts.retention_seconds) == ("contacts", 8, 7 * 86400)
    assert contacts.retention_bytes == 10 * 2**30
    assert (clicks.shards, clicks.retention_seconds, clicks.retention_bytes) == (16, None, None)
    mailer = spec.applications["mailer"]
    assert (mailer.mode, mailer.max_age, mailer.balance) == ("realtime", 3600, "zookeeper")
    assert mailer.definition("mailer").dead_letters == "letters"
    assert mailer.start == "2026-01-01T00:00:00Z"
    assert spec.pipelines["latest"].input == ["contacts"]


def test_relative_logs_start_at_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir("/")
    contacts, clicks = spec_of(tmp_path / "project", WHOLE).definitions()
    assert contacts.log == f"delta:{tmp_path}/project/data/contacts"
    assert clicks.log == "delta:/data/clicks"
    monkeypatch.chdir(tmp_path / "project")
    assert load(Path("tidings.yml")).definitions()[0].log == contacts.log


def test_storage_starts_at_the_folder_of_the_file_and_has_a_default(tmp_path: Path) -> None:
    assert spec_of(tmp_path, "name: x\n").storage_folder == tmp_path / "storage"
    assert spec_of(tmp_path, "storage: ../kept\n").storage_folder == tmp_path.parent / "kept"
    assert spec_of(tmp_path, "storage: /data/kept\n").storage_folder == Path("/data/kept")


def test_logs_that_are_no_folder_keep_their_address() -> None:
    assert resolve_log("kafka:broker:9092/contacts", Path("/x")) == "kafka:broker:9092/contacts"
    assert resolve_log("delta:s3://bucket/contacts", Path("/x")) == "delta:s3://bucket/contacts"
    assert resolve_log("delta:../y/./z", Path("/x")) == "delta:/y/z"


def test_sections_without_entries_are_accepted(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "streams:\napplications: {}\npipelines: null\n")
    assert not spec.streams
    assert not spec.applications
    assert not spec.pipelines


def test_names_are_taken_as_they_are_written(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "streams:\n  2026-01-01: {log: delta:a}\n  on: {log: delta:b}\n  12: {log: delta:c}\n")
    assert list(spec.streams) == ["2026-01-01", "on", "12"]


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("streams:\n  a:\n    shards: 0\n    log: delta:x\n", ["3: streams.a.shards: must be at least 1, not 0"]),
        (
            "streams:\n  a:\n    log: delta:x\n    shards: 9999\n",
            ["4: streams.a.shards: must be at most 4,096, not 9999"],
        ),
        ("streams:\n  a: {shards: '8', log: delta:x}\n", ["2: streams.a.shards: must be a whole number, not '8'"]),
        ("streams:\n  a: {shards: yes, log: delta:x}\n", ["2: streams.a.shards: must be a whole number, not True"]),
        ("streams:\n  a: {shards: 1.5, log: delta:x}\n", ["2: streams.a.shards: must be a whole number, not 1.5"]),
        ("streams:\n  a:\n    shards: 1\n", ["2: streams.a.log: is missing"]),
        ("streams:\n  a:\n", ["2: streams.a: must be a mapping of keys, not None"]),
        ("streams: [a, b]\n", ["1: streams: must be a mapping of keys, not ['a', 'b']"]),
        (
            "streams:\n  a: {log: here}\n",
            ["2: streams.a.log: 'here' is no log: write a scheme and a place, as in delta:/data/contacts"],
        ),
        ("streams:\n  a: {log: 7}\n", ["2: streams.a.log: must be text, not 7"]),
        ("\nstream:\n  a: {log: delta:x}\n", ["2: stream: unknown key; did you mean streams?"]),
        ("zoo: 1\n", ["1: zoo: unknown key; the keys are name, zookeeper, storage, streams, applications, pipelines"]),
        ("streams:\n  a: {log: delta:x, shard: 3}\n", ["2: streams.a.shard: unknown key; did you mean shards?"]),
        (
            "streams:\n  a:\n    log: delta:x\n    retention:\n      agee: P7D\n",
            ["5: streams.a.retention.agee: unknown key; did you mean age?"],
        ),
        (
            "streams:\n  a:\n    log: delta:x\n    caravans: {polcy: single, size: 3}\n",
            [
                "4: streams.a.caravans.polcy: unknown key; did you mean policy?",
                "4: streams.a.caravans.size: unknown key; the keys are policy, caravans, rate, total_rate",
            ],
        ),
        (
            "streams:\n  retention: {log: delta:x, shard: 3}\n",
            ["2: streams.retention.shard: unknown key; did you mean shards?"],
        ),
        (
            "streams:\n  a: {log: delta:x, retention: {age: 7d}}\n",
            ["2: streams.a.retention.age: '7d' is no duration: write ISO 8601, as in P7D, PT12H or P1DT30M"],
        ),
        (
            "streams:\n  a: {log: delta:x, retention: {age: 7}}\n",
            ["2: streams.a.retention.age: must be a duration, as in P7D, not 7"],
        ),
        (
            "streams:\n  a: {log: delta:x, retention: {size: 10G}}\n",
            ["2: streams.a.retention.size: '10G' is no size: write bytes, or a unit, as in 4096, 500MB or 10GiB"],
        ),
        (
            "streams:\n  a: {log: delta:x, retention: {size: -1}}\n",
            ["2: streams.a.retention.size: '-1' is no size: write bytes, or a unit, as in 4096, 500MB or 10GiB"],
        ),
        (
            "streams:\n  a: {log: delta:x, retention: {size: yes}}\n",
            ["2: streams.a.retention.size: must be a size, as in 10GiB, not True"],
        ),
        (
            "streams:\n  a/b: {log: delta:x}\n",
            ["2: streams.a/b: 'a/b' is no name for a stream: use 1 to 128 letters, digits, '.', '_' and '-'"],
        ),
        (
            "streams:\n  a: {log: delta:/x}\n  b: {log: delta:/y/../x}\n",
            ["3: streams.b.log: delta:/x belongs to stream 'a' already: each stream has its own"],
        ),
        ("name: ''\n", ["1: name: must not be empty"]),
        ("name: 3\n", ["1: name: must be text, not 3"]),
        ("zookeeper: here\n", ["1: zookeeper: 'here' is no ZooKeeper address: write host:port[,host:port…][/root]"]),
        ("applications:\n  x: {}\n", ["2: applications.x.streams: is missing"]),
        ("applications:\n  x: {streams: []}\n", ["2: applications.x.streams: must name one at least"]),
        ("applications:\n  x: {streams: a}\n", ["2: applications.x.streams: must be a list, not 'a'"]),
        ("applications:\n  x:\n    streams:\n    - a\n    - 3\n", ["5: applications.x.streams.1: must be text, not 3"]),
        ("applications:\n  x: {streams: [a, a]}\n", ["2: applications.x.streams.1: names stream 'a' twice"]),
        (
            "applications:\n  x: {streams: [a], mode: fast}\n",
            ["2: applications.x.mode: must be 'reliable' or 'realtime', not 'fast'"],
        ),
        ("applications:\n  x: {streams: [a], balance: 7}\n", ["2: applications.x.balance: must be text, not 7"]),
        (
            "applications:\n  x: {streams: [a], on_failure: retry}\n",
            ["2: applications.x.on_failure: must be park, skip or stream:NAME, not 'retry'"],
        ),
        (
            "applications:\n  x: {streams: [a], start: {b: {0: 1}}}\n",
            ["2: applications.x.start.b: stream 'b' is none of the application's"],
        ),
        (
            "applications:\n  x: {streams: [a], start: {a: {0: -5}}}\n",
            ["2: applications.x.start: -5 is no position: seq or index is out of range"],
        ),
        (
            "applications:\n  é: {streams: [a]}\n",
            ["2: applications.é: 'é' is no name for an application: use 1 to 128 letters, digits, '.', '_' and '-'"],
        ),
        ("pipelines:\n  p: {input: a, output: b}\n", ["2: pipelines.p.stage: is missing"]),
        ("pipelines:\n  p: {input: [], stage: s, output: b}\n", ["2: pipelines.p.input: must name one at least"]),
        (
            "pipelines:\n  p: {input: a, stage: s, output: a}\n",
            ["2: pipelines.p.output: stream 'a' is the pipeline's input too"],
        ),
        ("pipelines:\n  p: {input: [a, a], stage: s}\n", ["2: pipelines.p.input.1: names stream 'a' twice"]),
        (
            "pipelines:\n  p: {input: a, stage: s, output: b}\n  q: {input: b, stage: s, output: a}\n",
            [
                "2: pipelines.p.output: comes back to its own input, by p → q → p",
                "3: pipelines.q.output: comes back to its own input, by q → p → q",
            ],
        ),
        (
            "pipelines:\n  p: {input: a, stage: s, output: b, options: 3}\n",
            ["2: pipelines.p.options: must be a mapping of keys, not 3"],
        ),
        ("- a\n- b\n", ["1: must be a mapping of keys, not ['a', 'b']"]),
        ("just text\n", ["1: must be a mapping of keys, not 'just text'"]),
    ],
)
def test_a_mistake_is_told_with_its_line_and_key(tmp_path: Path, text: str, mistakes: list[str]) -> None:
    assert mistakes_of(tmp_path, text) == mistakes


@pytest.mark.parametrize("start", ["tomorrow", "2026-01-01", "2026-01-01T00:00:00", "17", "[1]", "{}", "null", "''"])
def test_a_start_is_a_word_or_a_time_with_its_zone_or_positions(tmp_path: Path, start: str) -> None:
    (mistake,) = mistakes_of(tmp_path, f"applications:\n  x: {{streams: [a], start: {start}}}\n")
    assert mistake.startswith("2: applications.x.start: must be earliest, latest, a time with its zone, as in 2026")


@pytest.mark.parametrize(
    ("start", "value"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("'2026-01-01T02:00:00+02:00'", "2026-01-01T00:00:00Z"),
        ("{a: {0: 12, '3': [4, 1]}}", {"a": {"0": 12, "3": [4, 1]}}),
    ],
)
def test_a_start_is_kept_as_json_has_it(tmp_path: Path, start: str, value: object) -> None:
    spec = spec_of(tmp_path, f"applications:\n  x: {{streams: [a], start: {start}}}\n")
    assert spec.applications["x"].start == value


def test_all_mistakes_are_told_in_the_order_of_the_lines(tmp_path: Path) -> None:
    text = "streams:\n  b: {log: x, shards: 0}\n  a: {}\nname: 3\nother: 1\n"
    assert [line.partition(": ")[0] for line in mistakes_of(tmp_path, text)] == ["2", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("a: b: c\n", "1:5", "mapping values are not allowed here"),
        ("streams:\n\ta: 1\n", "2:1", "found character '\\t' that cannot start any token"),
        ("streams: [a, b\n", "2:1", "expected ',' or ']', but got '<stream end>'"),
        ("streams: 'a\n", "2:1", "found unexpected end of stream"),
        ("streams: }\n", "1:10", "expected the node content, but found '}'"),
        ("name: a\n---\nname: b\n", "2:1", "but found another document"),
        ("streams: &x {}\napplications: *x\n", "1:10", "anchors and aliases are not taken here: write the value out"),
        ("streams: *x\n", "1:10", "anchors and aliases are not taken here: write the value out"),
        (
            "name: !!python/name:os.system x\n",
            "1:7",
            "tags are not taken here: leave tag:yaml.org,2002:python/name:os.system out",
        ),
        ("name: !!int ''\n", "1:7", "tags are not taken here: leave tag:yaml.org,2002:int out"),
        ("streams: !here {}\n", "1:10", "tags are not taken here: leave !here out"),
        ("name: " + "[" * 40 + "]" * 40, "1:38", "more than 32 levels"),
        ("name: " + "[" * 100_000, "1:38", "more than 32 levels"),
        (b"name: caf\xe9\n", "1", "byte 0xe9 is not UTF-8"),
        (b"\nname: \x07\n", "2", "character 0x7 is not allowed"),
    ],
)
def test_broken_yaml_is_told_with_its_place(tmp_path: Path, text: str | bytes, place: str, problem: str) -> None:
    assert mistakes_of(tmp_path, text) == [f"{place}: broken YAML: {problem}"]


def test_keys_that_are_there_twice_are_a_mistake(tmp_path: Path) -> None:
    text = "streams:\n  a: {log: delta:x}\n  b: {log: delta:y}\n  a: {log: delta:z}\nname: x\nname: y\n"
    assert mistakes_of(tmp_path, text) == [
        "4: streams.a: is here twice, first on line 2",
        "6: name: is here twice, first on line 5",
    ]


def test_keys_that_are_no_text_are_a_mistake(tmp_path: Path) -> None:
    assert mistakes_of(tmp_path, "streams:\n  ? [a, b]\n  : 1\n") == ["2: a key must be text, not a list or a mapping"]


@pytest.mark.parametrize(
    "value", ["2026-13-45", "0x_", "1" * 5000, "0x" + "f" * 500_000, "0b" + "1" * 500_000, "0o" + "7" * 500_000]
)
def test_values_that_look_like_more_than_they_are_do_no_harm(tmp_path: Path, value: str) -> None:
    (mistake,) = mistakes_of(tmp_path, f"streams:\n  a: {{log: delta:x, shards: {value}}}\n")
    assert mistake.startswith("2: streams.a.shards: ")


@pytest.mark.parametrize("value", ["1" + ":1" * 500_000, "-1" + ":59" * 300_000, "1" + ":1" * 500_000 + ".5"])
def test_numbers_to_the_base_of_60_are_texts_and_take_no_time(tmp_path: Path, value: str) -> None:
    started = time.process_time()
    (mistake,) = mistakes_of(tmp_path, f"streams:\n  a: {{log: delta:x, shards: {value}}}\n")
    assert mistake.startswith("2: streams.a.shards: ")
    assert len(mistake) < 1000
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-7", -7),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("1.5", 1.5),
    ],
)
def test_numbers_are_those_of_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    spec = spec_of(tmp_path, f"streams:\n  a: {{log: delta:x, options: {{n: {text}}}}}\n")
    assert spec.streams["a"].options == {"n": value}


def test_an_empty_file_says_which_keys_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="says nothing; its keys are name, zookeeper"):
        spec_of(tmp_path, "# nothing yet\n")


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    assert spec_of(tmp_path, b"\xef\xbb\xbfname: demo\n").name == "demo"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="is larger than 1,048,576 bytes"):
        spec_of(tmp_path, "# " + "x" * 2**20)
    with pytest.raises(InvalidConfig, match="is larger than 1,048,576 bytes"):
        load(Path("/dev/zero"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"absent\.yml: cannot be read: No such file or directory"):
        load(tmp_path / "absent.yml")
    with pytest.raises(InvalidConfig, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_the_file_is_found_in_the_nearest_folder_above(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "tidings.yaml").touch()
    assert find(inner) == tmp_path / "tidings.yaml"
    (tmp_path / "a" / "tidings.yml").touch()
    assert find(inner) == tmp_path / "a" / "tidings.yml"


def test_two_files_in_one_folder_are_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").touch()
    (tmp_path / "tidings.yaml").touch()
    with pytest.raises(InvalidConfig, match=r"has both tidings\.yml and tidings\.yaml: keep one"):
        find(tmp_path)


def test_no_file_anywhere_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=f"there is no tidings.yml in {tmp_path} or above it"):
        find(tmp_path)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_durations_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = days * 86400 + hours * 3600 + minutes * 60 + seconds
    assert parse_duration(f"P{days}DT{hours}H{minutes}M{seconds}S") == total


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P7", "7D", "P1M", "P1Y", "P1.5D", "-P1D", "p7d", "PT0S", "P1DT", "P1D ", "P²D"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="is no"):
        parse_duration(text)


def test_sizes_count_in_thousands_or_in_1024s() -> None:
    assert [parse_size(f"2{unit}") for unit in ("", "B", "kB", "MB", "GB", "TB")] == [
        2,
        2,
        *(2 * 1000**n for n in (1, 2, 3, 4)),
    ]
    assert [parse_size(f"2 {unit}") for unit in ("KiB", "MiB", "GiB", "TiB")] == [2 * 1024**n for n in (1, 2, 3, 4)]
    assert parse_size("1.5KiB") == 1536


@pytest.mark.parametrize(
    "text", ["", "B", "10G", "10g", "1e6", "-1", "0", "0.0001kB", "1,000", "10 G iB", "9" * 15 + "TiB", "१"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="is no size"):
        parse_size(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_but_nothing_else(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yml"
    path.write_bytes(raw)
    with contextlib.suppress(InvalidConfig):
        load(path)


@given(st.text(string.printable + "äø&*!<>%@`", max_size=60))
def test_any_value_of_a_key_is_read_or_refused_but_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "value.yml"
    path.write_text(f"streams:\n  a:\n    log: {text}\n    shards: {text}\n", encoding="utf-8")
    with contextlib.suppress(InvalidConfig):
        load(path)


def test_the_example_is_a_valid_file() -> None:
    example = load(ROOT / "examples" / "tidings.yml")
    assert example.streams
    assert example.storage_folder.name != "pipelines", "in which a folder `pipelines` is made"


def test_every_key_is_documented() -> None:
    page = (ROOT / "docs" / "tidings-yml.md").read_text(encoding="utf-8")
    for model in (Spec, StreamSpec, RetentionSpec, CaravansSpec, ApplicationSpec, PipelineSpec):
        for key in model.model_fields:
            assert f"`{key}`" in page, f"docs/tidings-yml.md does not speak of {key}"
