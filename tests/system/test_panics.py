"""A native library that panics raises what is no `Exception`: it harms the stream that it was called for, no other."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.subscribers import Seen
from tidings.cluster import Cluster
from tidings.testing import eventually
from tidings_connectors.delta.log import DeltaLog


class Panic(BaseException):
    """What no `except Exception` sees."""


def meddle(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Have a method of the log of stream `bad` panic."""
    real: Any = getattr(DeltaLog, method)

    def panic(self: DeltaLog, *arguments: Any) -> Any:
        if self._stream.name == "bad":
            raise Panic("not yet implemented")
        return real(self, *arguments)

    def panic_at_once(cls: type[DeltaLog], location: str, stream: Any) -> Any:
        if stream.name == "bad":
            raise Panic("not yet implemented")
        return real(location, stream)

    monkeypatch.setattr(DeltaLog, method, classmethod(panic_at_once) if method == "open" else panic)


@pytest.mark.parametrize("method", ["open", "bounds", "tail", "reader"])
def test_a_log_that_panics_leaves_the_other_streams_alone_and_is_served_once_it_does_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    seen = {name: Seen() for name in ("bad", "good")}
    for name in seen:
        with cluster.create_stream(name, 2).producer() as producer:
            producer.publish("first", 1)
        cluster.create_application(f"of-{name}", [name], start="earliest")
    ended: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    with (
        cluster.subscribe("of-bad", seen["bad"]),
        cluster.subscribe("of-good", seen["good"]),
        monkeypatch.context() as patching,
    ):
        meddle(patching, method)
        with cluster.publisher(token_interval=0.1, patience=2.0):
            eventually(lambda: seen["good"].updates)
            assert not seen["bad"].updates
            with cluster.stream("good").producer() as producer:
                producer.publish("second", 1)
            eventually(lambda: len(seen["good"].updates) == 2)
            patching.undo()
            eventually(lambda: seen["bad"].updates)
    assert not ended, "a thread has died"


def test_a_producer_tells_of_a_panic_and_goes_on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster.create_stream("bad", 2).producer() as producer:
        with monkeypatch.context() as patching:
            meddle(patching, "append")
            with pytest.raises(Panic):
                producer.publish("first", 1).result(timeout=10)
        assert producer.publish("first", 1).result(timeout=10).seq == 0
