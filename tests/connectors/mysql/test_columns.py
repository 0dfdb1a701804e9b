"""What a snapshot of a MariaDB makes of columns, keys and tables: the same as the log."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.connectors.mysql.test_values import CASES, SETUP
from tests.support import mysql_server, mysql_snapshots, snapshot_steps
from tests.support.mysql_server import Scene, heads, listed, needs_mariadb
from tests.support.mysql_snapshots import BASE, opened, operations, replayed, whole, with_snapshot
from tidings.positions import Position, Positions
from tidings_connectors.cdc import snapshot
from tidings_connectors.mysql.connection import quoted_name

password, server = mysql_server.password, mysql_server.own_server
small_chunks, scene = snapshot_steps.small_chunks, mysql_snapshots.scene
pytestmark = needs_mariadb

OTHERS = {
    "zeros": ("INT(5) ZEROFILL", ["42"]),
    "decimal_zeros": ("DECIMAL(10,2) ZEROFILL", ["1.5"]),
    "year_two": ("YEAR(2)", ["24", "99", "0"]),
    "float_fixed": ("FLOAT(7,3)", ["0.1", "1234.5678"]),
    "double_fixed": ("DOUBLE(20,2)", ["123456789012345.67", "1e17 / 3"]),
    "double_zeros": ("DOUBLE ZEROFILL", ["2.5"]),
    "floats": ("FLOAT", ["1/3", "16777217", "1e-45", "3.4028234e38", "1e7", "123456.7"]),
    "doubles": ("DOUBLE", ["1/3e0", "5e-324", "1.7976931348623157e308", "1e22", "1e15"]),
    "char_wide": ("CHAR(5) CHARACTER SET ucs2", ["'a  '", "' é '"]),
    "text_compressed": ("TEXT COMPRESSED", ["REPEAT('ab', 500)", "'short'", "''", "NULL"]),
    "varchar_compressed": ("VARCHAR(300) COMPRESSED CHARACTER SET latin1", ["REPEAT('é', 200)", "''"]),
    "blob_compressed": ("LONGBLOB COMPRESSED", ["REPEAT(x'00', 5000)", "x'ff'"]),
    "enum_latin1": ("ENUM('größe', 'b', '') CHARACTER SET latin1", ["'größe'", "'b'", "''", "'no member'"]),
    "enum_utf16": ("ENUM('a', 'ö') CHARACTER SET utf16", ["'a'", "'ö'"]),
    "set_latin1": ("SET('ö', 'b', 'é') CHARACTER SET latin1", ["'ö,b'", "'b,é'", "''"]),
    "set_utf16": ("SET('a', 'ö') CHARACTER SET utf16", ["'a,ö'", "'a'"]),
    "binary_spaces": ("BINARY(3)", ["'x '", "x'000000'"]),
    "no_encoding": ("VARCHAR(9) CHARACTER SET armscii8", ["'abc'"]),
    "undefined": ("VARCHAR(9) CHARACTER SET latin1", ["x'8d41'"]),
    "inet4": ("INET4", ["'192.168.0.0'"]),
    "uuid": ("UUID", ["'123e4567-e89b-12d3-a456-426655440000'", "'123e4567-e89b-42d3-a456-426655440000'", "UUID()"]),
    "polygon": ("POLYGON", ["ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))', 4326)"]),
    "timestamp_early": ("TIMESTAMP(3) NULL", ["'1970-01-01 05:00:01.500'"]),
}


UNFIT_FOR_KEYS = ("TEXT", "BLOB", "JSON", "POINT", "POLYGON", "2000", "NULL", "COMPRESSED")


def test_values_are_those_that_the_log_would_have(scene: Scene, tmp_path: Path) -> None:
    tables = {name: (kind, [text for text, _ in values]) for name, (kind, values) in CASES.items()} | OTHERS
    for name, (kind, values) in tables.items():
        names = not any(
            word in kind for word in ("TEXT", "BLOB", "JSON", "POINT", "POLYGON", "2000", "NULL", "COMPRESSED")
        )
        key = "value, id" if names and "NULL" not in values else "id"
        scene.sql(f"CREATE TABLE {name}_ (id INT, value {kind}, PRIMARY KEY ({key}))")
    log = scene.log(*(f"{name}_" for name in tables))
    start = heads(log)
    for name, (_, values) in tables.items():
        scene.sql(*SETUP, *(f"INSERT INTO {name}_ VALUES ({number}, {one})" for number, one in enumerate(values)))
    of_log = log.tail(start, 10_000)
    assert same_in_snapshot(scene, tmp_path, of_log, *(f"{name}_" for name in tables))


def same_in_snapshot(scene: Scene, folder: Path, of_log: pa.Table, *tables: str) -> bool:
    with opened(with_snapshot(scene, folder, *tables)) as log:
        stand = Positions(dict.fromkeys(range(2), Position(scene.server.seq(), BASE - 1)))
        of_snapshot = log.tail(stand, 10_000)
    assert operations(listed(of_snapshot)) == ["snapshot"] * len(of_log)
    columns = ["object", "shard", "payload"]
    one, other = (sorted(rows.select(columns).to_pylist(), key=str) for rows in (of_log, of_snapshot))
    assert one == other
    return True


def test_any_number_is_that_of_the_log(scene: Scene, tmp_path: Path) -> None:
    chance = random.Random(7)
    numbers = [chance.uniform(-1, 1) * 10.0 ** chance.randint(-30, 30) for _ in range(500)]
    scene.sql("CREATE TABLE numbers (id INT PRIMARY KEY, f FLOAT, d DOUBLE, n DECIMAL(65,30))")
    log = scene.log("numbers")
    start = heads(log)
    with scene.connect() as connection, connection.cursor() as cursor:
        rows = [(at, number, number, number) for at, number in enumerate(numbers)]
        cursor.executemany("INSERT INTO numbers VALUES (%s, %s, %s, %s)", rows)
    assert same_in_snapshot(scene, tmp_path, log.tail(start, 10_000), "numbers")


KEYS = {
    "number": ("INT", ["-2147483648", "-1", "0", "1", "10", "9"]),
    "large": ("BIGINT UNSIGNED", ["0", "9007199254740993", "9007199254740992", "18446744073709551615"]),
    "decimal": ("DECIMAL(30,4)", ["-1.5", "0", "12345678901234567890.1234", "12345678901234567890.1235"]),
    "general": ("VARCHAR(20)", ["'b'", "'A'", "'é'", "'ž'", "'y'", "''", "'%s'", "'it''s'", "'日本'", "'🎉'"]),
    "binary_order": ("VARCHAR(20) COLLATE utf8mb4_bin", ["'b'", "'B'", "'a'", "'é'", "'a b'", "'a\\tb'"]),
    "german": ("VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_german2_ci", ["'ä'", "'ae1'", "'b'", "'ß'", "'t'"]),
    "wide": ("VARCHAR(20) CHARACTER SET utf16", ["'ā'", "'Ā1'", "'🎉'", "'b'"]),
    "unicode": ("VARCHAR(20) COLLATE utf8mb4_uca1400_ai_ci", ["'é'", "'f'", "'E1'", "'-a'"]),
    "unpadded": ("VARCHAR(20) COLLATE utf8mb4_nopad_bin", ["'a'", "'a '", "'a  '", "'a\\0'", "'b'"]),
    "char": ("CHAR(10)", ["'a'", "'a\\tb'", "'ab'", "'b'"]),
    "binary": ("BINARY(3)", ["x'000000'", "x'610000'", "x'ffffff'", "x'612000'"]),
    "varbinary": ("VARBINARY(9)", ["''", "x'00'", "x'0000'", "x'61'", "x'6100'", "x'ff27'", "x'5c'"]),
    "date": ("DATE", ["'0000-00-00'", "'2024-00-00'", "'2024-02-29'", "'9999-12-31'"]),
    "datetime": ("DATETIME(6)", ["'0000-00-00'", "'2024-01-02 03:04:05.000006'", "'2024-01-02 03:04:05.000007'"]),
    "timestamp": ("TIMESTAMP(3)", ["0", "'2024-10-27 05:30:00'", "'2024-10-27 06:30:00.001'", "'2038-01-01'"]),
    "time": ("TIME(2)", ["'-838:59:59'", "'-00:00:01.5'", "'00:00:00'", "'100:00:00.01'"]),
    "uuid": ("UUID", [f"'{n}23e4567-e89b-{v}2d3-a456-42665544000{9 - n}'" for n in range(4) for v in (1, 4)]),
    "inet6": ("INET6", ["'::1'", "'ffff::'", "'10::'", "'::ffff:1.2.3.4'"]),
    "inet4": ("INET4", ["'10.0.0.1'", "'9.0.0.1'", "'200.0.0.1'"]),
}


@pytest.mark.parametrize("name", list(KEYS))
def test_a_table_is_gone_on_with_after_any_key(
    scene: Scene, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_ROWS", 1)
    kind, values = KEYS[name]
    scene.sql(f"CREATE TABLE keyed (other INT, `a%s` {kind}, b INT, PRIMARY KEY (`a%s`, b))")
    for value in values:
        scene.sql(*SETUP, f"INSERT INTO keyed VALUES (5, {value}, 2), (5, {value}, 1), (6, {value}, 10)")
    log = scene.log("keyed", snapshot_folder=str(tmp_path))
    with log._tables.state() as state:
        (table,) = state.tables
        assert table.order == ["a%s", "b"]
        found = list(table.pieces(None))
        assert len(found) == 3 * len(values)
        for at, piece in enumerate(found):
            assert list(table.pieces(piece.last)) == found[at + 1 :]


def test_keys_without_an_order_to_rely_on_are_read_from_the_beginning(scene: Scene, tmp_path: Path) -> None:
    forms = {
        "part": "a TEXT, PRIMARY KEY (a(3))",
        "downwards": "a INT, b INT DEFAULT 1, PRIMARY KEY (a, b DESC)",
        "number": "a FLOAT PRIMARY KEY",
        "members": "a ENUM('b', 'a') PRIMARY KEY",
        "bits": "a BIT(5) PRIMARY KEY",
        "keyless": "a INT",
    }
    for name, form in forms.items():
        scene.sql(f"CREATE TABLE {name} ({form})", f"INSERT INTO {name} (a) VALUES (1)")
    log = scene.log(*forms, snapshot_folder=str(tmp_path))
    with log._tables.state() as state:
        for table in state.tables:
            assert not table.order
            assert bool(table.key) == (table.table != "keyless")
            assert [piece.last for piece in table.pieces(None)] == [None]


PERIOD = "a TIMESTAMP(6) AS ROW START, b TIMESTAMP(6) AS ROW END, PERIOD FOR SYSTEM_TIME (a, b)"


def test_tables_of_every_form_are_read_as_the_log_has_them(scene: Scene, tmp_path: Path) -> None:
    forms = {
        "keyless": ("(a INT)", "VALUES (1), (1), (2)"),
        "pairs": ("(a INT, b VARCHAR(9), c INT, PRIMARY KEY (b, a))", "VALUES (1, 'x,y', 3)"),
        "part_of_a_text": ("(n INT, word TEXT, PRIMARY KEY (word(5)))", "VALUES (1, 'longish')"),
        "as_good_as_keyed": ("(a INT NOT NULL, b INT NOT NULL, UNIQUE (b), UNIQUE (a, b))", "VALUES (1, 2)"),
        "not_as_good": ("(a INT, b CHAR(9) NOT NULL, UNIQUE (a), UNIQUE (b(2)))", "VALUES (1, 'abc')"),
        "made": (
            "(id INT PRIMARY KEY, v INT AS (id + 1), s INT AS (id + 2) STORED, i INT INVISIBLE)",
            "(id) VALUES (1)",
        ),
        "hashed": ("(a BLOB NOT NULL, b INT NOT NULL, UNIQUE (a), UNIQUE (b))", "VALUES ('long', 1)"),
        "parted": ("(id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 3", "VALUES (1), (2), (3)"),
        "odd % `one": ("(`a%s` VARCHAR(9) PRIMARY KEY, `{0}` INT)", "VALUES ('100%', 1), ('it''s \\\\', 2)"),
        "versioned": ("(id INT PRIMARY KEY) WITH SYSTEM VERSIONING", "VALUES (1)"),
        "versioned_by_hand": (f"(id INT PRIMARY KEY, {PERIOD}) WITH SYSTEM VERSIONING", "(id) VALUES (1)"),
        "empty": ("(id INT PRIMARY KEY)", "SELECT 1 FROM DUAL WHERE FALSE"),
    }
    for name, (form, _) in forms.items():
        scene.sql(f"CREATE TABLE {quoted_name(name)} {form}")
    log = scene.log(*forms)
    start = heads(log)
    for name, (_, rows) in forms.items():
        scene.sql(f"INSERT INTO {quoted_name(name)} {rows}")
    assert same_in_snapshot(scene, tmp_path, log.tail(start, 100), *forms)


def test_what_a_versioned_row_was_before_is_a_row_too(scene: Scene, tmp_path: Path) -> None:
    scene.sql("CREATE TABLE versioned (id INT PRIMARY KEY, name INT) WITH SYSTEM VERSIONING")
    log = scene.log("versioned")
    start = heads(log)
    scene.sql("INSERT INTO versioned VALUES (1, 1), (2, 1)", "UPDATE versioned SET name = 2", "DELETE FROM versioned")
    rows = whole(with_snapshot(scene, tmp_path, "versioned"))
    assert operations(rows) == ["snapshot"] * 4
    assert replayed(listed(log.tail(start, 100))) == replayed(rows)
