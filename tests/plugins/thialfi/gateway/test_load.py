"""Ten thousand clients on one gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.crowd import Crowd
from tests.support.gateway_scene import Scene, scene_of
from tidings.cluster import Cluster
from tidings.testing import eventually

TRUNKED = 8_000
SOCKETS = 2_000


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(cluster, tmp_path) as own:
        yield own


@pytest.mark.slow
def test_ten_thousand_clients_are_told_and_cost_little(scene: Scene) -> None:
    tokens = scene.secret_file("trunks", "of-the-proxy")
    gateway = scene.gateway(
        "g1", "--trunk-tokens", str(tokens), "--max-per-address", "5000", "--address-entries", "20000"
    )

    async def scenario() -> None:
        crowd = Crowd()
        await crowd.connect(gateway.url, 50)
        before = gateway.memory()
        await crowd.connect(gateway.url, SOCKETS - 50)
        each = (gateway.memory() - before) / SOCKETS
        assert each < 64 * 1024, f"a connection takes {each:,.0f} bytes"
        await crowd.connect_trunk(gateway.url, "of-the-proxy", TRUNKED)
        assert len(set(crowd.clients)) == SOCKETS + TRUNKED
        await asyncio.to_thread(eventually, lambda: gateway.metric("operation_rows_total", op="online") >= 10_000)
        for version in (1, 2):
            crowd.forget()
            made = [
                {"object": str(client), "version": version, "attributes": {"say": "notify", "object": "alice"}}
                for client in crowd.clients
            ]
            await asyncio.to_thread(scene.tell_many, made)
            await crowd.until(lambda: crowd.received >= len(crowd.clients), 60)
        assert crowd.refused == 0
        assert gateway.metric("sessions") == SOCKETS + TRUNKED
        assert gateway.metric("unacknowledged_notifications") == SOCKETS + TRUNKED  # the newest version of each
        await crowd.close()

    asyncio.run(scenario())
    eventually(lambda: gateway.metric("sessions") == 0)
    eventually(lambda: gateway.metric("operation_rows_total", op="offline") == SOCKETS + TRUNKED)
    assert gateway.end() == 143
