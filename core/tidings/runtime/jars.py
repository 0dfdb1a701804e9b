"""The jars that Spark needs beside its own: pinned by `ivy.xml`, checked against `ivy.sha256`, kept once for each user.

The Ivy that comes with PySpark fetches them. They go into a private folder first, every file is checked, and one rename
puts the folder where others look. So a folder with the final name is complete; it is checked again each time it is
used, which takes a few hundredths of a second, and one that was damaged since is fetched anew.

TIDINGS_JARS names a folder that holds them already, for machines without a network.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidings.errors import InvalidOption, JarsUnavailable
from tidings.runtime import java

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how many steps are done, and how many there are."""

_log = logging.getLogger(__name__)

# Ivy's own name for Maven Central, so that no host is named here. We check SHA-256 ourselves; without Ivy's checksum
# files a download needs half the requests.
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <timeout-constraints>
    <timeout-constraint name="patient" connectionTimeout="10000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="central" m2compatible="true" checksums="" timeoutConstraint="patient"/>
  </resolvers>
</ivysettings>
"""


def pins(conf: str = "runtime") -> dict[str, str]:
    """The file names of a configuration, each with its SHA-256.

    >>> "delta-storage-4.4.0.jar" in pins()
    True
    """
    every: dict[str, dict[str, str]] = {}
    for line in _pinned("ivy.sha256").read_text(encoding="utf-8").splitlines():
        digest, _, path = line.partition("  ")
        group, _, name = path.partition("/")
        every.setdefault(group, {})[name] = digest
    if conf not in every:
        raise InvalidOption(f"there is no jar configuration {conf!r}: use one of {', '.join(every)}")
    return every[conf]


def paths(conf: str = "runtime", progress: Progress | None = None) -> list[Path]:
    """The jars of a configuration, present and checked; fetches them if need be."""
    place = folder(conf, progress)
    return [place / name for name in pins(conf)]


def class_path() -> list[Path]:
    """The jars of a session: those of `runtime`, fetched if need be, and those of `kafka` if they are there."""
    place = _given("kafka") or cache("kafka")
    with_kafka = all((place / name).is_file() for name in pins("kafka"))
    return [*paths(), *(paths("kafka") if with_kafka else [])]


def folder(conf: str = "runtime", progress: Progress | None = None) -> Path:
    """The folder with the jars of a configuration, all present and checked; fetches them if need be.

    Any number of processes may call this at once: one fetches, the others wait for it. Raises `JarsUnavailable` when
    they cannot be had, and `JavaMissing` when they must be fetched and there is no Java to do it with.
    """
    wanted = pins(conf)
    given = _given(conf)
    if given is not None:
        return _checked(given, conf, wanted)
    place = cache(conf)
    if place.is_dir() and not problems(place, wanted):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place.with_suffix(".lock")):
            if place.is_dir() and not problems(place, wanted):
                return place
            _fetch(conf, place, wanted, progress)
    except OSError as error:
        raise JarsUnavailable(
            f"the jars cannot be kept in '{place.parent}' ({error.strerror or error}): set XDG_CACHE_HOME to a folder "
            "that can be written, or TIDINGS_JARS to one that holds them"
        ) from error
    return place


def cache(conf: str = "runtime") -> Path:
    """Where the jars of a configuration are kept for this user, whether or not they are there yet."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative path is to be ignored, says the XDG specification.
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError as error:
            raise JarsUnavailable("this user has no home folder to keep the jars in: set XDG_CACHE_HOME") from error
    version = hashlib.sha256(_pinned("ivy.xml").read_bytes()).hexdigest()[:16]
    return base / "tidings" / "jars" / version / conf


