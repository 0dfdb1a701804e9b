"""What a server must be set to, looked at before anything is read.

Each thing that is wrong is one sentence, which ends with the statement that mends it.
"""

from __future__ import annotations

from collections.abc import Callable

from tidings.errors import LogUnavailable
from tidings_connectors.mysql.binlog import probe
from tidings_connectors.mysql.connection import PRIVILEGE_MISSING, MysqlConnection, ServerError, account, quoted

SETTINGS = {
    "binlog_format": ("ROW", "rows that changed are not in the binary log"),
    "binlog_row_image": ("FULL", "the binary log has parts of rows only"),
    "binlog_row_metadata": ("FULL", "the binary log does not have the names of columns"),
}
"""What each variable must be, and what is wrong if it is not."""


def check_server(connection: MysqlConnection, server_id: int) -> None:
    """Raise unless the server writes what is needed and lets us read it."""
    place = connection.place
    ((version, log_bin, user),) = connection.ask("SELECT VERSION(), @@GLOBAL.log_bin, CURRENT_USER()")
    if "MariaDB" not in version:
        raise LogUnavailable(
            f"the server at {place} is MySQL {version}, whose GTIDs this connector does not read yet: it reads MariaDB"
        )
    if not log_bin:
        raise LogUnavailable(
            f"MariaDB at {place} writes no binary log: start it anew with log_bin = ON below [mariadbd] in its "
            "option file"
        )
    values = dict(connection.ask("SHOW GLOBAL VARIABLES WHERE variable_name IN %s", tuple(SETTINGS)))
    for name in SETTINGS:
        if name not in values:
            raise LogUnavailable(f"MariaDB {version} at {place} is too old, as it has no {name}: 10.5 is the oldest")
    if wrong := [name for name, (needed, _) in SETTINGS.items() if values[name] != needed]:
        has = ", ".join(f"{name} = {values[name]}" for name in wrong)
        reason = ", and ".join(SETTINGS[name][1] for name in wrong)
        cure = ", ".join(f"{name} = {quoted(SETTINGS[name][0])}" for name in wrong)
        raise LogUnavailable(
            f"MariaDB at {place} has {has}, so {reason}: set it in its option file, and SET GLOBAL {cure}"
        )
    _check_privileges(connection, user, server_id)


def check_order(connection: MysqlConnection) -> None:
    """Raise unless the server refuses to log a transaction under a number that is not larger than the last."""
    ((strict,),) = connection.ask("SELECT @@GLOBAL.gtid_strict_mode")
    if not strict:
        raise LogUnavailable(
            f"MariaDB at {connection.place} has gtid_strict_mode = OFF, so transactions may be out of order in the "
            "binary log: SET GLOBAL gtid_strict_mode = ON, and in its option file, too"
        )


def _check_privileges(connection: MysqlConnection, user: str, server_id: int) -> None:
    """Try what a reader does: there is no other way to know what a user may do."""
    tries: dict[str, Callable[[], object]] = {
        "BINLOG MONITOR": lambda: connection.ask("SHOW BINARY LOGS"),
        "REPLICATION SLAVE": lambda: probe(connection.place, server_id),
    }
    missing = []
    for privilege, attempt in tries.items():
        try:
            attempt()
        except ServerError as error:
            if error.code != PRIVILEGE_MISSING:
                raise
            missing.append(privilege)
    if missing:
        raise LogUnavailable(
            f"user {user.rpartition('@')[0]!r} of MariaDB at {connection.place} may not read the binary log: "
            f"GRANT {', '.join(missing)} ON *.* TO {account(user)}"
        )
