"""A client's state machine, driven by hand: the clock, what it says and what it hears are the test's."""

from __future__ import annotations

import random
from typing import Any

from tidings_thialfi.client.core import ClientCore
from tidings_thialfi.client.pace import Pace
from tidings_thialfi.protocol.messages import FromClient, FromService, Grant, Status, encode, parse_client


class Driven:
    """A core, driven by hand."""

    def __init__(self, state: bytes | None = None, pace: Pace | None = None, application: str = "web") -> None:
        self.now = 0.0
        self.core = ClientCore(application, rng=random.Random(1), pace=pace)
        self.core.start(state, now=self.now, wall=1_000.0)
        self.core.connected(now=self.now)

    def say(self, after: float = 0.0) -> list[FromClient]:
        self.now += after
        said = self.core.messages(now=self.now)
        for message in said:
            parse_client(encode(message))
        return said

    def hear(self, **parts: Any) -> None:
        self.core.received(FromService(**parts), now=self.now)

    def events(self) -> list[tuple[Any, ...]]:
        found = []
        while event := self.core.next_event():
            found.append((event.method, *event.arguments))
            if event.handle is not None:
                self.core.acknowledge(event.handle)
            self.core.delivered(event, now=self.now)
        return found

    def granted(self, client: int = 7, again: bool = False, token: str = "token") -> Driven:
        (hello,) = self.say()
        assert hello.hello is not None
        self.hear(grant=Grant(hello.hello.nonce, token, client, again))
        return self

    def registered(self, *names: str) -> Driven:
        for name in names:
            self.core.register(name, now=self.now)
        for message in self.say():
            self.hear(status=tuple(Status(name, True, number) for name, number in message.register))
        self.events()
        return self


def saved() -> bytes:
    """The state of a client with number 7 that ran before."""
    driven = Driven().granted()
    state: bytes = next(event[1] for event in driven.events() if event[0] == "write_state")
    return state
