from __future__ import annotations

import subprocess
import sys

from tests.soak.resources import CEILINGS, GROWTH, MIB, Sample, sample, unbounded, unbounded_disk


def life(*descriptors: int, member: str = "publisher-1", pid: int = 1) -> list[Sample]:
    return [Sample(member, pid, float(at), MIB, 10, value) for at, value in enumerate(descriptors)]


def test_a_process_that_leaks_descriptors_is_found() -> None:
    assert [one.kind for one in unbounded(life(*range(0, 2000, 50)))] == ["descriptors"]


def test_a_process_that_has_too_many_is_found_however_short_its_life() -> None:
    assert [one.kind for one in unbounded(life(5, CEILINGS["descriptors"] + 1))] == ["descriptors"]


def test_what_goes_up_and_down_or_grows_while_a_process_starts_is_bounded() -> None:
    high = GROWTH["descriptors"] * 3
    assert not list(unbounded(life(*[20, high] * 20)))
    assert not list(unbounded(life(*[20] * 5, *[high] * 40)))


def test_a_process_that_is_started_again_begins_anew() -> None:
    high = GROWTH["descriptors"] * 3
    assert not list(unbounded([*life(*[20] * 30), *life(*[high] * 30, pid=2)]))


def test_a_disk_that_fills_with_more_than_was_written_is_found() -> None:
    assert not list(unbounded_disk(500 * MIB, 50 * MIB))
    assert [one.kind for one in unbounded_disk(5000 * MIB, 50 * MIB)] == ["disk"]


OPENS_FIVE = """
import subprocess, sys
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
print(flush=True)
sys.stdin.readline()
files = [open(sys.executable) for _ in range(5)]
print(flush=True)
sys.stdin.readline()
"""


def test_a_sample_counts_all_processes_of_a_group() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OPENS_FIVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        [before] = sample({"member": process.pid}, 0.0)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        [after] = sample({"member": process.pid}, 1.0)
        process.stdin.write(b"\n")
    assert after.descriptors == before.descriptors + 5
    assert before.threads == 2, "of the program and of what it has started"
    assert before.memory > MIB
    assert not list(sample({"gone": 2**22 + 1}, 0.0))
