"""The embedded ZooKeeper: real processes, and what is left of them when something ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.support.commands import PROGRAM
from tidings.errors import EmbeddedFailed, InvalidOption
from tidings.runtime import supervisor_main, zookeeper_probes, zookeeper_server
from tidings.runtime.zookeeper_server import EmbeddedZooKeeper
from tidings.testing import eventually

# A parent of its own, to be killed. The server is started from a thread that ends at once, and a forked child keeps
# copies of all that the parent had open: neither may end the server too early or too late.
PARENT = """
import os, sys, threading, time
from tidings.runtime.zookeeper_server import EmbeddedZooKeeper

server = EmbeddedZooKeeper(sys.argv[1])
starter = threading.Thread(target=server.start)
starter.start()
starter.join()
child = os.fork()
if child == 0:
    time.sleep(300)
    os._exit(0)
print(server.pid, child, server.address, flush=True)
time.sleep(300)
"""


# A process left over by an interrupted start would still have the folder, and make the next start fail.
INTERRUPTED = """
import os, signal, sys
from tidings.runtime import java
from tidings.runtime.zookeeper_server import EmbeddedZooKeeper

java.find()
server = EmbeddedZooKeeper(sys.argv[1])
signal.signal(signal.SIGALRM, signal.default_int_handler)
for milliseconds in (0.2, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 40, 60, 80, 150, 250, 400):
    signal.setitimer(signal.ITIMER_REAL, milliseconds / 1000)
    try:
        server.start()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    server.stop()
server.start()
"""


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def supervisor_of(pid: int) -> int:
    return int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(pid)]))


def processes_of(folder: Path) -> list[str]:
    """The server and its supervisor, as far as they run in the folder."""
    found = []
    for line in subprocess.check_output(["ps", "-ww", "-eo", "pid=,stat=,args="], text=True).splitlines():
        pid, state, arguments = line.split(None, 2)
        if state.startswith("Z"):
            continue
        with contextlib.suppress(OSError):
            in_folder = "ZooKeeperServerMain" in arguments and Path(f"/proc/{pid}/cwd").samefile(folder)
            if in_folder or ("supervisor_main.py" in arguments and f'"{folder}"' in arguments):
                found.append(line)
    return found


@contextlib.contextmanager
def client(server: EmbeddedZooKeeper, timeout: float = 10.0) -> Iterator[KazooClient]:
    zookeeper = KazooClient(server.address, timeout=timeout)
    zookeeper.start(timeout=20)
    try:
        yield zookeeper
    finally:
        zookeeper.stop()
        zookeeper.close()


@contextlib.contextmanager
def parent(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A process that runs an embedded ZooKeeper: itself, the server's pid and its address."""
    with subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, child, address = process.stdout.readline().split()
        try:
            yield process, int(pid), address
        finally:
            process.kill()
            os.kill(int(child), signal.SIGKILL)


def test_it_answers_once_it_has_started(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        host, port = server.address.split(":")
        assert host == "127.0.0.1"
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"srvr")
            assert connection.recv(100).startswith(b"Zookeeper version: 3.")
        assert alive(server.pid)
    assert processes_of(tmp_path) == []


