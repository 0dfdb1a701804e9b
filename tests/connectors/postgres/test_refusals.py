"""A server that lets nobody in says why, and what we make of it can be mended by what we say."""

from __future__ import annotations

import re

import pytest

from tests.support import postgres_server
from tests.support.postgres_server import Database
from tidings.errors import LogUnavailable
from tidings.log_checks import preflight

database = postgres_server.database
role = postgres_server.role


@pytest.mark.parametrize(
    ("fault", "words", "start"),
    [
        ("ALTER ROLE {role} PASSWORD 'other'", "password authentication failed", "ALTER ROLE"),
        ("ALTER ROLE {role} NOLOGIN", "is not permitted to log in", "ALTER ROLE"),
        ("ALTER ROLE {role} CONNECTION LIMIT 0", "too many connections for role", "ALTER ROLE"),
        ("ALTER ROLE {role} NOREPLICATION", "may not replicate", "ALTER ROLE"),
        ("REVOKE CONNECT ON DATABASE {database} FROM PUBLIC", "may not connect to database", "GRANT CONNECT"),
        ("DROP PUBLICATION everything", "has no publication 'everything'", "CREATE PUBLICATION"),
    ],
)
def test_what_is_refused_is_told_with_the_statement_that_mends_it(
    database: Database, role: str, fault: str, words: str, start: str
) -> None:
    stream = database.stream(user=role)
    preflight(stream)
    database.execute(fault.format(role=role, database=database.name))
    with pytest.raises(LogUnavailable, match=words) as caught:
        preflight(stream)
    sentence = str(caught.value)
    assert "\n" not in sentence
    database.execute(sentence[sentence.rindex(start) :].replace("'...'", "'right'"))
    preflight(stream)


def test_a_database_that_is_not_there_is_told(database: Database, role: str) -> None:
    stream = database.stream(user=role)
    database.server.execute(f"ALTER DATABASE {database.name} RENAME TO {database.name}_away")
    try:
        there = re.escape(
            f"has no database '{database.name}': correct the address, or CREATE DATABASE \"{database.name}\""
        )
        with pytest.raises(LogUnavailable, match=there):
            preflight(stream)
    finally:
        database.server.execute(f"ALTER DATABASE {database.name}_away RENAME TO {database.name}")
