"""`python -m tests.mutants [name…]`: put faults into a copy of the code, one at a time, and see which test finds each.

The working tree is not touched. A fault that no test finds, and that nobody has explained, makes this end with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutants.faults import FAULTS, Fault
from tests.support.places import ROOT

TIMEOUT_S = 300.0  # of the tests of one fault, which take a minute at most
GRACE_S = 30.0  # for tests that are interrupted, to take down what they have set up
INTERRUPTED = 130
PASSED, FAILED = 0, 1  # of pytest's exit codes; any other means that the tests did not run as they should


class Verdict(enum.Enum):
    """What became of a fault."""

    KILLED = "killed"
    TIMED_OUT = "killed (time-out)"
    EXPLAINED = "explained"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"


FINE = (Verdict.KILLED, Verdict.TIMED_OUT, Verdict.EXPLAINED)


@dataclass(frozen=True)
class Outcome:
    """A verdict, and who spoke it: the test that failed, or a reason."""

    verdict: Verdict
    by: str


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """The working tree as git sees it, in a folder of its own."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    with tempfile.TemporaryDirectory(prefix="tidings-mutant-") as place:
        folder = Path(place)
        for name in filter(None, names):
            if (ROOT / name).is_file():  # and not deleted
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        yield folder


def run(folder: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """Run tests on the code in a folder, up to the first that fails: pytest's exit code, None after a time-out."""
    roots = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["dev-mode-dirs"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(folder / root) for root in (*roots, ".")),
        "TIDINGS_NO_SKIP": "1",  # a test that does not run finds nothing
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--color=no", *tests]
    with open(folder / "mutant.log", "w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        code: int | None
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        output.seek(0)
        return code, output.read()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the tests, if they run: first let them take down what they have set up, say disks that are mounted."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Mutants:
    """Tries faults, and remembers which tests pass without any."""

    def __init__(self) -> None:
        self._sound: dict[tuple[str, ...], Outcome | None] = {}

    def outcome(self, fault: Fault) -> Outcome:
        """What becomes of a fault."""
        if not fault.tests:
            return Outcome(Verdict.EXPLAINED, fault.explained)
        if (problem := self._problem(fault.tests)) is not None:
            return problem
        with copied() as folder:
            try:
                (folder / fault.file).write_text(fault.applied(ROOT))
            except ValueError as error:
                return Outcome(Verdict.BROKEN, str(error))
            code, output = run(folder, fault.tests)
        if code is None:
            return Outcome(Verdict.TIMED_OUT, f"nothing after {TIMEOUT_S:g} s")
        if code == FAILED:
            return Outcome(Verdict.KILLED, _failed(output))
        if code == PASSED:
            return Outcome(Verdict.EXPLAINED, fault.explained) if fault.explained else Outcome(Verdict.SURVIVED, "")
        return Outcome(Verdict.BROKEN, f"pytest ended with {code}: {_last(output)}")

    def _problem(self, tests: tuple[str, ...]) -> Outcome | None:
        """Why these tests can find nothing: they fail without a fault."""
        if tests not in self._sound:
            with copied() as folder:
                code, output = run(folder, tests)
            told = "nothing in time" if code is None else _failed(output) or _last(output)
            self._sound[tests] = None if code == PASSED else Outcome(Verdict.BROKEN, f"without the fault: {told}")
        return self._sound[tests]


def _failed(output: str) -> str:
    """The test that failed, by its name alone."""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return found[1].partition("::")[2].partition("[")[0] if found else ""


def _last(output: str) -> str:
    return (output.strip().splitlines() or [""])[-1]


def main() -> int:
    """Try the faults, and print a table."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="a fault; without any, all of them")
    arguments = parser.parse_args()
    known = {fault.name: fault for fault in FAULTS}
    if unknown := set(arguments.names) - known.keys():
        parser.error(f"there is no fault {min(unknown)!r}; tests/mutants/faults.py has them")
    chosen = [known[name] for name in arguments.names or known]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcomes: dict[Fault, Outcome] = {}
    try:
        try_faults(chosen, outcomes)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    table = Table("fault", "what it breaks", "", "by", title_justify="left", title="mutants")
    for fault, outcome in outcomes.items():
        table.add_row(fault.name, fault.breaks, outcome.verdict.value, outcome.by)
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    if len(outcomes) < len(chosen):
        return INTERRUPTED
    return int(any(outcome.verdict not in FINE for outcome in outcomes.values()))


def try_faults(faults: Sequence[Fault], outcomes: dict[Fault, Outcome]) -> None:
    """Try faults, and note what becomes of each."""
    mutants = Mutants()
    for number, fault in enumerate(faults, 1):
        print(f"{number}/{len(faults)} {fault.name}: ", end="", file=sys.stderr, flush=True)
        begun = time.monotonic()
        outcomes[fault] = outcome = mutants.outcome(fault)
        print(f"{outcome.verdict.value} {outcome.by} ({time.monotonic() - begun:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
