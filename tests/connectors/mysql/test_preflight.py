"""What is wrong with a server, an address or an option is told in one sentence; and no password is shown."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import mysql_server
from tests.support.mysql_server import PASSWORD, Scene, heads, ids, inserts, listed, needs_mariadb, running
from tidings.errors import InvalidOption, LogUnavailable
from tidings.log_opening import create_log, open_log
from tidings.logs import Read

password, server, scene = mysql_server.password, mysql_server.own_server, mysql_server.scene
pytestmark = needs_mariadb


def mended(words: str, attempt: Callable[[], object], mend: Callable[[str], object], *, start: str) -> None:
    """It fails with one sentence; what the sentence says last is done; then it works."""
    with pytest.raises(LogUnavailable, match=words) as caught:
        attempt()
    sentence = str(caught.value)
    assert PASSWORD not in sentence
    assert not sentence.endswith(".")
    mend(sentence[sentence.rindex(start) :])
    attempt()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binlog_format", "STATEMENT"),
        ("binlog_format", "MIXED"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "NO_LOG"),
    ],
)
def test_a_setting_that_is_wrong_is_told_with_the_statement_that_mends_it(scene: Scene, name: str, value: str) -> None:
    scene.server.sql(f"SET GLOBAL {name} = '{value}'")
    mended(f"has {name} = {value}", lambda: scene.log("items"), scene.server.sql, start="SET GLOBAL")


def test_all_settings_and_all_privileges_that_are_wrong_are_told_at_once(scene: Scene) -> None:
    scene.server.sql("SET GLOBAL binlog_format = 'MIXED', binlog_row_image = 'NOBLOB', binlog_row_metadata = 'MINIMAL'")
    mended("NOBLOB", lambda: scene.log("items"), scene.server.sql, start="SET GLOBAL")
    scene.server.sql("REVOKE REPLICATION SLAVE, BINLOG MONITOR ON *.* FROM tidings")
    mended("may not read", lambda: scene.log("items"), scene.server.sql, start="GRANT ")


@pytest.mark.parametrize(
    ("fault", "words", "start"),
    [
        ("ALTER USER tidings ACCOUNT LOCK", "account is locked", "ALTER USER"),
        ("ALTER USER tidings PASSWORD EXPIRE", "must SET PASSWORD", "ALTER USER"),
        ("SET GLOBAL max_connections = 10", "Too many connections", "SET GLOBAL"),
        ("ALTER USER tidings WITH MAX_USER_CONNECTIONS 1", "max_user_connections", "ALTER USER"),
    ],
)
def test_what_the_server_refuses_is_told_with_the_statement_that_mends_it(fault: str, words: str, start: str) -> None:
    with running() as server, contextlib.ExitStack() as taken:
        scene = Scene(server)
        taken.callback(scene.close)
        server.sql(fault)
        operator = taken.enter_context(contextlib.closing(server.connect()))
        with contextlib.suppress(Exception):
            for _ in range(20 if "onnections" in words else 0):
                there = server.connect(
                    unix_socket=None, host="127.0.0.1", port=server.port, user="tidings", password=PASSWORD
                )
                taken.callback(there.close)

        def mend(statement: str) -> None:
            operator.cursor().execute(statement.replace("<password>", PASSWORD))

        mended(words, lambda: scene.log("items"), mend, start=start)


def test_an_account_that_is_not_there_is_told_with_the_statement_that_makes_it(scene: Scene) -> None:
    scene.server.sql("RENAME USER tidings TO other")
    with pytest.raises(
        LogUnavailable, match=r"does not let user 'tidings' in .*; if there is no account, CREATE USER"
    ) as caught:
        scene.log("items")
    made = re.search(r"CREATE USER [^;]*", str(caught.value))
    assert made
    scene.server.sql("SET SESSION sql_log_bin = 0", made[0].replace("<password>", PASSWORD))
    mended("may not read the binary log", lambda: scene.log("items"), scene.server.sql, start="GRANT ")
    scene.server.sql("DROP USER other")


def test_an_account_that_wants_tls_is_told_where_to_name_a_certificate(scene: Scene) -> None:
    scene.server.sql("ALTER USER tidings REQUIRE SSL")
    try:
        with pytest.raises(
            LogUnavailable, match=r"does not let user 'tidings' in .*name one in MYSQL_SSL_CERT and MYSQL_SSL_KEY"
        ):
            scene.log("items")
    finally:
        scene.server.sql("ALTER USER tidings REQUIRE NONE")


def test_an_option_file_that_cannot_be_read_is_told_and_not_repeated(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "my.cnf"
    file.write_text(f"password = {PASSWORD}\n")
    with pytest.raises(
        InvalidOption, match=r"names '\S+/my.cnf', which is no option file: begin it with \[client\]"
    ) as caught:
        scene.log("items", defaults_file=str(file))
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("privilege", ["REPLICATION SLAVE", "BINLOG MONITOR"])
def test_a_privilege_that_is_missing_is_told_with_the_statement_that_grants_it(scene: Scene, privilege: str) -> None:
    scene.server.sql(f"REVOKE {privilege} ON *.* FROM tidings")
    start = f"GRANT {privilege}"
    mended("may not read the binary log", lambda: scene.log("items"), scene.server.sql, start=start)


def test_a_server_without_a_binary_log_is_told() -> None:
    with running(log_bin=None) as server, pytest.raises(LogUnavailable, match=r"writes no binary log: .*log_bin = ON"):
        Scene(server).log("items")


def test_a_server_that_is_not_there_is_told(scene: Scene) -> None:
    cure = r"MariaDB at 127.0.0.1:1 cannot be reached \(.*refused\)\): start it, or correct the address"
    with pytest.raises(LogUnavailable, match=cure):
        open_log(replace(scene.definition("items"), log="mysql:mysql://tidings@127.0.0.1:1/d"))


def test_a_missing_library_is_told_with_what_installs_it() -> None:
    code = (
        "import sys; sys.modules['pymysqlreplication'] = None\n"
        "from tidings.plugins import load\n"
        "try: load('tidings.logs', 'mysql')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.startswith("PluginMissing the MySQL log needs mysql-replication")
    assert "pip install 'tidings[mysql]'" in told


def test_a_wrong_password_is_told_with_the_statement_that_sets_it(scene: Scene) -> None:
    scene.server.sql("ALTER USER tidings IDENTIFIED BY 'something else'")
    mended(
        "does not let user 'tidings' in",
        lambda: scene.log("items"),
        lambda statement: scene.server.sql(statement.replace("<password>", PASSWORD)),
        start="ALTER USER",
    )


def test_a_password_comes_from_an_option_file(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MYSQL_PWD")
    file = tmp_path / "my.cnf"
    file.write_text(f"[client]\npassword = {PASSWORD}\n")
    log = scene.log("items", defaults_file=str(file))
    start = heads(log)
    scene.sql(*inserts(range(3)))
    assert ids(listed(log.tail(start, 10))) == [0, 1, 2]


@pytest.mark.parametrize(
    "address", ["mysql:mysql://tidings:hush@h/d", "mysql:mysql://tidings@h/d?password=hush", "mysql:mysql://:hush@h"]
)
def test_a_password_in_the_address_is_refused_and_not_repeated(scene: Scene, address: str) -> None:
    with pytest.raises(InvalidOption, match="must not hold a password") as caught:
        create_log(replace(scene.definition("items"), log=address))
    assert "hush" not in str(caught.value)


def test_no_secret_is_shown(scene: Scene) -> None:
    log = scene.log("items")
    reader = log.reader()
    read: Read = reader.read(heads(log), 10)
    shown = [repr(one) for one in (log, reader, read.upto, log._place, log._connection, vars(log), vars(reader))]
    assert PASSWORD not in "".join(shown)
    reader.close()


@pytest.mark.parametrize(
    "address", ["mysql:localhost", "mysql:mysql://host/d", "mysql:mysql://u@h:port/d", "mysql:ftp://u@h/"]
)
def test_an_address_that_is_none_is_refused(scene: Scene, address: str) -> None:
    with pytest.raises(InvalidOption, match="write mysql:mysql://user@host:3306/database"):
        create_log(replace(scene.definition("items"), log=address))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the option 'tables'"),
        ({"tables": []}, "option 'tables'"),
        ({"tables": ["items"]}, "'items' is no table: write database.table"),
        ({"tables": ["a.b"], "tabels": 1}, "an option 'tabels', which .*domain.*server_id.*tables"),
        ({"tables": ["a.b"], "domain": -1}, "option 'domain'"),
        ({"tables": ["a.b"], "object": "{"}, "option 'object'"),
        ({"tables": ["a.b"], "defaults_file": "/nowhere/my.cnf"}, "which is no file"),
    ],
)
def test_wrong_options_are_told(scene: Scene, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        open_log(replace(scene.definition("items"), options=options))


def test_a_server_whose_gtids_may_go_back_is_refused_when_a_stream_is_made(scene: Scene) -> None:
    made = scene.definition("items")
    scene.server.sql("SET GLOBAL gtid_strict_mode = OFF")
    try:
        with pytest.raises(
            LogUnavailable,
            match="so transactions may be out of order in the binary log: SET GLOBAL gtid_strict_mode = ON",
        ):
            create_log(made)
        open_log(made).close()  # of a stream that is there already
    finally:
        scene.server.sql("SET GLOBAL gtid_strict_mode = ON")
