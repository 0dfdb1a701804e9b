"""What the tests of flows share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scene import Scene


@pytest.fixture
def scene(zookeeper: str, tmp_path: Path) -> Iterator[Scene]:
    """A scene in the ZooKeeper that all tests share."""
    own = Scene(f"{zookeeper}/{uuid.uuid4()}", tmp_path)
    yield own
    own.close()