def problems(place: Path, wanted: dict[str, str]) -> list[str]:
    """What is wrong with a folder of jars: each file that is missing or is not the pinned one. Empty if all is well."""
    found = []
    for name, digest in wanted.items():
        try:
            with open(place / name, "rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            found.append(f"{name} is missing" if isinstance(error, FileNotFoundError) else f"{name} cannot be read")
        else:
            if actual != digest:
                found.append(f"{name} has another SHA-256 than the pinned one")
    return found


def _given(conf: str) -> Path | None:
    """The folder that TIDINGS_JARS names: for one configuration, or with a folder for each."""
    ready = os.environ.get("TIDINGS_JARS")
    if not ready:
        return None
    own = Path(ready, conf)
    return own if own.is_dir() else Path(ready)


def _checked(place: Path, conf: str, wanted: dict[str, str]) -> Path:
    wrong = problems(place, wanted)
    if wrong:
        raise JarsUnavailable(
            f"TIDINGS_JARS is set, but in '{place}' {'; '.join(wrong)}: copy the folder that 'tidings jars --conf "
            f"{conf}' prints on a machine with a network"
        )
    return place


def _fetch(conf: str, place: Path, wanted: dict[str, str], progress: Progress | None) -> None:
    """Puts a fresh, checked folder at `place`. The caller holds the lock."""
    prefix = f".{conf}-"
    for dead in place.parent.glob(f"{prefix}*"):
        # Whoever made it held the lock that is ours now, so it was killed before it could tidy up.
        shutil.rmtree(dead, ignore_errors=True)
    _log.info("fetching %d jars into %s", len(wanted), place)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=place.parent))
    try:
        fetched = work / "jars"
        _ivy(conf, work, fetched, len(wanted), progress)
        wrong = problems(fetched, wanted)
        wrong += [f"{extra} is not pinned" for extra in sorted({f.name for f in fetched.iterdir()} - wanted.keys())]
        if wrong:
            raise JarsUnavailable(
                f"the jars that were fetched are not the pinned ones ({'; '.join(wrong)}): try again, or set "
                "TIDINGS_JARS to a folder that holds them"
            )
        if place.exists():
            # Damaged since it was made. It goes away with the work folder.
            place.rename(work / "damaged")
        fetched.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _ivy(conf: str, work: Path, target: Path, count: int, progress: Progress | None) -> None:
    settings = work / "ivysettings.xml"
    settings.write_text(_SETTINGS, encoding="utf-8")
    command = [
        str(java.find().path),
        "-XX:TieredStopAtLevel=1",
        # Nothing of Ivy's is kept outside the work folder, least of all in the user's home.
        f"-Divy.home={work}",
        f"-Divy.default.ivy.user.dir={work}",
        *("-cp", str(_ivy_jar()), "org.apache.ivy.Main"),
        *("-settings", str(settings), "-cache", str(work / "ivy-cache")),
        *("-ivy", str(_pinned("ivy.xml")), "-confs", conf),
        *("-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.strip())
                if progress is not None:
                    _tell(progress, lines, count)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise JarsUnavailable(
            f"the jars could not be fetched ({_reason(lines, process.returncode)}): on a machine without a network, "
            "set TIDINGS_JARS to a folder that holds them"
        )


def _tell(progress: Progress, lines: list[str], count: int) -> None:
    # Each jar is two steps: Ivy finds them all, then it downloads them all.
    if match := re.match(r"found \S+#(\S+);(\S+) in ", lines[-1]):
        progress(
            f"found {match[1]} {match[2]}", min(count, sum(line.startswith("found ") for line in lines)), 2 * count
        )
    elif lines[-1].startswith("[SUCCESSFUL ]"):
        fetched = sum(line.startswith("[SUCCESSFUL ]") for line in lines)
        progress(f"fetched {lines[-1].partition('!')[2].split(' ')[0]}", min(2 * count, count + fetched), 2 * count)


def _reason(lines: list[str], code: int) -> str:
    """Why Ivy failed, from what it printed: the network if that was it, else the first thing that it did not find."""
    text = "\n".join(lines)
    if match := re.search(r"Host (\S+) not found", text):
        return f"the host {match[1]} was not found"
    if match := re.search(r"Server access error at url \w+://([^/\s]+)\S* \((?:[\w.$]+: )?(.*)\)", text):
        return f"{match[1]} cannot be reached ({match[2]})"
    missing = re.findall(r"^:: (\S+#\S+;\S+?)(?:!\S+)?: (.+?)(?: ::)?$", text, re.MULTILINE)
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"{missing[0][0]}: {missing[0][1]}{more}"
    if code < 0:
        return f"Ivy was stopped by signal {-code}"
    return next((line for line in reversed(lines) if line), f"Ivy ended with exit code {code}")


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for jar in Path(location, "jars").glob("ivy-*.jar"):
            return jar
    raise JarsUnavailable("PySpark, or the Ivy inside it, is not installed: run 'pip install pyspark==4.2.0'")


def _pinned(name: str) -> Path:
    """A file that pins the jars: in the folder of an installed package, at the top level in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return next((f for f in (package / name, package.parents[1] / name) if f.is_file()), package / name)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The lock goes with the process, however that ends; the file itself stays, because removing it would let two in.
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
