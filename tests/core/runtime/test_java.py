from __future__ import annotations

from pathlib import Path

import pytest

from tidings.errors import JavaMissing
from tidings.runtime import java


def fake_java(folder: Path, version_text: str, exit_code: int = 0) -> Path:
    """A launcher that says it is some Java; nobody has all the old ones at hand."""
    launcher = folder / "java"
    folder.mkdir(parents=True, exist_ok=True)
    launcher.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{version_text}\nEND\nexit {exit_code}\n")
    launcher.chmod(0o755)
    return launcher


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with no Java on it, only what the fakes need; tests put theirs into the folder that this gives."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "cat").symlink_to("/bin/cat")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def one_sentence(error: pytest.ExceptionInfo[JavaMissing]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert not text.endswith(".")
    assert ". " not in text
    return text


def test_the_java_on_the_path_is_found() -> None:
    found = java.find()
    assert found.feature >= java.MIN_JAVA
    assert found.path.name == "java"


def test_without_java_one_sentence_says_so(no_java: Path) -> None:
    with pytest.raises(JavaMissing) as error:
        java.find()
    assert "there is no Java: install Java 17" in one_sentence(error)


@pytest.mark.parametrize("version", ["11.0.22", "1.8.0_412"])
def test_a_java_that_is_too_old_is_named_with_its_version(no_java: Path, version: str) -> None:
    launcher = fake_java(no_java, f'openjdk version "{version}" 2024-01-16\nOpenJDK Runtime Environment')
    with pytest.raises(JavaMissing) as error:
        java.find()
    text = one_sentence(error)
    assert f"Java {version} at '{launcher}' (from PATH) is too old" in text


def test_java_home_goes_before_the_path(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(no_java, 'openjdk version "11.0.22" 2024-01-16')
    launcher = fake_java(tmp_path / "jdk" / "bin", 'openjdk version "21" 2023-09-19 LTS')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java.find() == java.Java(launcher, "21")


def test_a_java_home_without_java_is_an_error_because_spark_would_look_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing) as error:
        java.find()
    assert f"JAVA_HOME is '{tmp_path}'" in one_sentence(error)


def test_the_version_is_found_after_other_lines(no_java: Path) -> None:
    fake_java(no_java, 'Picked up JAVA_TOOL_OPTIONS: -Dversion=1\nopenjdk version "17.0.15" 2025-04-15')
    assert java.find().feature == 17


def test_a_launcher_that_fails_is_not_a_java(no_java: Path) -> None:
    fake_java(no_java, "Unable to locate a Java Runtime.", exit_code=1)
    with pytest.raises(JavaMissing) as error:
        java.find()
    assert "does not run" in one_sentence(error)
