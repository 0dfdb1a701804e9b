"""How publishers and subscribers know each other."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from tidings.errors import InvalidOption


def trusting(authority: Path) -> ssl.SSLContext:
    """What trusts those whose certificate this one has signed."""
    try:
        return ssl.create_default_context(cafile=authority)
    except (ssl.SSLError, OSError):
        raise InvalidOption(f"{str(authority)!r} is no certificate in PEM, which TLS needs to trust others") from None


@dataclass(frozen=True)
class Security:
    """How publishers and subscribers know each other: a shared token, and TLS.

    A publisher shows `token`, and a subscriber lets in who shows it, or one of those `accepted` beside it while a new
    token is rolled out. A subscriber has `certificate` and `key` (PEM files); a publisher has `authority`, the
    certificate that signed them.
    """

    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    accepted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidOption("TLS needs both a certificate and its key")
        for path in (self.certificate, self.key, self.authority):
            if path is not None and not Path(path).is_file():
                raise InvalidOption(f"there is no file {path}, which TLS needs")
        if self.certificate is not None:
            try:
                # A key that is encrypted is refused, and its password not asked for.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password="")
            except (ssl.SSLError, OSError) as error:
                reason = getattr(error, "reason", None) or error
                pair = f"{str(self.certificate)!r} and {str(self.key)!r}"
                raise InvalidOption(f"{pair} are no certificate in PEM with its key: {reason}") from None
        if self.authority is not None:
            trusting(self.authority)

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens that let a publisher in; none if everybody is."""
        return (self.token, *self.accepted) if self.token else self.accepted

    def __repr__(self) -> str:
        return f"Security(token={'…' if self.token else None}, certificate={self.certificate})"


OPEN = Security()
