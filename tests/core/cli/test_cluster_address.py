"""Which cluster a command works with: the option, the environment, the nearest `tidings.yml`, the default."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import Run, told
from tidings.cli.cluster_address import cluster_address
from tidings.hosts import DEFAULT_ADDRESS


@pytest.fixture
def project(run: Run, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `tidings.yml` names a cluster with a stream; nothing else names any."""
    assert run("streams", "create", "contacts", "--log", "delta:contacts").code == 0
    monkeypatch.delenv("TIDINGS_ZOOKEEPER")
    (tmp_path / "tidings.yml").write_text(f"zookeeper: {address}\nstreams: {{a: {{shards: 0}}}}\n")
    return tmp_path


def test_a_command_beside_or_below_a_file_works_with_the_cluster_that_it_names(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [one["name"] for one in run("streams", "list", "--json").json] == ["contacts"], (
        "the other mistake is no harm"
    )
    (project / "deep" / "below").mkdir(parents=True)
    monkeypatch.chdir(project / "deep" / "below")
    assert [one["name"] for one in run("streams", "list", "--json").json] == ["contacts"]
    for plugin in (("caravans", "list"), ("gc", "status"), ("thialfi", "status", "none")):
        assert "no ZooKeeper answers" not in run(*plugin).err


def test_the_option_comes_before_the_environment_and_that_before_the_file(
    address: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster_address(None).text == address
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", "127.0.0.1:1/environment")
    assert cluster_address(None).text == "127.0.0.1:1/environment"
    assert cluster_address("127.0.0.1:1/option").text == "127.0.0.1:1/option"
    monkeypatch.delenv("TIDINGS_ZOOKEEPER")
    (project / "tidings.yml").write_text("name: x\n")
    assert cluster_address(None).text == DEFAULT_ADDRESS


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("zookeeper: [\n", "tidings.yml:2:1: broken YAML: "),
        ("\nzookeeper: 7\n", "tidings.yml:2: zookeeper: must be text, not 7"),
        ("zookeeper: 'a b:x'\n", "tidings.yml:1: zookeeper: "),
    ],
)
def test_a_file_whose_address_cannot_be_read_is_one_line_and_in_the_way_of_nobody_who_names_the_cluster(
    run: Run, address: str, project: Path, text: str, problem: str
) -> None:
    (project / "tidings.yml").write_text(text)
    error = told(run("streams", "list").err)
    assert error.startswith(f"error: {problem}")
    assert error.endswith("; mend it, or name the cluster by --zookeeper")
    assert run("streams", "list", "--zookeeper", address).code == 0


def test_a_file_that_is_broken_and_names_no_cluster_is_in_nobodys_way(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "tidings.yml").write_text("streams: [\n")
    assert cluster_address(None).text == DEFAULT_ADDRESS
    assert run("--version").code == run("plugins").code == 0


@pytest.mark.parametrize(
    "command", [("streams", "list"), ("flows", "list"), ("publisher",), ("subscribe", "cache"), ("caravans", "list")]
)
@pytest.mark.parametrize("secret", ["TIDINGS_SECRET", "TIDINGS_ZOOKEEPER_CREDENTIALS"])
def test_no_command_sends_credentials_where_a_file_says_that_was_only_found_above(
    run: Run, address: str, project: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], secret: str
) -> None:
    monkeypatch.setenv(secret, "user:a-secret-that-is-long-enough-for-anybody")
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    refusal = f"error: our credentials are not sent to {address}, since {project}/tidings.yml was found in a folder "
    assert told(run(*command).err).startswith(refusal)


def test_doctor_looks_at_the_cluster_of_the_file_and_tells_of_a_file_that_is_broken(run: Run, project: Path) -> None:
    found = {one["name"]: one for one in run("doctor", "--json").json}
    assert found["zookeeper"]["ok"]
    assert "none was asked for" not in found["zookeeper"]["found"]
    (project / "tidings.yml").write_text("zookeeper: [\n")
    broken = {one["name"]: one for one in run("doctor", "--json").json}
    assert broken["tidings.yml"]["found"].startswith("tidings.yml:2:1: broken YAML")
    assert broken["python"]["ok"], "all else is looked at"


def test_a_file_that_names_no_cluster_costs_no_yaml(project: Path) -> None:
    (project / "tidings.yml").write_text("streams: {}\n")
    code = (
        "import sys; from tidings.cli.cluster_address import cluster_address; cluster_address(None); "
        "sys.exit(', '.join({'yaml', 'pydantic'} & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
