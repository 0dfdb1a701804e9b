"""The secret of a cluster, and the keys that are made of it.

Publishers and operators hold the secret. An application's key is made of it and of the application's name, so that
whoever holds the key can be that application and nothing else, and a publisher knows every key without being told.
"""

from __future__ import annotations

import base64
import hmac
import secrets

SECRET_BYTES = 32
MIN_SECRET_CHARACTERS = 16


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
    """The key of an application.

    >>> application_key("a secret of the cluster", "cache")
    '-mrfanxj4MWptWLHqNpX-cjFz_s7BU_UR1lPsY6B0mY'
    """
    return _made(secret, "application", application)


def _made(secret: str, kind: str, name: str) -> str:
    made = hmac.digest(secret.encode(), f"tidings {kind}\0{name}".encode(), "sha256")
    return base64.urlsafe_b64encode(made).rstrip(b"=").decode()
