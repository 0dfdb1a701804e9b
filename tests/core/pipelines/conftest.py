from __future__ import annotations

from tests.support.pipeline_fixtures import contacts, copies, make

__all__ = ["contacts", "copies", "make"]
