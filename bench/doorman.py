"""Hooks for a gateway in benchmarks: users show a name that is signed, as they would a token of their application."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

from tidings_thialfi.gateway.hooks import Caller, GatewayHooks

KEY = b"the-key-of-the-application"


def credentials_of(user: str) -> str:
    """What a user shows."""
    return f"{user}.{hmac.new(KEY, user.encode(), hashlib.sha256).hexdigest()}"


class Doorman(GatewayHooks):
    """Lets in who shows a signature, and lets it register for everything."""

    async def user(self, caller: Caller) -> str | None:
        """The user whose name is signed."""
        user, _, _ = (caller.credentials or "").partition(".")
        return user if hmac.compare_digest(credentials_of(user), caller.credentials or "") else None

    async def may_register(self, user: str, objects: Collection[str]) -> Collection[str]:
        """All of them."""
        return objects
