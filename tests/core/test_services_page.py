"""The page for services is run: its blocks, one after the other, and what they define."""

from __future__ import annotations

import asyncio
import re
import sys
import types
from typing import Any

import pytest

from tests.support.places import ROOT
from tidings.cluster import Cluster
from tidings.streams import Stream
from tidings.testing import eventually

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "services.md").read_text(), re.DOTALL)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found = types.ModuleType("services_page")
    monkeypatch.setitem(sys.modules, found.__name__, found)  # where dataclasses look
    for block in BLOCKS:
        exec(compile(block, "docs/services.md", "exec"), vars(found))
    return vars(found)


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    stream = cluster.create_stream("contacts", shards=2)
    for name in ("cache", "directory", "mailer"):
        cluster.create_application(name, ["contacts"], start="earliest")
    with stream.producer() as producer:
        producer.publish("alice", payload=b'{"name": "Alice", "age": 7}').result(10)
    return stream


def test_the_tests_of_the_page_pass(page: dict[str, Any]) -> None:
    tests = [value for name, value in page.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_its_subscribers_process_updates(page: dict[str, Any], cluster: Cluster, stream: Stream) -> None:
    sent: list[str] = []

    async def send(name: str) -> None:
        sent.append(name)

    async def mail() -> None:
        task = asyncio.create_task(page["mail"](cluster))
        while not sent:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    page["send"] = send
    with cluster.publisher():
        with page["directory"](cluster) as subscriber:
            page["warm"](subscriber)
            assert subscriber._caller._handler.contacts == [page["Contact"]("Alice", 7)]
        asyncio.run(asyncio.wait_for(mail(), 30))
        assert sent == ["alice"]
        cache = page["Cache"]()
        with cluster.subscribe("cache", cache, payload_as=dict):
            eventually(lambda: cache.names == {"alice": "Alice"})
