"""Where a MariaDB is, and what a stream takes from it: the address and the options of the stream.

The address is `mysql:mysql://user@host:3306/database`. It is kept in ZooKeeper, so it holds no password: that comes
from the environment variable `MYSQL_PWD`, or from an option file in MySQL's own form, named by the option
`defaults_file`. The database is only a part of the name: tables are named with theirs, and a reader needs no rights in
any.
"""

from __future__ import annotations

import configparser
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import Field, field_validator

from tidings.errors import InvalidOption
from tidings.hosts import check_hosts
from tidings_connectors.cdc.snapshot import SnapshotOptions
from tidings_connectors.mysql.tls import tls_settings

FORM = "mysql:mysql://user@host:3306/database"
MAX_SERVER_ID = 2**32 - 1


class MysqlOptions(SnapshotOptions):
    """The options of a stream: how rows become updates, and what is this connector's own."""

    placing: ClassVar[tuple[str, ...]] = (*SnapshotOptions.placing, "domain")

    tables: Annotated[list[str], Field(min_length=1)]
    """The tables that are watched, each as `database.table`."""
    domain: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """The GTID domain whose transactions are read."""
    other_domains: Literal["lost", "ignored"] = "lost"
    """What becomes of changes of watched tables in other domains: they are told of as lost, or are of no concern."""
    server_id: Annotated[int, Field(ge=1, le=MAX_SERVER_ID - 1000)] | None = None
    """The first of the numbers by which readers are known to the server; each takes the next."""
    defaults_file: str | None = None
    """An option file with the password, and with the keys and certificates for TLS if there are any; see `tls`."""

    @field_validator("tables")
    @classmethod
    def _qualified(cls, names: list[str]) -> list[str]:
        for name in names:
            if not all(name.partition(".")):
                raise ValueError(f"{name!r} is no table: write database.table")
        return names

    @property
    def watched(self) -> frozenset[tuple[str, str]]:
        """The tables as pairs of database and table."""
        return frozenset((database, table) for database, _, table in (name.partition(".") for name in self.tables))


@dataclass(frozen=True)
class Place:
    """A server, and as whom one goes in."""

    host: str
    port: int
    user: str
    defaults_file: str | None = None
    location: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def settings(self) -> dict[str, Any]:
        """What PyMySQL needs to connect, the password among it: never to be printed, and only to go to this host."""
        check_hosts(self.location, [(self.host, self.port)])
        settings: dict[str, Any] = {"host": self.host, "port": self.port, "user": self.user, "charset": "utf8mb4"}
        in_file: dict[str, str] = {}
        if self.defaults_file is not None:
            in_file = _read_option_file(self.defaults_file)
            settings["read_default_file"] = self.defaults_file
        if password := os.environ.get("MYSQL_PWD"):
            settings["password"] = password
        return settings | tls_settings(self.host, in_file)


def _read_option_file(name: str) -> dict[str, str]:
    """What an option file says to clients. What is wrong in it is not shown, as there is a password in it."""
    read = configparser.RawConfigParser(allow_no_value=True)  # as the client library does it
    named = f"option 'defaults_file' names {name!r}, which"
    if not Path(name).is_file():
        raise InvalidOption(f"{named} is no file here")
    try:
        with open(name) as file:
            read.read_file(file)
    except OSError as error:
        raise InvalidOption(f"{named} cannot be read: {error.strerror or error}") from None
    except (configparser.Error, UnicodeDecodeError):
        raise InvalidOption(
            f"{named} is no option file: begin it with [client], and write name = value below"
        ) from None
    said = read.items("client") if read.has_section("client") else []
    return {option.replace("_", "-"): value.strip("'\"") for option, value in said if value}


def place_of(location: str, options: MysqlOptions) -> Place:
    """The server that an address names, without its scheme."""
    try:
        parts = urlsplit(location)
        port = parts.port or 3306
    except ValueError:
        raise InvalidOption(f"the address of the log cannot be read: write {FORM}") from None
    _check_address(parts)
    return Place(parts.hostname or "", port, unquote(parts.username or ""), options.defaults_file, location)


def _check_address(parts: SplitResult) -> None:
    # The address is not shown: there may be a secret in it, in the right place or in a wrong one.
    if (
        parts.query
        or parts.fragment
        or parts.scheme not in ("mysql", "mariadb")
        or not parts.hostname
        or not parts.username
    ):
        raise InvalidOption(f"the address of the log cannot be read: write {FORM}")
