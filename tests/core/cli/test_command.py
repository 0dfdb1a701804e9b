"""The `tidings` command as a whole: usage, help, errors, output, signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import tidings.plugins
from tests.support.commands import PATIENCE_S, PROGRAM, Result, Run, ended, line, published, started, told
from tests.support.places import ROOT
from tidings.cli import app, main
from tidings.cli.options import COMMAND_TIMEOUT_S, SERVICE_TIMEOUT_S
from tidings.cli.reference import page


@pytest.mark.parametrize(
    "arguments", [["nope"], ["streams", "nope"], ["streams", "list", "--nope"], ["streams", "tail"], ["--nope"]]
)
def test_bad_usage_is_told_with_exit_code_2(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "Usage: tidings" in result.err
    assert "Error: " in result.err


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version") == Result(0, f"tidings {tidings.__version__}\n", "")


def test_every_command_and_option_is_described() -> None:
    def check(command: Any, path: str) -> None:
        assert command.help, path
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{path} {parameter.name}"
        for name, inner in getattr(command, "commands", {}).items():
            check(inner, f"{path} {name}")

    check(typer.main.get_command(app), "tidings")


def test_the_page_about_the_command_line_is_what_the_commands_say() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == page(), "make it anew: python -m tidings.cli.reference > docs/cli.md"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tidings.cli import main; assert main(['--help']) == main(['streams', '--help']) == 0; "
        "heavy = {'pyspark', 'deltalake', 'kazoo', 'pyarrow', 'numpy', 'yaml', 'rich'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "tidings streams publish" in result.stdout


def test_a_dead_zookeeper_is_one_sentence() -> None:
    arguments = ["streams", "list", "--zookeeper", "127.0.0.1:1/nobody", "--timeout", "1"]
    result = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: no ZooKeeper answers at 127.0.0.1:1 within 1 s")
    assert result.stderr.count("\n") == 1


def test_a_zookeeper_that_does_not_answer_is_told_within_seconds(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        since = time.monotonic()
        result = run("streams", "list", "--zookeeper", f"{host}:{port}")
    assert result.err.startswith(f"error: no ZooKeeper answers at {host}:{port} within 3 s")
    assert time.monotonic() - since < 8, "kazoo by itself would wait for the time-out of a session, too"


def test_what_a_person_waits_for_gives_up_sooner_than_what_runs_on() -> None:
    def timeouts(command: Any, path: str) -> Iterator[tuple[str, float]]:
        yield from ((path, one.default) for one in command.params if one.name == "timeout")
        for name, inner in getattr(command, "commands", {}).items():
            yield from timeouts(inner, f"{path} {name}".strip())

    found = dict(timeouts(typer.main.get_command(app), ""))
    assert {path for path, seconds in found.items() if seconds == SERVICE_TIMEOUT_S} == {
        "run",
        "subscribe",
        "publisher",
        "gateway",
    }
    assert set(found.values()) == {COMMAND_TIMEOUT_S, SERVICE_TIMEOUT_S}


def test_json_is_declared_and_printed_in_one_way() -> None:
    def declared(command: Any) -> Iterator[str]:
        yield from (one.help for one in command.params if "--json" in one.opts)
        for inner in getattr(command, "commands", {}).values():
            yield from declared(inner)

    assert set(declared(typer.main.get_command(app))) == {
        "Print JSON instead of a table.",
        "Print a JSON object a line.",
    }
    places = [ROOT / "core" / "tidings" / "cli", ROOT / "plugins" / "log_tailing"]
    modules = [path for place in places for path in place.rglob("*.py")]
    assert [path.name for path in modules if "print_json(" in path.read_text()] == ["output.py"]
    assert sum('"--json"' in path.read_text() for path in modules) == 1


@pytest.mark.parametrize("address", ["here", "a:b", "h:1//x", "h:1 /x", "h:99999", "h:1,[::1:1"])
def test_an_address_that_is_none_is_refused(run: Run, address: str) -> None:
    result = run("streams", "list", "--zookeeper", address)
    assert result.code == 1
    assert result.err.startswith(f"error: {address!r} is no ZooKeeper address")


@pytest.mark.parametrize("address", ["u:secret@127.0.0.1:2181", "h:1,u:secret@h:p", "u:sec/ret@h:1/x"])
def test_a_password_in_an_address_is_refused_and_not_shown(run: Run, address: str) -> None:
    result = run("streams", "list", "--zookeeper", address)
    assert (result.code, told(result.err)[:38]) == (1, "error: a ZooKeeper address has no '@',")
    assert "sec" not in result.err


@pytest.mark.parametrize("address", ["postgresql://u:secret@h/db", "postgresql://h/db?passwor%64=secret"])
def test_a_password_in_the_address_of_a_log_is_refused_however_it_is_written(run: Run, address: str) -> None:
    result = run("streams", "create", "shop", "--log", f"postgres:{address}", "--zookeeper", "127.0.0.1:1")
    assert result.code == 1
    assert "must not hold a password" in told(result.err)
    assert "secret" not in result.err


def test_credentials_come_from_the_environment_and_are_never_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_CREDENTIALS", "secret")
    result = run("streams", "list")
    form = "error: credentials for ZooKeeper have the form user:password, as `tidings keys show` prints\n"
    assert (result.code, result.err) == (1, form)
    monkeypatch.setenv("TIDINGS_ZOOKEEPER_CREDENTIALS", "user:secret")
    assert "secret" not in run("-vv", "streams", "list").err.replace("without a secret", "")


def test_a_closed_pipe_is_no_reason_for_a_trace(contacts: Run) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with started("streams", "describe", "contacts", stdout=writer) as process:
        os.close(writer)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (1, b"")


def test_a_bug_shows_its_trace(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(tidings.plugins, "installed", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["plugins"])


def test_output_that_is_no_terminal_has_no_colours_and_is_not_cut_off(run: Run, tmp_path: Path) -> None:
    long = "x" * 200
    assert run("streams", "create", "contacts", "--shards", "1", "--log", f"delta:{long}").code == 0
    out = run("streams", "list").out
    assert f"delta:{tmp_path}/{long} " in out
    assert "\x1b" not in out


@pytest.fixture
def ignoring_interrupts() -> Iterator[None]:
    """SIGINT is ignored here, and in what is started from here: as in a shell's background job."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_command_in_the_background_ignores_interrupts_and_heeds_termination(
    contacts: Run, ignoring_interrupts: None
) -> None:
    assert published(contacts, {"object": "a", "version": 0})
    command = [str(Path(sys.executable).with_name("tidings")), "streams", "tail", "contacts", "--from", "earliest"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert b" a " in line(process)
            process.send_signal(signal.SIGINT)
            published(contacts, {"object": "b", "version": 0})
            assert b" b " in line(process)
            process.terminate()
            assert ended(process) == Result(143, "", "")
        finally:
            process.kill()


def test_a_command_of_a_test_heeds_interrupts_though_the_tests_are_in_the_background(
    contacts: Run, ignoring_interrupts: None
) -> None:
    published(contacts, {"object": "a", "version": 0})
    with started("streams", "tail", "contacts", "--from", "earliest") as process:
        assert b" a " in line(process)
        process.send_signal(signal.SIGINT)
        assert ended(process) == Result(130, "", "")


def test_the_signal_handler_and_the_exception_hook_are_put_back(run: Run) -> None:
    before = signal.getsignal(signal.SIGTERM), sys.excepthook
    assert run("plugins").code == 0
    assert (signal.getsignal(signal.SIGTERM), sys.excepthook) == before
