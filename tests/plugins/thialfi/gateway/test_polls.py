"""Clients that poll, without a gateway around them."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from tidings_thialfi.gateway.channels import ClientChannel
from tidings_thialfi.gateway.dispatch import Dispatcher
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.polls import Polls, TooManyPollers


class Whoever:
    """Stands where the dispatcher does: each message is of the client that it names."""

    def __init__(self) -> None:
        self.left = 0

    async def receive(self, channel: ClientChannel, text: str) -> None:
        channel.session = cast(Any, type("Session", (), {"client": int(text)}))

    def client_of(self, text: str) -> int:
        return int(text)

    def leave(self, channel: ClientChannel) -> None:
        self.left += 1


class Fleeting(dict[Any, Any]):
    """Counts how often all of it is looked at."""

    walks = 0

    def items(self) -> Any:
        Fleeting.walks += 1
        return super().items()

    def values(self) -> Any:
        Fleeting.walks += 1
        return super().values()

    def __iter__(self) -> Any:
        Fleeting.walks += 1
        return super().__iter__()


def polled(polls: Polls, client: int) -> None:
    asyncio.run(polls.answer(json.dumps({"send": [client], "wait": 0}).encode(), "192.0.2.7", None))


def test_those_who_have_stopped_polling_are_found_in_one_look() -> None:
    dispatcher = Whoever()
    polls = Polls(cast(Dispatcher, dispatcher), GatewayOptions(poll_gap=1e-9), keyed=False)
    for client in range(100):
        polled(polls, client)
    polls._by_key, polls._by_client = Fleeting(polls._by_key), Fleeting(polls._by_client)
    Fleeting.walks = 0
    polls.sweep()
    assert (dispatcher.left, Fleeting.walks) == (100, 1)
    assert not polls._by_client


def test_a_client_that_polls_counts_until_it_is_gone() -> None:
    polls = Polls(cast(Dispatcher, Whoever()), GatewayOptions(max_per_address=1, poll_gap=1e-9), keyed=False)
    polled(polls, 1)
    polled(polls, 1)
    with pytest.raises(TooManyPollers):
        polled(polls, 2)
    polls.sweep()
    polled(polls, 2)
