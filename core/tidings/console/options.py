"""What a console goes by: where it listens, whom it lets in, and what it bounds."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ConsoleOptions:
    """How a console is run. Seconds and bytes, where nothing else is said.

    | field | meaning |
    | --- | --- |
    | `users` | the file of users |
    | `allowed_hosts` | names beside those it listens on that a browser may call it by, as behind a proxy |
    | `read_only` | nobody acts, whatever the role |
    | `open_metrics` | serve `/metrics` and `/health/…` to everybody, and not on loopback alone |
    | `refresh_s`, `idle_refresh_s` | how often the cluster is read, while somebody looks and while nobody does |
    | `budget_s` | how long an answer may take; what is not known by then is left out, and that is said |
    """

    users: Path
    host: str = "127.0.0.1"
    port: int = 8090
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    read_only: bool = False
    open_metrics: bool = False
    idle_s: float = 3600.0
    absolute_s: float = 12 * 3600.0
    refresh_s: float = 2.0
    idle_refresh_s: float = 30.0
    looked_at_s: float = 60.0
    budget_s: float = 2.0
    plan_s: float = 300.0
    max_body_bytes: int = 64 * 2**10
    request_s: float = 10.0
    max_requests: int = 256
    max_connections: int = 1000
    max_sessions: int = 1000
    max_sessions_per_user: int = 20
    max_live_per_user: int = 10
    max_live: int = 200
    heartbeat_s: float = 15.0
