"""The client libraries, in one place: they are an extra, and have no type hints."""

from __future__ import annotations

from tidings.errors import PluginMissing

try:
    import pymysql  # type: ignore[import-untyped]
    from pymysql.connections import Connection, MysqlPacket  # type: ignore[import-untyped]
    from pymysql.cursors import SSCursor  # type: ignore[import-untyped]
    from pymysqlreplication.constants import FIELD_TYPE  # type: ignore[import-untyped]
    from pymysqlreplication.constants.CHARSET import charset_by_id  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    raise PluginMissing("the MySQL log needs mysql-replication: pip install 'tidings[mysql]'") from error

__all__ = ["FIELD_TYPE", "Connection", "MysqlPacket", "SSCursor", "charset_by_id", "pymysql"]
