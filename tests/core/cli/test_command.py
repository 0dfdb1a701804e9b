"""The `tidings` command as a whole: usage, help, errors, output, signals."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

import tidings.plugins
from tests.support.commands import PATIENCE_S, PROGRAM, Result, Run, ended, line, published, started, told
from tests.support.places import ROOT
from tests.support.proxy import Proxy
from tidings.cli import main
from tidings.cli.command import app
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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("flows list --sort foo", "'--sort': 'foo' is not one of 'name', 'lag', 'lag-seconds'"),
        ("keys show --role boss", "'--role': 'boss' is not one of 'viewer', 'producer'"),
        ("streams list --output xml", "'--output' / '-o': 'xml' is not one of 'table', 'json', 'yaml'"),
        ("audit x", "'NUMBER': 'x' is no number of an entry: `tidings audit` lists them"),
        ("audit --limit many", "'--limit': 'many' is no whole number"),
        ("audit --limit 0", "'--limit': '0' is too small: at least 1 is wanted"),
        ("streams list --timeout soon", "'--timeout': 'soon' is no number"),
        ("streams list --timeout 1e9", "'--timeout': '1e9' is too large: at most 3600.0 is wanted"),
        (
            "caravans set-limit contacts --rate -3",
            "'--rate': '-3' is no rate: write updates a second, as in 200000, or",
        ),
    ],
)
def test_a_value_that_is_wrong_is_named_in_our_own_words(run: Run, arguments: str, sentence: str) -> None:
    result = run(*arguments.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[-1].startswith(f"Error: Invalid value for {sentence}")


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


@functools.cache
def described() -> str:
    """The page, which takes some seconds to make."""
    return page()


def test_the_page_about_the_command_line_is_what_the_commands_say() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == described(), "make it anew: python -m tidings.cli.reference > docs/cli.md"


def test_help_names_no_type_of_python() -> None:
    found = described()
    assert [word for word in ("Any", "<list", "NAME <str>", "FILE <path>") if word in found] == []
    assert "\n  APP/STREAM/SHARD  The flow.  [required]\n" in found


def test_help_writes_what_may_be_left_out_or_repeated_as_other_programs_do() -> None:
    usages = [line for line in described().splitlines() if line.startswith("Usage: ")]
    assert [line for line in usages if "[[" in line or "…" in line] == []
    assert "Usage: tidings flows stop [OPTIONS] [APP/STREAM/SHARD]..." in usages
    assert "Usage: tidings gc run [OPTIONS] [STREAM]" in usages


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
    assert result.stderr.startswith(
        "error: no ZooKeeper answers at 127.0.0.1:1: nobody listens there; check the address"
    )
    assert result.stderr.count("\n") == 1


def test_a_command_does_not_wait_where_nobody_listens_unless_it_is_told_to(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        host, port = closed.getsockname()
    sentence = f"no ZooKeeper answers at {host}:{port}: nobody listens there; check the address, "
    at_once = told(run("streams", "list", "--zookeeper", f"{host}:{port}").err)
    assert at_once.startswith(f"error: {sentence}start one with `tidings zookeeper`, or wait ")
    assert told(run("streams", "list", "--zookeeper", f"{host}:{port}", "--timeout", "0.9").err) == at_once
    warning, error = run("streams", "list", "--zookeeper", f"{host}:{port}", "--timeout", "1.5").err.splitlines()
    assert warning.endswith(f"{sentence}or start one with `tidings zookeeper`: it is waited for, up to 1.5 s")
    assert error == at_once, "which is said soon, and again at the end"


def test_a_command_that_is_told_to_wait_goes_on_when_zookeeper_comes(zookeeper: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        host, port = closed.getsockname()
    with started("streams", "list", "--zookeeper", f"{host}:{port}", "--timeout", "60") as process:
        assert process.stderr
        assert b": it is waited for, up to 60 s" in process.stderr.readline()
        with Proxy(zookeeper, port):
            assert ended(process).code == 0


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
        "up",
        "run",
        "subscribe",
        "publisher",
        "gateway",
        "console",
    }
    assert set(found.values()) == {COMMAND_TIMEOUT_S, SERVICE_TIMEOUT_S}


def test_formats_are_declared_and_printed_in_one_way() -> None:
    def declared(command: Any) -> Iterator[tuple[str, str]]:
        by_name = {one.name: one.help for one in command.params}
        if "json" in by_name:
            yield by_name["json"], by_name["output"]
        for inner in getattr(command, "commands", {}).values():
            yield from declared(inner)

    output = "Print a table, which is for people, or JSON or YAML, for programs."
    found = set(declared(typer.main.get_command(app)))
    assert found == {("The same as --output json.", output), ("As --output json: an object a line.", output)}
    places = [ROOT / "core" / "tidings" / "cli", *(ROOT / "plugins").iterdir()]
    modules = [path for place in places for path in place.rglob("*.py")]
    assert [path.name for path in modules if "safe_dump(" in path.read_text()] == ["output.py"]
    assert sum('"--json"' in path.read_text() for path in modules) == 1


def test_a_result_can_be_had_in_each_format(contacts: Run) -> None:
    as_json = contacts("streams", "list", "--json")
    assert contacts("streams", "list", "--output", "json") == as_json
    assert contacts("streams", "list", "-o", "json", "--json") == as_json
    assert yaml.safe_load(contacts("streams", "list", "--output", "yaml").out) == as_json.json
    assert contacts("streams", "list", "--output", "table") == contacts("streams", "list")
    assert contacts("streams", "list").out.startswith("STREAM ")


def test_updates_can_be_had_in_each_format(contacts: Run) -> None:
    published(contacts, {"object": "ä", "version": 1, "payload": "x: 1"}, {"object": "b", "version": None})
    tail = ("streams", "tail", "contacts", "--from", "earliest", "--no-follow")
    told = contacts(*tail, "--output", "yaml").out
    assert list(yaml.safe_load_all(told)) == contacts(*tail, "--json").json_lines
    assert contacts(*tail, "--output", "table") == contacts(*tail)


@pytest.mark.parametrize("format", ["table", "yaml"])
def test_two_formats_are_refused_before_anything_is_done(contacts: Run, format: str) -> None:
    refused = contacts("streams", "drop", "contacts", "--yes", "--json", "--output", format)
    assert (refused.code, refused.out) == (2, "")
    assert told(refused.err) == f"error: --json and --output {format} ask for different formats: give one of them"
    assert "contacts" in contacts("streams", "list").out


def every_command() -> Iterator[list[str]]:
    def walk(command: Any, path: list[str]) -> Iterator[list[str]]:
        yield path
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, [*path, name])

    return walk(typer.main.get_command(app), [])


def test_every_command_has_help_and_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    root = typer.main.get_command(app)  # once: making it takes longer than all the rest

    def run(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as end:
            root(list(arguments), prog_name="tidings")
        return Result(int(str(end.value.code)), *capsys.readouterr())

    for path in every_command():
        shown = run(*path, "--help")
        assert (shown.code, shown.err) == (0, ""), path
        assert shown.out.startswith(" ".join(["Usage: tidings", *path])), path
        refused = run(*path, "--nonsense")
        assert (refused.code, refused.out) == (2, ""), path
        assert "No such option: --nonsense" in refused.err, path
        if "--output" in shown.out:
            refused = run(*path, "--output", "xml")
            assert (refused.code, refused.out) == (2, ""), path
            assert "'xml' is not one of 'table', 'json', 'yaml'" in refused.err, path


def test_every_command_that_needs_a_zookeeper_says_that_there_is_none(run: Run) -> None:
    """Whatever else is asked for; those that are services wait for it, and are tried elsewhere."""
    values = {"number": "1", "which": "a/b/0", "predicate": "object = x"}
    more = {
        "streams create": ["--log", "delta:x"],
        "streams move": ["--log", "delta:x"],
        "streams drop": ["--yes"],
        "streams truncate": ["--older-than", "P1D", "--execute"],
        "streams snapshot": ["--dry-run"],
        "streams publish": [],
        "applications create": ["--stream", "x"],
        "applications update": ["--no-filter"],
        "applications drop": ["--yes"],
        "caravans set-limit": ["--caravans", "2"],
        "flows move": ["--to", "x"],
        "flows reset": ["--to-latest", "--execute"],
        "flows skip": ["--execute"],
        "thialfi create": ["--stream", "x", "--storage", "x"],
        "thialfi drop-state": ["--execute"],
        "thialfi revoke": ["--client", "1"],
        "thialfi disconnect": ["--client", "1"],
    }
    root, tried = typer.main.get_command(app), 0
    for path in every_command():
        command: Any = root
        for name in path:
            command = command.commands[name]
        options = {one.name: one for one in command.params}
        if (
            "timeout" not in options
            or options["timeout"].default != COMMAND_TIMEOUT_S
            or path in (["apply"], ["restore"])
        ):
            continue  # which read a file first
        arguments = [values.get(one.name, "x") for one in command.params if one.param_type_name == "argument"]
        dead = ["--zookeeper", "127.0.0.1:1/nobody", "--timeout", "0.1"]
        result = run(*path, *arguments, *more.get(" ".join(path), []), *dead)
        assert (result.code in (1, 2), result.out) == (True, ""), (path, result.err)
        if result.code == 1:  # else it wants more than was given
            assert told(result.err).startswith("error: no ZooKeeper answers at 127.0.0.1:1"), path
            tried += 1
    assert tried > 25


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


def test_an_interrupt_while_modules_are_imported_leaves_no_trace() -> None:
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from tidings.cli import main
sys.exit(main(["--help"]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["tidings", "tidings.errors", "tidings.cli", "typer", "tidings.cli.command"])
def test_the_command_is_quiet_if_it_is_ended_while_modules_are_imported(module: str, number: signal.Signals) -> None:
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Ending:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number.value})

sys.meta_path.insert(0, Ending())
from tidings_command import main
sys.exit(main())
"""
    result = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (128 + number, "", "")


def test_the_command_as_it_is_installed_ends_by_signals_as_ever_once_all_is_imported(contacts: Run) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        module, function = tomllib.load(file)["project"]["scripts"]["tidings"].split(":")
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from {module} import {function}
sys.exit({function}())
"""
    published(contacts, {"object": "a", "version": 0})
    arguments = ["streams", "tail", "contacts", "--from", "earliest"]
    for number in (signal.SIGINT, signal.SIGTERM):
        command = [sys.executable, "-c", code, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                assert b" a " in line(process)
                process.send_signal(number)
                assert ended(process) == Result(128 + number, "", "")
            finally:
                process.kill()


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
