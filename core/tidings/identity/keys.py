"""The secret of a cluster, and the keys that are made of it.

Publishers and operators hold the secret. An application's key is made of it and of the application's name, so that
whoever holds the key can be that application and nothing else, and a publisher knows every key without being told.

ZooKeeper knows everybody by a password. Those are made of the secret and of an application's key too, never the other
way round: what ZooKeeper is told opens nothing but ZooKeeper.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Sequence

from tidings.errors import InvalidOption

SECRET_BYTES = 32
MIN_SECRET_CHARACTERS = 16


def check_secrets(known: Sequence[str]) -> None:
    """`InvalidOption` if somebody could guess one of them."""
    if any(len(one) < MIN_SECRET_CHARACTERS for one in known):
        raise InvalidOption(
            f"a secret of fewer than {MIN_SECRET_CHARACTERS} characters is guessed: `tidings keys new` makes one"
        )


def new_secret() -> str:
    """A secret that nobody can guess."""
    return secrets.token_urlsafe(SECRET_BYTES)


def job_key(application_key: str, job: str) -> str:
    """The key by which an application and the tasks of one job know each other; it opens nothing else.

    >>> job_key("the key of an application", "job-1") == job_key("the key of an application", "job-2")
    False
    """
    return _made(application_key, "job", job)


def application_key(secret: str, application: str) -> str:
    """The key of an application, and what all applications have in common: the password of members.

    >>> application_key("a secret of the cluster", "cache")
    '-mrfanxj4MWptWLHqNpX-cjFz_s7BU_UR1lPsY6B0mY.lyAOCB4fpGyjf_H83KBOOJiVyusLqVsSAEfubcZKq_w'
    """
    return f"{_made(secret, 'application', application)}.{role_password(secret, 'member')}"


def role_password(secret: str, role: str) -> str:
    """The password by which ZooKeeper knows everybody of a role."""
    return _made(secret, "zookeeper", role)


def application_password(application_key: str) -> str:
    """The password by which ZooKeeper knows an application."""
    return _made(application_key, "zookeeper", "application")


def member_password(application_key: str) -> str:
    """The password by which ZooKeeper knows an application as one of all; nothing in a key that was not made here."""
    return application_key.partition(".")[2]


def record_seal(secret: str, record: str) -> str:
    """What shows that whoever wrote a record has the secret."""
    return _made(secret, "seal", record)


def _made(secret: str, kind: str, name: str) -> str:
    made = hmac.digest(secret.encode(), f"tidings {kind}\0{name}".encode(), "sha256")
    return base64.urlsafe_b64encode(made).rstrip(b"=").decode()
