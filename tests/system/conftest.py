from __future__ import annotations

from tests.support.pipeline_fixtures import contacts, copies, make
from tests.support.scene_fixture import scene

__all__ = ["contacts", "copies", "make", "scene"]
