"""The users of a console: names, roles and hashed passwords in a file that its owner alone may read.

```
{"version": 1, "users": {"ann": {"role": "operator", "password": "scrypt$32768$8$3$<salt>$<hash>"}}}
```

The file is looked at again whenever it has changed: who is removed there, or gets another role or password, is signed
out.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from tidings.errors import InvalidOption
from tidings.storage.durable import replace

Role = Literal["viewer", "operator"]
FIRST_USER = "admin"
MIN_PASSWORD_CHARACTERS, MAX_PASSWORD_BYTES = 8, 1024
MAX_FILE_BYTES = 2**20
_COST, _BLOCK, _PARALLEL = 2**15, 8, 3  # of scrypt: 32 MiB, and a quarter of a second or less
_SALT_BYTES, _HASH_BYTES = 16, 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class User:
    """One who may sign in."""

    name: str
    role: Role
    password: str
    """Hashed."""


def default_file() -> Path:
    """Where users are kept if no file is named: in the state folder of whoever runs the console."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "tidings" / "console-users.json"


def hash_password(password: str) -> str:
    """What is kept of a password.

    >>> matches(hash_password("correct horse"), "correct horse"), matches(hash_password("correct horse"), "battery")
    (True, False)
    """
    if len(password) < MIN_PASSWORD_CHARACTERS:
        raise InvalidOption(f"a password has {MIN_PASSWORD_CHARACTERS} characters at least")
    if len(password.encode()) > MAX_PASSWORD_BYTES:
        raise InvalidOption(f"a password has {MAX_PASSWORD_BYTES:,} bytes at most")
    salt = secrets.token_bytes(_SALT_BYTES)
    made = _scrypt(password, salt, _COST, _BLOCK, _PARALLEL)
    return "$".join(("scrypt", str(_COST), str(_BLOCK), str(_PARALLEL), _text(salt), _text(made)))


def matches(hashed: str, password: str) -> bool:
    """Whether this is the password; it takes as long if it is not."""
    try:
        kind, cost, block, parallel, salt, known = hashed.split("$")
        numbers = int(cost), int(block), int(parallel)
        if kind != "scrypt" or numbers[0] > 2**17 or numbers[1] > 16 or numbers[2] > 8:
            return False
        found = _scrypt(password[:MAX_PASSWORD_BYTES], base64.b64decode(salt), *numbers)
        return hmac.compare_digest(found, base64.b64decode(known))
    except ValueError:  # it was made by hand
        return False


@functools.cache
def _nobody() -> str:
    """What a password is compared with if there is no such user: that takes as long, and tells nothing."""
    return hash_password(secrets.token_urlsafe(24))


class Users:
    """The users in a file, as it is now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._users: dict[str, User] = {}
        self._complaint = ""

    def all(self) -> Mapping[str, User]:
        """By name. A file that has become unreadable counts as it was; that is told once."""
        try:
            there = self.path.stat()
            seen = (there.st_mtime_ns, there.st_size, there.st_ino)
            if seen != self._seen:
                self._users, self._seen, self._complaint = read_users(self.path), seen, ""
        except FileNotFoundError:
            self._users, self._seen = {}, None
        except (OSError, InvalidOption) as error:
            if self._complaint != str(error):
                logger.warning("the users stay as they were: %s", error)
            self._complaint = str(error)
        return self._users

    def get(self, name: str) -> User | None:
        """The user of that name."""
        return self.all().get(name)

    def check(self, name: str, password: str) -> User | None:
        """The user, if this is the password; None otherwise, after as long a time. Slow on purpose."""
        user = self.get(name)
        right = matches(user.password if user else _nobody(), password)
        return user if right else None


def read_users(path: Path) -> dict[str, User]:
    """The users in a file; `InvalidOption` if it makes no sense, or others may read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidOption(f"the users in {path} cannot be read: {error.strerror or error}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidOption(f"others may read or change the users in {path}: chmod 600 {path}")
    try:
        known = json.loads(raw[:MAX_FILE_BYTES])["users"]
        return {name: _user(name, value) for name, value in known.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidOption(f"{path} is no file of users: mend it, or delete it and add them again") from None


def add_user(path: Path, name: str, role: str, password: str) -> None:
    """Add a user, or change its role and password."""
    if not _NAME.fullmatch(name):
        raise InvalidOption(f"{name!r} is no name for a user: use 1 to 64 letters, digits, '.', '_', '@' and '-'")
    user = User(name, _role(role), hash_password(password))
    with _changing(path) as users:
        users[name] = user


def remove_user(path: Path, name: str) -> None:
    """Remove a user; whoever is signed in by that name is signed out."""
    with _changing(path) as users:
        if users.pop(name, None) is None:
            raise InvalidOption(f"{path} has no user {name!r} (users: {', '.join(users) or 'none'})")


def add_first_user(path: Path) -> str | None:
    """Make an operator if there is no file of users; its password, which nobody else knows."""
    if path.exists():
        read_users(path)
        return None
    password = secrets.token_urlsafe(15)
    add_user(path, FIRST_USER, "operator", password)
    return password


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[dict[str, User]]:
    """The users, to be changed by one process at a time; all of the change is there afterwards, or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(f"{path}.lock", "a", opener=lambda name, flags: os.open(name, flags, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        users = read_users(path)
        yield users
        value = {
            "version": 1,
            "users": {one.name: {"role": one.role, "password": one.password} for one in users.values()},
        }
        replace(path, path.with_name(f"{path.name}.tmp"), lambda draft: _write(draft, json.dumps(value, indent=2)))


def _write(draft: Path, text: str) -> None:
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text + "\n")


def _user(name: str, value: Any) -> User:
    if not _NAME.fullmatch(name) or value["role"] not in get_args(Role) or not isinstance(value["password"], str):
        raise ValueError
    return User(name, value["role"], value["password"])


def _role(role: str) -> Role:
    for known in get_args(Role):
        if role == known:
            found: Role = known
            return found
    raise InvalidOption(f"{role!r} is no role; the roles are {', '.join(get_args(Role))}")


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=cost, r=block, p=parallel, dklen=_HASH_BYTES, maxmem=256 * cost * block
    )


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
