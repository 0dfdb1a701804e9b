from __future__ import annotations

from tests.support.scene_fixture import scene

__all__ = ["scene"]
