"""Secrets that a peer shows in a header, `Authorization: Bearer …`."""

from __future__ import annotations

import hmac
from collections.abc import Iterable


class Bearers:
    """Secrets of which one must be shown. Without any, nobody is let in.

    >>> Bearers(["s3cret"]).admit("Bearer s3cret"), Bearers(["s3cret"]).admit("Bearer other"), Bearers([]).admit(None)
    (True, False, False)
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = [secret.encode() for secret in secrets]

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def admit(self, header: str | None) -> bool:
        """Whether the header shows one of the secrets; how long this takes does not tell which."""
        scheme, _, shown = (header or "").partition(" ")
        raw = shown.strip().encode(errors="replace")
        found = [hmac.compare_digest(raw, secret) for secret in self._secrets]
        return scheme.lower() == "bearer" and any(found)
