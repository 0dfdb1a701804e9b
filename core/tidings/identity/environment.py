"""Who we are, as the environment of this process says."""

from __future__ import annotations

import os
from pathlib import Path

from tidings.errors import InvalidOption
from tidings.identity.credentials import ANONYMOUS, Credentials

CREDENTIALS, SECRET, APPLICATION_KEY = "TIDINGS_ZOOKEEPER_CREDENTIALS", "TIDINGS_SECRET", "TIDINGS_APPLICATION_KEY"
INSECURE = "TIDINGS_INSECURE"
MAX_FILE_BYTES = 2**20  # of secrets or certificates


def credentials_of_environment() -> Credentials:
    """Who we are for ZooKeeper: whom the credentials name, or an operator by the secret; else an application."""
    text, secrets = os.environ.get(CREDENTIALS), secrets_in(SECRET)
    if text and secrets:
        raise InvalidOption(f"both {CREDENTIALS} and {SECRET} are set, and each says who we are: unset one")
    if text:
        return Credentials.of_text(text)
    if secrets:
        return Credentials.of_secrets(secrets)
    if keys := secrets_in(APPLICATION_KEY):
        return Credentials.of_application(keys)
    return ANONYMOUS


def is_insecure() -> bool:
    """Whether the user has said that anybody may be let in."""
    return os.environ.get(INSECURE, "") not in ("", "0")


def secrets_in(variable: str) -> list[str] | None:
    """The secrets that the environment has under this name, or in the file that `<name>_FILE` names."""
    if text := os.environ.get(variable):
        return read_secrets(variable, text)
    if path := os.environ.get(f"{variable}_FILE"):
        try:
            return read_secrets(f"{variable}_FILE", read_file(path).decode(errors="replace"))
        except InvalidOption as error:  # its value may be the secret itself, and is not shown
            raise InvalidOption(str(error).replace(repr(path), f"what {variable}_FILE names")) from None
    return None


def file_in(variable: str) -> Path | None:
    """The file that the environment names, if it can be read."""
    path = os.environ.get(variable)
    if not path:
        return None
    read_file(path)
    return Path(path)


def read_file(path: str) -> bytes:
    """What is in a file of secrets or certificates."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidOption(f"{path!r} cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidOption(f"{path!r} is no file of secrets or certificates: it is too large")
    return content


def read_secrets(place: str, text: str) -> list[str]:
    """The secrets, a line each, if they can travel in a header; they are never part of an error."""
    found = [line.strip() for line in text.split("\n") if line.strip()]
    if not found:
        raise InvalidOption(f"{place!r} holds no secret: it is empty")
    if not all(one.isascii() and one.isprintable() and " " not in one for one in found):
        raise InvalidOption(f"{place!r} holds no secret: lines of ASCII without spaces are wanted")
    return found
