"""Who we are for ZooKeeper.

| role | what it is for | how one becomes it |
| --- | --- | --- |
| operator | everything | the secret of the cluster |
| publisher | owning flows, and reading everything | the secret of the cluster |
| application | its own flows, and registering its subscribers | the application's key |
| producer | reading definitions of streams, and running pipelines | `tidings keys show --role producer` |
| viewer | reading everything | `tidings keys show --role viewer` |

Every application is also a *member*: that is what may read what all applications need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidings.errors import InvalidOption
from tidings.identity.keys import (
    application_key,
    application_password,
    check_secrets,
    member_password,
    record_seal,
    role_password,
)

SEALS = "seals"
ROLES = ("operator", "publisher", "producer", "member", "viewer")
"""All that ZooKeeper knows by one password; of applications, each has its own."""


@dataclass(frozen=True)
class Credentials:
    """Names and passwords for ZooKeeper, as `user:password`; and the secrets that they were made of, if we have them.

    There are several while the secret is replaced, and all are shown.
    """

    passwords: tuple[str, ...] = field(default=(), repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of_secrets(cls, secrets: Sequence[str], role: str = "operator") -> Credentials:
        """Whoever holds the secret of the cluster can come in any role."""
        check_secrets(secrets)
        return cls(tuple(role_credentials(secret, role) for secret in secrets), tuple(secrets))

    @classmethod
    def of_application(cls, keys: Sequence[str]) -> Credentials:
        """The holder of an application's key is that application, and a member."""
        found = [f"application:{application_password(key)}" for key in keys]
        return cls((*found, *(f"member:{shared}" for key in keys if (shared := member_password(key)))))

    @classmethod
    def of_text(cls, text: str) -> Credentials:
        """A user and its password; a line each, if there are several."""
        lines = tuple(text.split())
        if not lines or not all(all(line.partition(":")[::2]) for line in lines):
            raise InvalidOption("credentials for ZooKeeper have the form user:password, as `tidings keys show` prints")
        return cls(lines)

    @property
    def role(self) -> str:
        """What ZooKeeper knows us as, for people."""
        return self.passwords[0].partition(":")[0] if self.passwords else "anonymous"

    def known_to(self, record: Mapping[str, Any]) -> bool:
        """Whether a cluster that says this of its roles knows ours; and, if we have the secret, whether it says so.

        Somebody else could have made a tree that names our roles beside their own.
        """
        names = {digest(one) for one in self.passwords}
        named = any(isinstance(those, list) and not names.isdisjoint(map(str, those)) for those in record.values())
        seals = record.get(SEALS)
        sealed = isinstance(seals, list) and any(seal(secret, record) in seals for secret in self.secrets)
        return named and (sealed or not self.secrets)

    def identities(self, role: str) -> list[str]:
        """How ZooKeeper names a role that our secrets know."""
        return [digest(role_credentials(secret, role)) for secret in self.secrets]

    def applications(self, name: str) -> list[str]:
        """How ZooKeeper names an application that our secrets know; without secrets, we can only be it ourselves."""
        made = Credentials.of_application([application_key(secret, name) for secret in self.secrets])
        if self.secrets:
            return [digest(one) for one in made.passwords if one.startswith("application:")]
        # Of two keys the first is the newer one; the other one is on its way out.
        return [digest(one) for one in self.passwords[:1] if one.startswith("application:")]


def role_credentials(secret: str, role: str) -> str:
    """The name and password of a role."""
    return f"{role}:{role_password(secret, role)}"


def seal(secret: str, record: Mapping[str, Any]) -> str:
    """What only who has the secret can say of roles."""
    return record_seal(secret, json.dumps({role: record.get(role) for role in ROLES}))


def digest(credentials: str) -> str:
    """How ZooKeeper names whoever has shown this name and password; it tells nothing of the password.

    >>> digest("super:test")
    'super:D/InIHSb7yEEbrWz8b9l71RjZJU='
    """
    from kazoo.security import make_digest_acl_credential  # a command that needs no ZooKeeper need not wait for it

    named: str = make_digest_acl_credential(*credentials.split(":", 1))
    return named


ANONYMOUS = Credentials()
