"""Stages, one a module; `stage` says what a stage is, and `state` what it may keep.

No code stands here: the modules `filter` and `map` would hide Python's own functions from it.
"""

from __future__ import annotations

from tidings.stages.stage import GROUP, Stage, make, parse

__all__ = ["GROUP", "Stage", "make", "parse"]
