"""To databases leads one way, so that all that is said there goes over TLS, and to the right one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.places import ROOT

CONNECTORS = ROOT / "connectors"
DRIVERS = {"psycopg2", "pymysql"}
MAKES_ONE = re.compile(r"(psycopg2|pymysql)\.(connect|Connection)|\w*Connection|factory|(\w+\.)*place\.settings")


def calls() -> Iterator[tuple[str, str, str]]:
    """What is called in connectors that makes a connection to a database: where, in which function, and what."""
    for file in CONNECTORS.rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and MAKES_ONE.fullmatch(name := ast.unparse(node.func)):
                        yield str(file.relative_to(CONNECTORS / "tidings_connectors")), function.name, name


def test_a_connection_is_made_in_one_place_for_each_driver() -> None:
    ours = {"PostgresConnection", "MysqlConnection"}  # which have one made for them
    assert {call for call in calls() if call[2] not in ours} == {
        ("postgres/connections.py", "_open", "psycopg2.connect"),
        ("mysql/connection.py", "open_session", "factory"),
        ("mysql/connection.py", "open_session", "place.settings"),
    }


def test_a_driver_is_imported_in_one_place() -> None:
    found = set()
    for file in CONNECTORS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            found |= {(driver, file.name) for name in names if (driver := name.partition(".")[0]) in DRIVERS}
    assert found == {("psycopg2", "connections.py"), ("pymysql", "client_library.py")}
