"""The `tidings.yml` that a command works with, and the cluster that it is compared with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.cli.options import connected
from tidings.errors import CoordinationUnavailable

if TYPE_CHECKING:
    from tidings.cluster import Cluster
    from tidings.config.spec import Spec


@contextlib.contextmanager
def project(file: Path | None, zookeeper: str | None, timeout: float, **options: Any) -> Iterator[tuple[Spec, Cluster]]:
    """The file, or the one that is found, and its cluster; the options are those of a session.

    Mistakes of the file are told with those that show beside the cluster; if there is no cluster, as far as they show
    without one.
    """
    from tidings.config.spec import load

    spec = load(project_file(file), partly=True)
    try:
        with connected(zookeeper, timeout, file=file, **options) as cluster:
            yield spec, cluster
    except CoordinationUnavailable:
        from tidings.cli.apply_plan import check_alone

        check_alone(spec).check()
        raise


def project_file(file: Path | None) -> Path:
    """The file, or the one that is found; by its name alone where that is enough."""
    from tidings.config.files import find

    path = file or find(Path.cwd())
    return Path(path.name) if path.parent == Path.cwd() else path
