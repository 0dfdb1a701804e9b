"""The client libraries, in one place: they are an extra, and have no type hints."""

from __future__ import annotations

from tidings.errors import PluginMissing

try:
    import pymysql  # type: ignore[import-untyped]
    from pymysql.connections import Connection, MysqlPacket  # type: ignore[import-untyped]
    from pymysql.cursors import SSCursor  # type: ignore[import-untyped]
    from pymysqlreplication import BinLogStreamReader  # type: ignore[import-untyped]
    from pymysqlreplication.constants import FIELD_TYPE  # type: ignore[import-untyped]
    from pymysqlreplication.constants.CHARSET import charset_by_name  # type: ignore[import-untyped]
    from pymysqlreplication.event import (  # type: ignore[import-untyped]
        FormatDescriptionEvent,
        HeartbeatLogEvent,
        MariadbGtidEvent,
        NotImplementedEvent,
        QueryEvent,
        RotateEvent,
        XAPrepareEvent,
        XidEvent,
    )
    from pymysqlreplication.row_event import (  # type: ignore[import-untyped]
        DeleteRowsEvent,
        TableMapEvent,
        UpdateRowsEvent,
        WriteRowsEvent,
    )
except ModuleNotFoundError as error:
    raise PluginMissing("the MySQL log needs mysql-replication: pip install 'tidings[mysql]'") from error

__all__ = [
    "FIELD_TYPE",
    "BinLogStreamReader",
    "Connection",
    "DeleteRowsEvent",
    "FormatDescriptionEvent",
    "HeartbeatLogEvent",
    "MariadbGtidEvent",
    "MysqlPacket",
    "NotImplementedEvent",
    "QueryEvent",
    "RotateEvent",
    "SSCursor",
    "TableMapEvent",
    "UpdateRowsEvent",
    "WriteRowsEvent",
    "XAPrepareEvent",
    "XidEvent",
    "charset_by_name",
    "pymysql",
]
