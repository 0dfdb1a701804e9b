"""Which processes `tidings up` runs for a `tidings.yml`, and where they listen. Nothing is touched.

One more process is one more line in `plan`, or an entry point of the group `tidings.processes`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.plugins import installed_names, load
from tidings.runtime.processes import ProcessPlan, Tier

if TYPE_CHECKING:
    from tidings.config.spec import Spec

CONSOLE = "console"
GROUP = "tidings.processes"
SESSION_TIMEOUT_S = 5  # all is on one machine: a process that dies is replaced soon


def plan(
    spec: Spec, folder: Path, *, publishers: int, listen: tuple[str, int], console: tuple[str, int] | None
) -> list[ProcessPlan]:
    """The processes; `folder` is for what belongs to them.

    What clients connect to listens at `listen` and the ports after it; at free ones, if the port is 0. `console` is
    where that listens, None for no console.
    """
    addresses = _addresses(*listen)
    return [
        *(_publisher(f"publisher-{number}") for number in range(1, publishers + 1)),
        *([_pipelines(spec)] if spec.pipelines else []),
        *(process for plugin in plugins() for process in plugin.planned(spec, folder, addresses)),
        *([_console(*console)] if console is not None else []),
    ]


def plugins() -> Iterator[Any]:
    """What plugins say of their processes."""
    for name in installed_names(GROUP):
        yield load(GROUP, name)


def _addresses(host: str, port: int) -> Iterator[str]:
    """One after the other.

    >>> addresses = _addresses("127.0.0.1", 8080)
    >>> next(addresses), next(addresses)
    ('127.0.0.1:8080', '127.0.0.1:8081')
    """
    return (_address(host, port and port + number) for number in itertools.count())


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _publisher(name: str) -> ProcessPlan:
    arguments = ("publisher", "--name", name, "--session-timeout", str(SESSION_TIMEOUT_S))
    return ProcessPlan(name, arguments, Tier.PUBLISHERS, (("publishers", name),))


def _pipelines(spec: Spec) -> ProcessPlan:
    arguments = ("run", str(spec.path.absolute()), "--session-timeout", str(SESSION_TIMEOUT_S))
    return ProcessPlan("pipelines", arguments, Tier.PIPELINES, tuple(("pipelines", name) for name in spec.pipelines))


def _console(host: str, port: int) -> ProcessPlan:
    return ProcessPlan(
        CONSOLE, ("console", "--listen", _address(host, port)), Tier.EDGE, tells=r"listens on (http\S+);"
    )
