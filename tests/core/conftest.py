"""What the tests of the core share."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("tidings", deadline=None)
settings.load_profile("tidings")
