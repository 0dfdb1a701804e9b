"""What commands print is written whole, or they say that it is not; whether Python buffers it or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.commands import PATIENCE_S, PROGRAM, Run, lags, started, told
from tidings.cli.output import document
from tidings.cluster import Cluster
from tidings.publisher.publisher import Publisher

PIPE_BYTES = 2**16  # that a pipe takes though nobody reads them
PRINTER = f"""
import sys
from tidings.cli.stdout import whole_output
try:
    with whole_output():
        sys.stdout.write("x" * {4 * PIPE_BYTES})
        sys.stdout.flush()
except BrokenPipeError:
    sys.exit(7)
"""


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": request.param}


def test_a_reader_that_goes_in_the_middle_of_a_print_is_noticed(environment: dict[str, str]) -> None:
    with subprocess.Popen([sys.executable, "-c", PRINTER], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 7


def test_what_a_reader_that_went_away_did_not_get_is_not_acknowledged(
    cache: Cluster, publisher: Publisher, environment: dict[str, str]
) -> None:
    with cache.stream("contacts").producer() as producer:
        rows = [{"object": "alice", "version": n, "payload": b"x" * 1000} for n in range(300)]
        producer.publish_many(rows).result()
    with started("subscribe", "cache", "--json", env=environment) as process:
        assert process.stdout
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 1
    assert max(lag or 0 for lag in lags(cache)) == 300


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_told_in_one_sentence(cache: Cluster, publisher: Publisher, environment: dict[str, str]) -> None:
    with cache.stream("contacts").producer() as producer:
        producer.publish("alice", 1).result()
    sentence = "error: the output cannot be written: No space left on device"
    with Path("/dev/full").open("wb") as full:
        for command in (["streams", "list"], ["streams", "tail", "contacts", "--from", "earliest"]):
            with started(*command, stdout=full, env=environment) as process:
                _, err = process.communicate(timeout=PATIENCE_S)
                assert (process.returncode, told(err.decode())) == (1, sentence)
        with started("subscribe", "cache", stdout=full, env=environment) as process:
            _, err = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, err.decode().splitlines()[1:]) == (1, [sentence])
    assert max(lag or 0 for lag in lags(cache)) == 1


def test_output_that_was_closed_before_is_told_likewise(contacts: Run) -> None:
    closing = ["sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, "streams", "list"]
    done = subprocess.run(closing, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    assert (done.returncode, told(done.stderr.decode())) == (
        1,
        "error: the output cannot be written: Bad file descriptor",
    )


@pytest.mark.parametrize(("format", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_what_a_terminal_may_take_for_an_order_is_escaped_and_read_back_by_programs(
    format: str, read: Callable[[str], object]
) -> None:
    odd = {"name": "caf\udce9 \x9b31m \u202e"}
    text = document(odd, format)
    assert text.isascii()
    assert read(text) == odd
