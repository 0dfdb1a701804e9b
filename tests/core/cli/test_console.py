"""`tidings console`: it is served to those who are meant, and its users are kept."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.certificates import Certificate, certify
from tests.support.commands import Run, ended, started, told
from tidings.console.users import Users, read_users
from tidings.errors import InvalidOption

__all__ = ["certify"]
PASSWORD = "correct horse"


def heard(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """What it says until it listens, and where that is."""
    said = ""
    assert process.stderr is not None
    for raw in process.stderr:
        said += raw.decode()
        if found := re.search(r"listens on (\S+);", said):
            return said, found[1]
    raise AssertionError(said)


def sign_in(url: str, user: str, password: str, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    body = json.dumps({"user": user, "password": password}).encode()
    request = urllib.request.Request(f"{url}/api/sign-in", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30.0, context=context) as answer:
            return answer.status, str(answer.headers["Set-Cookie"])
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_the_first_start_makes_an_operator_and_says_its_password_once(address: str, tmp_path: Path) -> None:
    file = tmp_path / "state" / "users.json"
    options = ("console", "--listen", "0", "--users", str(file))
    with started(*options) as process:
        said, url = heard(process)
        found = re.search(r"with the password (\S+)", said)
        assert found is not None
        password = found[1]
        assert sign_in(url, "admin", password)[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert password not in file.read_text()
    with started(*options) as process:
        said, url = heard(process)
        assert "password" not in said
        assert sign_in(url, "admin", password)[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_where_nothing_can_be_served_no_user_is_made(address: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with started("console", "--listen", place, "--users", str(tmp_path / "users.json")) as process:
            found = ended(process)
    assert (found.code, f"nothing can be served at {place}" in told(found.err)) == (1, True)
    assert "password" not in found.err
    assert list(tmp_path.glob("users.json*")) == []


def test_it_speaks_tls(address: str, tmp_path: Path, certify: Callable[[str, str], Certificate], run: Run) -> None:
    certificate, key = certify("console", "IP:127.0.0.1")
    run("console", "users", "add", "ann", "--users", "users.json", stdin=PASSWORD)
    options = ["--listen", "0", "--users", "users.json", "--tls-certificate", str(certificate), "--tls-key", str(key)]
    with started("console", *options) as process:
        url = heard(process)[1]
        assert url.startswith("https://")
        status, cookie = sign_in(url, "ann", PASSWORD, ssl.create_default_context(cafile=certificate))
        assert (status, "Secure" in cookie) == (200, True)


def test_users_are_added_listed_and_removed(run: Run, tmp_path: Path) -> None:
    file = ("--users", "users.json")
    assert run("console", "users", "add", "ann", *file, stdin=f"{PASSWORD}\n").code == 0
    assert run("console", "users", "add", "bob", "--role", "operator", *file, stdin=PASSWORD).code == 0
    assert run("console", "users", "list", *file, "--json").json == [
        {"user": "ann", "role": "viewer"},
        {"user": "bob", "role": "operator"},
    ]
    users = Users(tmp_path / "users.json")
    assert users.check("ann", PASSWORD) is not None
    assert users.check("ann", PASSWORD.upper()) is None
    assert run("console", "users", "add", "ann", "--role", "operator", *file, stdin="another password").code == 0
    assert users.check("ann", PASSWORD) is None
    assert run("console", "users", "remove", "ann", *file).code == 0
    assert users.check("ann", "another password") is None
    assert "bob" in run("console", "users", "list", *file).out
    assert told(run("console", "users", "remove", "ann", *file).err).startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "said"),
    [
        (["users", "add", "ann"], "short", 1, "8 characters at least"),
        (["users", "add", "ann"], "x" * 2000, 1, "1,024 bytes at most"),
        (["users", "add", "a b"], PASSWORD, 1, "is no name for a user"),
        (["users", "add", "ann", "--role", "king"], PASSWORD, 2, "king"),
        (["users", "remove", "ann"], "", 1, "has no user 'ann'"),
        (["--listen", "0.0.0.0:0"], "", 2, "--insecure"),
        (["--listen", "nowhere"], "", 2, "no address to listen at"),
        (["--tls-certificate", "own.pem"], "", 2, "both --tls-certificate and --tls-key"),
        (["--tls-certificate", "none.pem"], "", 2, "cannot be read"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(
    run: Run, tmp_path: Path, arguments: list[str], stdin: str, code: int, said: str
) -> None:
    (tmp_path / "own.pem").write_text("")
    where = len(arguments) if arguments[0] == "users" else 0
    found = run("console", *arguments[:where], "--users", "users.json", *arguments[where:], stdin=stdin)
    assert (found.code, said in found.err) == (code, True), found.err


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"users": 7}', '{"users": {"ann": {}}}', '{"users": {"ann": {"role": "king", "password": "x"}}}'],
)
def test_a_file_that_makes_no_sense_lets_nobody_in(run: Run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "users.json"
    file.write_text(text)
    file.chmod(0o600)
    assert "is no file of users" in told(run("console", "--users", "users.json", "--listen", "0").err)


def test_a_file_that_others_may_read_is_refused(run: Run, tmp_path: Path) -> None:
    run("console", "users", "add", "ann", "--users", "users.json", stdin=PASSWORD)
    (tmp_path / "users.json").chmod(0o644)
    assert "chmod 600" in told(run("console", "users", "list", "--users", "users.json").err)
    with pytest.raises(InvalidOption):
        read_users(tmp_path / "users.json")


def test_what_is_not_installed_is_named() -> None:
    script = "import sys; sys.modules['aiohttp'] = None; from tidings.cli import main; sys.exit(main(['console']))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (found.returncode, told(found.stderr)) == (
        1,
        "error: the console needs aiohttp: pip install 'tidings[console]'",
    )


def test_what_zookeeper_does_not_answer_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ("--users", str(tmp_path / "users.json"), "--zookeeper", "127.0.0.1:1", "--timeout", "0.3")
    with started("console", *options) as process:
        found = ended(process)
    assert (found.code, "no ZooKeeper answers" in told(found.err)) == (1, True)
