"""Clients of the service, many in one process: `python -m tests.soak.listening <journal> <states> <seed> <address>…`.

What a client has heard is in the journal, and its state in a file: so they outlive the process. Some go away and come
back while it runs, and some of those without their state. SIGTERM ends all.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.soak.journal import Journal, digest
from tidings_thialfi import AsyncClient, Listener
from tidings_thialfi.client.pace import Pace

PACE = Pace(most_retry=5.0, resume=5.0)  # a client tries less and less often; here it is not to take minutes
ABSENCE_EVERY_S = 2.0
ABSENCE_S = 5.0


class Listening(Listener):
    """One client: notes what it is told. A deaf one does so only for the first time, as a fault that must be found."""

    def __init__(self, number: int, wanted: Sequence[str], journal: Journal, states: Path, deaf: bool) -> None:
        self._number = number
        self._wanted = wanted
        self._journal = journal
        self._file = states / str(number)
        self._deaf = deaf
        self._heard = 0
        self.client: AsyncClient | None = None
        journal.note("wants", number, list(wanted))

    def notify(self, object: str, version: int, payload: bytes | None = None) -> None:
        self._heard += 1
        if not self._deaf or self._heard <= len(self._wanted):
            self._journal.note("told", self._number, object, version, digest(payload))

    def notify_unknown(self, object: str) -> None:
        if not self._deaf:
            self._journal.note("unknown", self._number, object)

    def notify_all(self) -> None:
        if not self._deaf:
            self._journal.note("unknown", self._number, None)

    def reissue_registrations(self) -> None:
        assert self.client is not None
        self.client.register_many(self._wanted)

    def write_state(self, state: bytes) -> None:
        half = self._file.with_suffix(".half")
        half.write_bytes(state)
        half.replace(self._file)

    async def start(self, address: str) -> None:
        self.client = AsyncClient(address, f"soak-{self._number}", self, pace=PACE)
        await self.client.start(self._file.read_bytes() if self._file.exists() else None)

    async def stop(self) -> None:
        if self.client is not None:
            await self.client.stop()

    def forget(self) -> None:
        """Lose the state, as one does who loses a telephone."""
        self._file.unlink(missing_ok=True)


async def come_and_go(clients: Sequence[Listening], addresses: Sequence[str], rng: random.Random) -> None:
    """Let one client after the other be away for a while, and come back to any gateway."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / ABSENCE_EVERY_S))
        one = rng.choice(clients)
        await one.stop()
        if rng.random() < 0.2:
            one.forget()
        await asyncio.sleep(rng.random() * ABSENCE_S)
        await one.start(rng.choice(addresses))


async def listen(options: argparse.Namespace) -> None:
    rng = random.Random(options.seed)
    names = json.loads(options.objects.read_text())
    journal = Journal(options.journal)
    options.states.mkdir(exist_ok=True)
    clients = [
        Listening(number, rng.sample(names, options.each), journal, options.states, number < options.deaf)
        for number in range(options.count)
    ]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    for number, client in enumerate(clients):
        await client.start(options.addresses[number % len(options.addresses)])
    coming = asyncio.create_task(come_and_go(clients, options.addresses, random.Random()))
    await stop.wait()
    coming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await coming
    await asyncio.gather(*(client.stop() for client in clients))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("journal", "states", "objects"):
        parser.add_argument(name, type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--each", type=int, default=3, help="objects that a client registers for")
    parser.add_argument("--deaf", type=int, default=0, help="a fault: so many clients do not note what they are told")
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(listen(parser.parse_args()))


if __name__ == "__main__":
    main()
