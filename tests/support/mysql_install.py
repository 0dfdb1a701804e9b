"""What a MariaDB needs to start: its programs, a user to run as, a fresh data folder, a free port."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

_LIBC = ctypes.CDLL(None)  # found here, since a process that was just forked had better look for nothing


def missing() -> str | None:
    """What is not installed that a server needs, or None."""
    for name in ("mariadbd", "mariadb-install-db"):
        if program(name) is None:
            return f"{name} is not installed (Debian: apt-get install mariadb-server)"
    return None


def program(name: str) -> str | None:
    """The path of one of MariaDB's programs."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/local/bin")


def owner() -> str | None:
    """The user that a server runs as when root starts it."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("mysql").pw_name
    except KeyError:
        return "root"


@functools.cache
def template() -> Path:
    """A fresh data folder, made once: making one takes seconds."""
    place = Path(tempfile.mkdtemp(prefix="mariadb-template-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    data = place / "data"
    user = owner()
    if user:
        subprocess.run(["chown", user, str(place)], check=True)
    command = [program("mariadb-install-db") or "", "--no-defaults", f"--datadir={data}", "--skip-test-db"]
    command += ["--auth-root-authentication-method=normal", *([f"--user={user}"] if user else [])]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise AssertionError(f"mariadb-install-db failed: {made.stdout[-1000:]}{made.stderr[-1000:]}")
    return data


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def die_with_parent() -> None:
    """Let the server go when the tests go, however they do."""
    with contextlib.suppress(OSError, AttributeError):
        _LIBC.prctl(1, signal.SIGKILL)
