"""TLS to ZooKeeper: what a wrong certificate, a wrong host and a wrong peer get, which is nothing."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Certificate, certificate_of
from tests.support.secure_zookeeper import secure_zookeeper
from tidings.cluster import connect
from tidings.coordination.tls import TlsHandler, ZooKeeperTls, tls_of_environment
from tidings.errors import CoordinationUnavailable, InvalidOption
from tidings.runtime.doctor import check_zookeeper
from tidings.wire.security import Security

SECURITY = Security(secret="the-secret-of-the-cluster")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    folder = tmp_path_factory.mktemp("certificates")
    return {name: certificate_of(folder, name, "IP:127.0.0.1") for name in ("server", "client", "other")}


@pytest.fixture(scope="module")
def port(certificates: dict[str, Certificate], tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("secure")
    with secure_zookeeper(folder / "zookeeper", certificates["server"], certificates["client"]) as port:
        yield port


def trusting(
    certificates: dict[str, Certificate], authority: str = "server", own: str | None = "client"
) -> ZooKeeperTls:
    return ZooKeeperTls(certificates[authority][0], *(certificates[own] if own else ()))


def test_a_session_over_tls_bears_many_requests_at_once(port: int, certificates: dict[str, Certificate]) -> None:
    with connect(f"127.0.0.1:{port}/many", security=SECURITY, tls=trusting(certificates)) as cluster:
        tree = cluster.coordination
        tree.create_path("streams")
        for _ in range(5):
            asked = [tree.client.get_async(tree.path("access")) for _ in range(500)]
            assert len({tree.wait(one)[0] for one in asked}) == 1


def test_an_answer_that_tls_has_read_with_another_does_not_wait_for_the_next_one(
    certificates: dict[str, Certificate],
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates["server"])
    handler = TlsHandler(trusting(certificates, own=None))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with context.wrap_socket(listener.accept()[0], server_side=True) as secured:
                secured.sendall(b"one two")  # as a proxy puts answers together
                secured.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        address = listener.getsockname()
        with handler.create_connection(address=address, hostname=address[0], timeout=10) as secured:
            assert secured.recv(3) == b"one"
            assert handler.select([secured], [], [], 0) == ([secured], [], [])
            assert secured.recv(4) == b" two"
            assert handler.select([secured], [], [], 0) == ([], [], [])


@pytest.mark.parametrize(
    ("host", "authority", "own", "reason"),
    [
        ("127.0.0.1", "other", "client", "127.0.0.1:.* is not to be trusted: self-signed certificate"),
        ("localhost", "server", "client", "localhost:.* is not to be trusted: Hostname mismatch"),
        ("127.0.0.1", "server", "other", "no ZooKeeper answers"),
        ("127.0.0.1", "server", None, "no ZooKeeper answers"),
    ],
    ids=["authority", "host", "another peer", "no peer"],
)
def test_whoever_is_the_wrong_one_gets_nothing(
    port: int, certificates: dict[str, Certificate], host: str, authority: str, own: str | None, reason: str
) -> None:
    with pytest.raises(CoordinationUnavailable, match=reason):
        connect(f"{host}:{port}", security=SECURITY, tls=trusting(certificates, authority, own), timeout=1.5)


def test_a_server_that_speaks_no_tls_is_told_nothing(zookeeper: str, certificates: dict[str, Certificate]) -> None:
    with pytest.raises(CoordinationUnavailable, match=r"is not to be trusted: |no ZooKeeper answers"):
        connect(zookeeper, security=SECURITY, tls=trusting(certificates), timeout=1.5)


def test_a_false_server_hears_no_word_of_ours(certificates: dict[str, Certificate]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates["other"])
    heard: list[bytes] = []
    came = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                heard.append(secured.recv(1024))
            came.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(CoordinationUnavailable, match="is not to be trusted"):
            connect(
                f"127.0.0.1:{listener.getsockname()[1]}", security=SECURITY, tls=trusting(certificates), timeout=1.0
            )
        assert came.wait(10)
    assert not any(heard)


def test_files_are_checked_before_anything_is_sent(
    certificates: dict[str, Certificate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    authority, (certificate, key) = certificates["server"][0], certificates["client"]
    with pytest.raises(InvalidOption, match=r"'.*empty.pem' is no certificate in PEM"):
        ZooKeeperTls(empty)
    with pytest.raises(InvalidOption, match="needs both a certificate and its key"):
        ZooKeeperTls(authority, certificate)
    with pytest.raises(InvalidOption, match="are no certificate in PEM with its key"):
        ZooKeeperTls(authority, certificate, certificates["other"][1])
    assert tls_of_environment() is None
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_CERTIFICATE", str(certificate))
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_KEY", str(key))
    with pytest.raises(InvalidOption, match="needs TIDINGS_ZOOKEEPER_AUTHORITY"):
        tls_of_environment()
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_AUTHORITY", str(authority))
    assert tls_of_environment() == trusting(certificates)
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_AUTHORITY", str(tmp_path / "nowhere.pem"))
    with pytest.raises(InvalidOption, match="cannot be read: No such file"):
        tls_of_environment()


def test_the_doctor_says_whether_a_zookeeper_answers_by_tls(
    port: int, certificates: dict[str, Certificate], monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = certificates["client"]
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_CERTIFICATE", str(certificate))
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_KEY", str(key))
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_AUTHORITY", str(certificates["server"][0]))
    assert check_zookeeper(f"127.0.0.1:{port}").found == f"127.0.0.1:{port} answers by TLS"
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_AUTHORITY", str(certificates["other"][0]))
    refused = check_zookeeper(f"127.0.0.1:{port}")
    assert not refused.ok
    assert refused.found == f"the ZooKeeper at 127.0.0.1:{port} is not to be trusted: self-signed certificate"
