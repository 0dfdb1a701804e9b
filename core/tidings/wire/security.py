"""How publishers and subscribers know each other."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from tidings.errors import InvalidOption
from tidings.hosts import is_loopback
from tidings.identity.credentials import Credentials
from tidings.identity.keys import application_key, check_secrets, job_key
from tidings.metrics import parse_address

MAX_SECRETS = 8


def trusting(authority: Path) -> ssl.SSLContext:
    """What trusts those whose certificate this one has signed."""
    try:
        return ssl.create_default_context(cafile=authority)
    except (ssl.SSLError, OSError):
        raise InvalidOption(f"{str(authority)!r} is no certificate in PEM, which TLS needs to trust others") from None


@dataclass(frozen=True)
class Security:
    """How publishers and subscribers know each other: keys, and TLS.

    A publisher has the `secret` of the cluster; a subscriber has the `application_key` that is made of it (or the
    secret itself, if it may know that). Neither ever travels. Those `accepted` are good too, while a new one is rolled
    out; so are further lines of a text that was read from a file. Without any, everybody is let in who can connect; a
    publisher then listens on this machine alone, unless `insecure` says that more is meant.

    For TLS a publisher has `certificate` and `key` (PEM files), and a subscriber has `authority`, the certificate that
    signed them. A publisher with an `authority` wants certificates of subscribers too, who have theirs in the same way.
    """

    secret: str | None = None
    application_key: str | None = None
    accepted: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        for name in ("secret", "application_key"):
            lines = [line.strip() for line in (getattr(self, name) or "").splitlines()]  # as they are in a file
            first, *others = [line for line in lines if line] or [""]
            object.__setattr__(self, name, first or None)
            object.__setattr__(self, "accepted", (*others, *self.accepted))
        for name in ("certificate", "key", "authority"):
            object.__setattr__(self, name, Path(path) if (path := getattr(self, name)) is not None else None)
        if self.secret and self.application_key:
            raise InvalidOption("give the secret of the cluster or a key of the application, not both")
        check_secrets(self._known)
        if len(self._known) > MAX_SECRETS:
            raise InvalidOption(f"{len(self._known)} secrets are too many: at most {MAX_SECRETS} can be good at a time")
        if (self.certificate is None) != (self.key is None):
            raise InvalidOption("TLS needs both a certificate and its key")
        for path in (self.certificate, self.key, self.authority):
            if path is not None and not path.is_file():
                raise InvalidOption(f"there is no file {path}, which TLS needs")
        try:
            if self.certificate is not None:
                # A key that is encrypted is refused, and its password not asked for.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password="")
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            pair = f"{str(self.certificate)!r} and {str(self.key)!r}"
            raise InvalidOption(f"{pair} are no certificate in PEM with its key: {reason}") from None
        if self.authority is not None:
            trusting(self.authority)

    @property
    def _known(self) -> tuple[str, ...]:
        first = self.secret or self.application_key
        return (first, *self.accepted) if first else self.accepted

    def keys(self, application: str) -> list[str]:
        """The keys of an application that are good here; none if everybody is let in."""
        if self.application_key:
            return list(self._known)
        return [application_key(secret, application) for secret in self._known]

    def credentials(self, role: str = "operator") -> Credentials:
        """Who we are for ZooKeeper; `role` is for those who have the secret."""
        if self.application_key:
            return Credentials.of_application(self._known)
        return Credentials.of_secrets(self._known, role)

    def job_keys(self, application: str, job: str) -> list[str]:
        """The keys by which an application and the tasks of a job know each other."""
        return [job_key(key, job) for key in self.keys(application)]

    def check_dialling(self) -> None:
        """`InvalidOption` if a subscriber would speak in clear, though it has a certificate."""
        if self.certificate is not None and self.authority is None:
            raise InvalidOption(
                "a subscriber speaks TLS with publishers whose authority it knows: add that to its own certificate"
            )

    def check_place(self, listen: str) -> None:
        """`InvalidOption` if whoever can connect there would be let in, and that may be others than this machine."""
        if self.authority is not None and self.certificate is None:
            raise InvalidOption("a publisher that wants certificates of subscribers needs a certificate of its own")
        if not self._known and not self.insecure and not is_loopback(parse_address(listen)[0]):
            raise InvalidOption(
                f"whoever can reach {listen} would get every update: give publishers the secret of the cluster (see "
                "`tidings keys new`), or say that this is meant by --insecure"
            )

    def __repr__(self) -> str:
        known = {"secret": self.secret, "application_key": self.application_key}
        shown = [f"{name}=…" for name, value in known.items() if value]
        return f"Security({', '.join([*shown, f'certificate={self.certificate}'])})"


OPEN = Security()
