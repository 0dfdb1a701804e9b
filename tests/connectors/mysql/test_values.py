"""What becomes of each type of MariaDB: the text in a row's JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.mysql_server import PASSWORD, Scene, heads, listed, needs_mariadb, shared
from tidings_connectors.mysql.charsets import decoder

pytestmark = needs_mariadb

CASES: dict[str, tuple[str, list[tuple[str, Any]]]] = {
    "tinyint": ("TINYINT", [("-128", -128), ("127", 127), ("NULL", None)]),
    "tinyint_unsigned": ("TINYINT UNSIGNED", [("255", 255)]),
    "boolean": ("BOOLEAN", [("TRUE", 1), ("FALSE", 0)]),
    "smallint": ("SMALLINT", [("-32768", -32768)]),
    "smallint_unsigned": ("SMALLINT UNSIGNED", [("65535", 65535)]),
    "mediumint": ("MEDIUMINT", [("-8388608", -8388608), ("8388607", 8388607)]),
    "mediumint_unsigned": ("MEDIUMINT UNSIGNED", [("16777215", 16777215)]),
    "int": ("INT", [("-2147483648", -2147483648)]),
    "int_unsigned": ("INT UNSIGNED", [("4294967295", 4294967295)]),
    "bigint": ("BIGINT", [("-9223372036854775808", -(2**63))]),
    "bigint_unsigned": ("BIGINT UNSIGNED", [("18446744073709551615", 2**64 - 1), ("0", 0)]),
    "year": ("YEAR", [("2024", 2024), ("1901", 1901), ("0", 0)]),
    "float": ("FLOAT", [("0.1", 0.1), ("-1e30", -1e30), ("0", 0)]),
    "double": ("DOUBLE", [("0.1", 0.1), ("1e300", 1e300), ("-2.5", -2.5)]),
    "decimal": (
        "DECIMAL(20,6)",
        [("12345678901234.567891", "12345678901234.567891"), ("-0.000001", "-0.000001"), ("7", "7.000000")],
    ),
    "decimal_whole": (
        "DECIMAL(30)",
        [("123456789012345678901234567890", "123456789012345678901234567890"), ("0", "0")],
    ),
    "decimal_fraction": ("DECIMAL(5,5)", [("0.12345", "0.12345"), ("-0.5", "-0.50000")]),
    "decimal_large": ("DECIMAL(65,30)", [("-1" * 1 + "2" * 34 + "." + "3" * 30, "-1" + "2" * 34 + "." + "3" * 30)]),
    "char": ("CHAR(5)", [("'ab'", "ab"), ("''", ""), ("'ab  '", "ab")]),
    "varchar": ("VARCHAR(300)", [("'naïve ☃ 🎉'", "naïve ☃ 🎉"), ("'tab\\tquote\\\"'", 'tab\tquote"'), ("NULL", None)]),
    "long": ("VARCHAR(2000)", [("REPEAT('🎉', 1000)", "🎉" * 1000)]),
    "latin1": ("VARCHAR(20) CHARACTER SET latin1", [("'déjà €'", "déjà €")]),
    "utf16": ("VARCHAR(20) CHARACTER SET utf16", [("'a🎉'", "a🎉")]),
    "ucs2": ("VARCHAR(20) CHARACTER SET ucs2", [("'añ'", "añ")]),
    "sjis": ("VARCHAR(20) CHARACTER SET sjis", [("'日本'", "日本")]),
    "uca": ("VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_uca1400_ai_ci", [("'é🎉'", "é🎉")]),
    "text": ("TEXT", [("REPEAT('é', 20000)", "é" * 20000)]),
    "longtext": ("LONGTEXT", [("'x'", "x")]),
    "binary": ("BINARY(4)", [("x'61000000'", "\\x61000000"), ("x'00ff0010'", "\\x00ff0010"), ("x'20'", "\\x20000000")]),
    "varbinary": ("VARBINARY(300)", [("x'00ff00'", "\\x00ff00"), ("''", "\\x")]),
    "blob": ("BLOB", [("x'deadbeef'", "\\xdeadbeef"), ("NULL", None)]),
    "longblob": ("LONGBLOB", [("REPEAT(x'01', 100000)", "\\x" + "01" * 100000)]),
    # MariaDB's JSON is LONGTEXT by another name, and so it is in its log.
    "json": ("JSON", [("'{\"a\": [1, null]}'", '{"a": [1, null]}')]),
    "enum": ("ENUM('small', 'large', 'größe')", [("'large'", "large"), ("'größe'", "größe"), ("NULL", None)]),
    "set": ("SET('c', 'b', 'a')", [("'a,c'", "c,a"), ("''", ""), ("'c,b,a'", "c,b,a")]),
    "enum_latin1": ("ENUM('größe', 'b', 'é') CHARACTER SET latin1", [("'größe'", "größe"), ("'é'", "é"), ("'b'", "b")]),
    "set_latin1": ("SET('ö', 'b', 'é') CHARACTER SET latin1", [("'ö,é'", "ö,é"), ("'b,é'", "b,é"), ("''", "")]),
    "enum_utf16": ("ENUM('a', 'ö') CHARACTER SET utf16", [("'ö'", "ö"), ("'a'", "a")]),
    "set_sjis": ("SET('日', '本') CHARACTER SET sjis", [("'日,本'", "日,本")]),
    "armenian": ("VARCHAR(9) CHARACTER SET armscii8", [("'Հայ'", "Հայ")]),
    "text_compressed": (
        "TEXT COMPRESSED",
        [("REPEAT('é', 5000)", "é" * 5000), ("'short'", "short"), ("''", ""), ("NULL", None)],
    ),
    "varchar_compressed": ("VARCHAR(300) COMPRESSED", [("REPEAT('🎉', 300)", "🎉" * 300), ("''", "")]),
    "varchar_short_compressed": (
        "VARCHAR(20) COMPRESSED CHARACTER SET latin1",
        [("REPEAT('é', 20)", "é" * 20), ("'a'", "a")],
    ),
    "blob_compressed": ("LONGBLOB COMPRESSED", [("REPEAT(x'07', 100000)", "\\x" + "07" * 100000), ("x'00'", "\\x00")]),
    "bit": ("BIT(10)", [("b'1000000001'", "1000000001"), ("b'1'", "0000000001")]),
    "bit_one": ("BIT", [("b'1'", "1"), ("b'0'", "0")]),
    "bit_all": ("BIT(64)", [("b'" + "10" * 32 + "'", "10" * 32)]),
    "date": ("DATE", [("'2024-02-29'", "2024-02-29"), ("'0000-00-00'", "0000-00-00"), ("'2024-00-00'", "2024-00-00")]),
    "datetime": (
        "DATETIME",
        [("'9999-12-31 23:59:59'", "9999-12-31 23:59:59"), ("'0000-00-00'", "0000-00-00 00:00:00")],
    ),
    "datetime_micro": (
        "DATETIME(6)",
        [
            ("'2024-01-02 03:04:05.000006'", "2024-01-02 03:04:05.000006"),
            ("'0000-00-00'", "0000-00-00 00:00:00.000000"),
            ("'2024-00-10 01:02:03.5'", "2024-00-10 01:02:03.500000"),
        ],
    ),
    "datetime_milli": ("DATETIME(3)", [("'2024-01-02 03:04:05.678'", "2024-01-02 03:04:05.678")]),
    "datetime_tenth": ("DATETIME(1)", [("'2024-01-02 03:04:05.6'", "2024-01-02 03:04:05.6")]),
    # The session's time zone is +05:00, so these are five hours earlier in UTC.
    "timestamp": (
        "TIMESTAMP NULL",
        [("'2024-01-02 03:04:05'", "2024-01-01 22:04:05+00:00"), ("0", "0000-00-00 00:00:00"), ("NULL", None)],
    ),
    "timestamp_micro": (
        "TIMESTAMP(6) NULL",
        [("'2038-01-19 03:14:07.999999'", "2038-01-18 22:14:07.999999+00:00"), ("0", "0000-00-00 00:00:00.000000")],
    ),
    "time": ("TIME", [("'-838:59:59'", "-838:59:59"), ("'01:02:03'", "01:02:03"), ("'00:00:00'", "00:00:00")]),
    "time_micro": (
        "TIME(6)",
        [("'-00:00:01.500000'", "-00:00:01.500000"), ("'100:00:00.000001'", "100:00:00.000001")],
    ),
    "time_tenth": ("TIME(1)", [("'-12:34:56.7'", "-12:34:56.7"), ("'12:34:56.7'", "12:34:56.7")]),
    "time_milli": ("TIME(3)", [("'-12:34:56.789'", "-12:34:56.789")]),
    "point": ("POINT", [("POINT(1, 2)", "\\x000000000101000000000000000000f03f0000000000000040")]),
    "inet6": ("INET6", [("'::1'", "\\x" + "00" * 15 + "01")]),
}


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYSQL_PWD", PASSWORD)
        own = Scene(shared())
        yield own
        own.close()


SETUP = ("SET SESSION sql_mode = ''", "SET SESSION time_zone = '+05:00'")


def stored(scene: Scene, table: str, kind: str, values: list[str]) -> list[Any]:
    """What the log makes of these values in a column of this type, written, changed and deleted."""
    scene.sql(f"CREATE TABLE {table} (id INT PRIMARY KEY, before_it INT, value {kind}, after_it INT)")
    log = scene.log(table)
    start = heads(log)
    rows = ", ".join(f"({number}, 1, {value}, 2)" for number, value in enumerate(values))
    scene.sql(*SETUP, f"INSERT INTO {table} VALUES {rows}", f"UPDATE {table} SET before_it = 3", f"DELETE FROM {table}")
    found = listed(log.tail(start, 10_000))
    count = len(values)
    assert [row["attributes"]["operation"] for row in found] == (
        ["insert"] * count + ["update"] * count + ["delete"] * count
    )
    made = [row["payload"]["value"] for row in found]
    assert made[:count] == made[count : 2 * count] == made[2 * count :]
    assert {row["payload"]["after_it"] for row in found} == {2}
    return made[:count]


@pytest.mark.parametrize("name", list(CASES))
def test_a_value_is_what_mariadb_prints(scene: Scene, name: str) -> None:
    kind, values = CASES[name]
    assert stored(scene, f"of_{name}", kind, [value for value, _ in values]) == [expected for _, expected in values]


def test_all_types_side_by_side_with_nulls_between(scene: Scene) -> None:
    columns = ", ".join(f"c_{name} {kind} NULL" for name, (kind, _) in CASES.items())
    scene.sql(f"CREATE TABLE wide (id INT PRIMARY KEY, {columns})")
    log = scene.log("wide")
    start = heads(log)
    first = [values[0][0] for _, values in CASES.values()]
    even = [value if number % 2 else "NULL" for number, value in enumerate(first)]
    for number, row in enumerate((first, even, ["NULL"] * len(first))):
        scene.sql(*SETUP, f"INSERT INTO wide VALUES ({number}, {', '.join(row)})")
    whole, half, none = (row["payload"] for row in listed(log.tail(start, 10)))
    expected = {f"c_{name}": values[0][1] for name, (_, values) in CASES.items()}
    assert {name: whole[name] for name in expected} == expected
    assert {name: half[name] for name in expected} == {
        name: value if number % 2 else None for number, (name, value) in enumerate(expected.items())
    }
    assert {none[name] for name in expected} == {None}


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)


@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.decimals(min_value=-(10**20), max_value=10**20, places=9, allow_nan=False),
            st.none() | st.integers(0, 2**64 - 1),
            st.none() | TEXTS,
            st.none() | st.binary(max_size=40),
            st.none() | st.timedeltas(),
        ),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_comes_out_as_the_server_itself_prints_it(scene: Scene, rows: list[Any]) -> None:
    scene.sql(
        "CREATE TABLE IF NOT EXISTS anything (id INT PRIMARY KEY, d DECIMAL(30,9), u BIGINT UNSIGNED, t VARCHAR(40), "
        "b VARBINARY(40), m TIME(6))",
        "DELETE FROM anything",
    )
    log = scene.log("anything")
    start = heads(log)
    with scene.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")  # a time that is too large becomes the largest
        values = [(number, *row) for number, row in enumerate(rows)]
        cursor.executemany("INSERT INTO anything VALUES (%s, %s, %s, %s, %s, %s)", values)
        cursor.execute(
            "SELECT id, CAST(d AS CHAR), u, t, IF(b IS NULL, NULL, CONCAT('\\\\x', LOWER(HEX(b)))), CAST(m AS CHAR) "
            "FROM anything ORDER BY id"
        )
        printed = list(cursor.fetchall())
    assert [tuple(row["payload"].values()) for row in listed(log.tail(start, 1000))] == printed


SINGLE = [bytes([one]) for one in range(256)]
DOUBLE = [bytes([one, two]) for one in range(0x81, 0xFF) for two in range(0x40, 0xFF)]
EXTENDED = {"ujis", "eucjpms"}
"""They have characters of users and vendors, which are none in Python: such a value is told to be lost."""


def test_every_character_is_what_the_server_converts_it_to(scene: Scene) -> None:
    charsets = [name for name, *_ in scene.server.sql("SHOW CHARACTER SET") if name != "binary"]
    assert len(charsets) > 30
    for charset in charsets:
        decode = decoder(charset)
        assert decode is not None, charset
        if charset.startswith(("ucs", "utf")):
            continue  # these are Python's own
        for value, converted in conversions(scene, charset):
            try:
                assert decode(value) == converted, (charset, value)
            except UnicodeDecodeError:
                assert charset in EXTENDED, (charset, value)


def conversions(scene: Scene, charset: str) -> Iterator[tuple[bytes, str]]:
    """All characters of up to two bytes, and what the server makes of them."""
    wide = charset in ("big5", "cp932", "eucjpms", "euckr", "gb2312", "gbk", "sjis", "ujis")
    values = SINGLE + (DOUBLE if wide else [])
    for start in range(0, len(values), 3000):
        rows = " UNION ALL ".join(f"SELECT x'{value.hex()}' v" for value in values[start : start + 3000])
        found = scene.server.sql(
            f"SELECT HEX(v), HEX(CONVERT(CONVERT(v USING {charset}) USING utf32)) FROM ({rows}) t "
            f"WHERE CONVERT(CONVERT(CONVERT(v USING {charset}) USING utf8mb4) USING {charset}) = BINARY v"
        )
        for value, hexed in found:
            if (converted := bytes.fromhex(hexed).decode("utf_32_be")) != "\ufffd":  # which is none
                yield bytes.fromhex(value), converted
