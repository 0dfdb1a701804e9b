"""Certificates for tests, which sign themselves: each is the authority of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Certificate = tuple[Path, Path]
"""The certificate, and its key."""


def certificate_of(folder: Path, name: str, alternative: str) -> Certificate:
    """A certificate for a host, as in `IP:127.0.0.1` or `DNS:db.example`."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={alternative}", "-days", "1", "-nodes"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-keyout", key, "-out", certificate, *subject]
    try:
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl, to make a certificate")
    return certificate, key


@pytest.fixture
def certify(tmp_path: Path) -> Callable[[str, str], Certificate]:
    """Makes a certificate, of a name and for a host."""
    return lambda name, alternative: certificate_of(tmp_path, name, alternative)
