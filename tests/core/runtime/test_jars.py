from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidings.errors import InvalidOption, JarsUnavailable
from tidings.runtime import jars
from tidings.testing import eventually

RESOLVE = "from tidings.runtime import jars; print(jars.folder())"

# What a stream of it looks like, Spark knows without a broker.
READ_KAFKA = """
import tidings
kafka = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "contacts"}
print(tidings.session(master="local[1]").readStream.format("kafka").options(**kafka).load().columns)
"""

# A proxy that nobody runs: as good as no network, for Java only.
NO_NETWORK = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=9"


@pytest.fixture(scope="module")
def real() -> Path:
    """The jars, as every other test uses them."""
    return jars.folder()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.delenv("TIDINGS_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def copied(source: Path, target: Path) -> Path:
    """The jars again, without their bytes."""
    target.mkdir(parents=True)
    for jar in source.iterdir():
        os.link(jar, target / jar.name)
    return target


def damaged(jar: Path) -> None:
    content = jar.read_bytes()
    jar.unlink()  # it may be a link to the real one
    jar.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_two_jars_are_pinned_for_spark_and_more_for_kafka_and_for_a_broker() -> None:
    assert [name.rpartition("-")[0] for name in jars.pins()] == ["delta-spark_4.2_2.13", "delta-storage"]
    assert "kafka-clients-3.9.2.jar" in jars.pins("kafka")
    assert "kafka_2.13-4.1.1.jar" in jars.pins("broker")
    every = jars.pins() | jars.pins("kafka") | jars.pins("broker")
    assert all(len(digest) == 64 for digest in every.values())


def test_an_unknown_configuration_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match="'brokers': use one of runtime, kafka, broker"):
        jars.folder("brokers")


@pytest.mark.slow
def test_two_processes_at_once_fetch_once_and_a_damaged_jar_is_fetched_again(cache: Path, tmp_path: Path) -> None:
    both = [subprocess.Popen([sys.executable, "-c", RESOLVE], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=300)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    place = jars.cache()
    assert printed == [str(place)] * 2
    assert sorted(f.name for f in place.iterdir()) == sorted(jars.pins())
    assert jars.problems(place, jars.pins()) == []
    # Nothing is left of the download, and nothing of Ivy's anywhere else.
    assert sorted(f.name for f in place.parent.iterdir()) == ["runtime", "runtime.lock"]
    assert [f.name for f in cache.iterdir()] == ["tidings"]

    victim = place / "delta-storage-4.4.0.jar"
    damaged(victim)
    assert jars.problems(place, jars.pins()) == [f"{victim.name} has another SHA-256 than the pinned one"]
    told: list[tuple[str, int, int]] = []
    assert jars.folder(progress=lambda *step: told.append(step)) == place
    assert jars.problems(place, jars.pins()) == []
    assert told[-1][1:] == (4, 4)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


@pytest.mark.slow
def test_a_download_that_was_killed_is_never_used(cache: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", RESOLVE], stderr=subprocess.PIPE, text=True)
    place = jars.cache()
    eventually(lambda: any(place.parent.glob(".runtime-*/ivy-cache/**/*.xml")), timeout=60)
    (child,) = children(first.pid)
    os.kill(child, signal.SIGKILL)
    _, errors = first.communicate(timeout=60)
    assert "JarsUnavailable: the jars could not be fetched (Ivy was stopped by signal 9): " in errors
    assert [f.name for f in place.parent.iterdir()] == ["runtime.lock"]

    second = subprocess.Popen([sys.executable, "-c", RESOLVE])
    eventually(lambda: any(place.parent.glob(".runtime-*/ivy-cache/**/*.xml")), timeout=60)
    (child,) = children(second.pid)
    second.kill()
    os.kill(child, signal.SIGKILL)
    second.wait()
    (left,) = place.parent.glob(".runtime-*")
    assert not place.exists()
    assert jars.folder() == place
    assert jars.problems(place, jars.pins()) == []
    assert not left.exists()


def test_jars_that_are_there_need_no_java(real: Path, cache: Path, no_java: None) -> None:
    place = copied(real, jars.cache())
    assert jars.folder() == place
    assert jars.paths() == [place / name for name in jars.pins()]


def test_a_half_filled_folder_is_not_used(real: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = copied(real, jars.cache())
    (place / "delta-storage-4.4.0.jar").unlink()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", NO_NETWORK)
    with pytest.raises(JarsUnavailable):
        jars.folder()


def test_without_a_network_one_sentence_says_why_and_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", NO_NETWORK)
    with pytest.raises(JarsUnavailable) as error:
        jars.folder()
    text = str(error.value)
    assert "cannot be reached (Connection refused)" in text
    assert "TIDINGS_JARS" in text
    assert "\n" not in text
    assert not jars.cache().exists()
    assert [f.name for f in jars.cache().parent.iterdir()] == ["runtime.lock"]


def test_a_ready_folder_is_used_as_it_is(
    real: Path, tmp_path: Path, cache: Path, no_java: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = copied(real, tmp_path / "ready")
    (ready / "notes.txt").write_text("a ready folder may hold other things too")
    monkeypatch.setenv("TIDINGS_JARS", str(ready))
    assert jars.folder() == ready
    assert not cache.exists()

    both = tmp_path / "both"
    copied(real, both / "runtime")
    monkeypatch.setenv("TIDINGS_JARS", str(both))
    assert jars.folder() == both / "runtime"


def test_a_ready_folder_with_a_missing_or_damaged_jar_is_refused_by_name(
    real: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = copied(real, tmp_path / "ready")
    (ready / "delta-spark_4.2_2.13-4.4.0.jar").unlink()
    damaged(ready / "delta-storage-4.4.0.jar")
    monkeypatch.setenv("TIDINGS_JARS", str(ready))
    with pytest.raises(JarsUnavailable) as error:
        jars.folder()
    assert "delta-spark_4.2_2.13-4.4.0.jar is missing" in str(error.value)
    assert "delta-storage-4.4.0.jar has another SHA-256" in str(error.value)


@pytest.mark.slow
def test_a_session_has_the_jars_for_kafka_once_they_were_fetched(
    real: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = copied(real, jars.cache())
    without = [spark / name for name in jars.pins()]
    assert jars.class_path() == without
    kafka = jars.folder("kafka")
    both = [*without, *(kafka / name for name in jars.pins("kafka"))]
    assert jars.class_path() == both
    columns = subprocess.check_output([sys.executable, "-c", READ_KAFKA], text=True).strip()
    assert "'topic', 'partition', 'offset'" in columns

    monkeypatch.setenv("TIDINGS_JARS", str(kafka.parent))
    assert jars.class_path() == both
    monkeypatch.setenv("TIDINGS_JARS", str(real))
    assert jars.class_path() == jars.paths()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.delenv("TIDINGS_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(JarsUnavailable, match="set XDG_CACHE_HOME"):
        jars.folder()


def test_the_cache_is_in_the_home_folder_unless_xdg_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert jars.cache().is_relative_to("/home/someone/.cache/tidings/jars")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert jars.cache("broker").is_relative_to("/caches/tidings/jars")


def test_importing_brings_in_neither_spark_nor_the_command_line() -> None:
    heavy = ("pyspark", "typer", "rich")
    code = f"import sys, tidings, tidings.runtime.jars; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_command_prints_the_folder_and_nothing_else(real: Path) -> None:
    command = Path(sys.executable).with_name("tidings")
    done = subprocess.run([command, "jars"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{real}\n", "")


def children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())
