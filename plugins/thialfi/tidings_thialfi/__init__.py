"""Thialfi: clients register for objects, and always learn the latest version in the end."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidings_thialfi.client.aio import AsyncClient
    from tidings_thialfi.client.listener import Listener
    from tidings_thialfi.client.sync import Client
    from tidings_thialfi.gateway.hooks import GatewayHooks

__all__ = ["AsyncClient", "Client", "GatewayHooks", "Listener"]

# Imported when first used: a stage needs no WebSockets, and a client no Spark.
_HOMES = {
    "AsyncClient": "client.aio",
    "Client": "client.sync",
    "GatewayHooks": "gateway.hooks",
    "Listener": "client.listener",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