def test_it_grants_sessions_short_enough_for_tests_of_failover_and_long_enough_for_work(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        for seconds in (1, 60):
            with client(server, timeout=seconds) as zookeeper:
                assert zookeeper._session_timeout == seconds * 1000


def test_its_data_survives_a_restart_even_after_kill_9(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    with server, client(server) as zookeeper:
        zookeeper.create("/kept", b"one")
        first = server.address
    with server, client(server) as zookeeper:
        assert server.address == first, "clients of the first run find the second"
        assert zookeeper.get("/kept")[0] == b"one"
        zookeeper.set("/kept", b"two")
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(EmbeddedFailed, match="has ended with exit code 137"):
            server.wait(20)
        server.start()
        zookeeper.retry(zookeeper.get, "/kept")
    with EmbeddedZooKeeper(tmp_path) as other, client(other) as zookeeper:
        assert zookeeper.get("/kept")[0] == b"two"


def test_a_folder_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    folder = tmp_path / "a b=c\\n" / "zoë ☂"
    with EmbeddedZooKeeper(folder):
        assert (folder / "data" / "version-2").is_dir()


def test_it_logs_to_a_file_and_says_nothing_when_all_is_well(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with EmbeddedZooKeeper(tmp_path) as server, client(server) as zookeeper:
        zookeeper.create("/a")
    assert "ERROR" not in (tmp_path / "zookeeper.log").read_text()
    assert (tmp_path / "zookeeper.out").read_text() == ""
    assert capfd.readouterr() == ("", "")


def test_start_and_stop_can_be_repeated(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    server.stop()
    server.start()
    pid = server.pid
    server.start()
    assert server.pid == pid
    server.stop()
    assert processes_of(tmp_path) == [], "stop waits"
    server.stop()
    with pytest.raises(EmbeddedFailed, match="does not run"):
        server.address  # noqa: B018 - that it raises is the point


def test_kill_9_of_the_parent_leaves_nothing_behind_and_the_folder_free(tmp_path: Path) -> None:
    with parent(tmp_path) as (process, pid, _):
        supervisor = supervisor_of(pid)
        assert supervisor != process.pid
        assert alive(pid), "it outlives the thread that started it"
        process.kill()
        process.wait()
        with EmbeddedZooKeeper(tmp_path):  # no matter how far the other one has ended
            assert not alive(pid)
        eventually(lambda: not alive(supervisor))


def test_kill_9_of_the_supervisor_leaves_no_server_behind(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        pid = server.pid
        os.kill(supervisor_of(pid), signal.SIGKILL)
        eventually(lambda: not alive(pid))
        server.start()
        assert server.pid != pid


def test_stop_ends_a_server_that_its_killed_supervisor_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a system that has no signal for a parent's death.
    script = Path(supervisor_main.__file__).read_text().replace('startswith("linux")', 'startswith("none")')
    (tmp_path / "supervisor_main.py").write_text(script)
    monkeypatch.setattr(supervisor_main, "__file__", str(tmp_path / "supervisor_main.py"))
    with EmbeddedZooKeeper(tmp_path / "folder") as server:
        pid = server.pid
        supervisor = supervisor_of(pid)
        os.kill(supervisor, signal.SIGKILL)
        eventually(lambda: not alive(supervisor))
        assert alive(pid)
        server.stop()
        assert not alive(pid)


def test_a_supervisor_without_pidfd_sees_the_end_of_its_parent_too(tmp_path: Path) -> None:
    script = tmp_path / "supervisor_main.py"
    script.write_text(Path(supervisor_main.__file__).read_text().replace("os.pidfd_open", "os.no_such_function"))
    patched = f"import tidings.runtime.supervisor_main as s\ns.__file__ = {str(script)!r}\n"
    command = [sys.executable, "-c", patched + PARENT, str(tmp_path / "folder")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, child, _ = process.stdout.readline().split()
        process.kill()
        os.kill(int(child), signal.SIGKILL)
        eventually(lambda: not alive(int(pid)))


def test_it_ends_with_an_interpreter_that_does_not_stop_it(tmp_path: Path) -> None:
    script = (
        "import sys; from tidings.runtime.zookeeper_server import EmbeddedZooKeeper; "
        "EmbeddedZooKeeper(sys.argv[1]).start()"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    assert processes_of(tmp_path) == []


def test_a_forked_child_does_not_stop_its_parents_server(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        os.waitpid(child, 0)
        assert alive(server.pid)


def test_ctrl_c_in_the_terminal_is_left_to_the_parent(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        for pid in (server.pid, supervisor_of(server.pid)):
            assert os.getsid(pid) != os.getsid(0)


def test_it_is_stopped_by_a_parent_that_blocks_signals_in_its_threads(tmp_path: Path) -> None:
    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        with EmbeddedZooKeeper(tmp_path):
            began.append(time.monotonic())
        began.append(time.monotonic())

    began: list[float] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert processes_of(tmp_path) == []
    assert began[1] - began[0] < supervisor_main.TERMINATION_GRACE_S, "it was not killed for want of an answer"


def test_a_folder_in_use_is_refused_with_the_address_of_its_server(tmp_path: Path) -> None:
    with parent(tmp_path) as (_, pid, address):
        for port in (0, int(address.rpartition(":")[2])):
            with pytest.raises(EmbeddedFailed, match=f"{tmp_path} is in use.*; connect to it at {address}$"):
                EmbeddedZooKeeper(tmp_path, port=port).start()
        assert alive(pid)
        assert len(processes_of(tmp_path)) == 2


@pytest.mark.parametrize("listens", ["before", "meanwhile"])
def test_a_busy_port_is_named_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listens: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        if listens == "meanwhile":
            monkeypatch.setattr(zookeeper_server, "usable_port", lambda host, port: port)
        with pytest.raises(EmbeddedFailed, match=f"^port {port} on 127.0.0.1 is in use by another program"):
            EmbeddedZooKeeper(tmp_path, port=port).start()
    assert processes_of(tmp_path) == []


def test_another_zookeeper_that_takes_the_chosen_port_is_not_mistaken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedZooKeeper(tmp_path / "other") as other:
        taken = int(other.address.rpartition(":")[2])
        real = zookeeper_probes.usable_port
        ports = iter([taken])
        monkeypatch.setattr(zookeeper_server, "usable_port", lambda host, port: next(ports, None) or real(host, 0))
        with EmbeddedZooKeeper(tmp_path / "ours") as ours:
            assert ours.address != other.address
            assert ours.pid != other.pid


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "folder"
    with pytest.raises(EmbeddedFailed, match=f"cannot use the folder {folder}: Not a directory"):
        EmbeddedZooKeeper(folder).start()
    assert processes_of(tmp_path) == []


def test_a_server_that_fails_leaves_no_process_and_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").touch()
    with pytest.raises(EmbeddedFailed, match=r"did not start: it ended with exit code \d+(?s:.*)version-2"):
        EmbeddedZooKeeper(tmp_path).start()
    assert processes_of(tmp_path) == []


def test_a_server_that_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    # On a busy machine not even its supervisor has come so far.
    with pytest.raises(EmbeddedFailed, match=r"did not start: it does not answer|its supervisor says nothing"):
        EmbeddedZooKeeper(tmp_path).start(timeout=0.1)
    assert processes_of(tmp_path) == []


def test_a_start_that_is_interrupted_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, str(tmp_path)], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(("port", "host"), [(-1, "127.0.0.1"), (65536, "127.0.0.1"), (0, ""), (0, "a\nb=c")])
def test_a_port_or_host_that_cannot_be_is_refused(tmp_path: Path, port: int, host: str) -> None:
    with pytest.raises(InvalidOption):
        EmbeddedZooKeeper(tmp_path, port=port, host=host)


def test_a_host_that_is_not_this_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedFailed, match=r"cannot listen on 192\.0\.2\.1"):
        EmbeddedZooKeeper(tmp_path, host="192.0.2.1").start()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_prints_the_address_and_stops_cleanly(tmp_path: Path, number: int, code: int) -> None:
    command = [*PROGRAM, "zookeeper", "--folder", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    assert f"export TIDINGS_ZOOKEEPER={address}/tidings" in err
    assert processes_of(tmp_path) == []


def test_the_command_says_where_the_server_is_that_runs_already(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        port = server.address.rpartition(":")[2]
        command = [*PROGRAM, "zookeeper", "--folder", str(tmp_path), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"connect to it at 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
