"""When a pipeline that has failed is started again: pauses, by a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidings.cli.kept_pipelines import LONGEST_PAUSE_S, KeptPipelines
from tidings.errors import PipelineFailed


class Ends:
    """A pipeline whose runs end as they are told to, without Spark."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = 0

    def start(self, spark: Any, *, once: bool) -> Ends:
        self.started += 1
        self.error: PipelineFailed | None = None
        self.progress = SimpleNamespace(batches=0)
        return self

    @property
    def active(self) -> bool:
        return self.error is None

    def wait(self, timeout: float) -> None:
        assert self.error is not None
        raise self.error

    def fail(self, batches: int = 0) -> None:
        self.progress.batches = batches
        self.error = PipelineFailed(f"pipeline {self.name!r} failed: its disk is full")


def kept(once: bool = False) -> tuple[Any, SimpleNamespace, Ends, Ends]:
    now, failing, other = SimpleNamespace(s=0.0), Ends("failing"), Ends("other")
    pipelines: Any = KeptPipelines(None, {}, once=once, clock=lambda: now.s)  # type: ignore[arg-type] # needs no Spark
    pipelines.start([failing, other])
    return pipelines, now, failing, other


def test_pauses_grow_to_a_minute_and_begin_anew_after_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    pipelines, now, failing, _ = kept()
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S):
        failing.fail()
        before = failing.started
        pipelines.keep()
        assert f"its disk is full; it is started again in {pause:g} s\n" in capsys.readouterr().err
        now.s += pause - 0.1
        pipelines.keep()
        assert (failing.started, list(pipelines.failures)) == (before, ["failing"])
        now.s += 0.2
        pipelines.keep()
        assert (failing.started, pipelines.failures) == (before + 1, {})
    failing.fail(batches=1)
    pipelines.keep()
    assert capsys.readouterr().err.endswith("it is started again in 1 s\n")


def test_the_last_one_is_not_started_again(capsys: pytest.CaptureFixture[str]) -> None:
    pipelines, now, failing, other = kept()
    failing.fail()
    other.fail()
    pipelines.keep()
    now.s += 2 * LONGEST_PAUSE_S
    pipelines.keep()
    assert (failing.started, other.started, pipelines.active) == (1, 1, False)
    assert list(pipelines.failures) == ["failing", "other"]
    assert "again" not in capsys.readouterr().err


def test_what_runs_once_is_not_started_again(capsys: pytest.CaptureFixture[str]) -> None:
    pipelines, now, failing, _ = kept(once=True)
    failing.fail()
    pipelines.keep()
    now.s += 2 * LONGEST_PAUSE_S
    pipelines.keep()
    assert (failing.started, list(pipelines.failures)) == (1, ["failing"])
    assert "again" not in capsys.readouterr().err
