"""What the tests of pipelines share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidings.cluster import Cluster
from tidings.pipelines.pipeline import Pipeline
from tidings.streams import Stream

Make = Callable[..., Pipeline]


@pytest.fixture
def contacts(cluster: Cluster) -> Stream:
    return cluster.create_stream("contacts", shards=4)


@pytest.fixture
def copies(cluster: Cluster) -> Stream:
    return cluster.create_stream("copies", shards=2)


@pytest.fixture
def make(cluster: Cluster, contacts: Stream, copies: Stream, tmp_path: Path) -> Make:
    """Make a pipeline from `contacts` to `copies`; what is given takes the place of what is usual."""

    def make(**options: Any) -> Pipeline:
        usual = {"name": "p", "input": "contacts", "output": "copies", "storage": tmp_path / "storage"}
        given = {**usual, **options}
        return Pipeline(cluster, given.pop("name"), **given)

    return make
