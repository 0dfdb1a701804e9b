"""A contacts app: a back end that keeps people in SQLite, and two clients whose caches are always fresh in the end.

Everything runs here, in a temporary folder: `python examples/contacts.py`. In production the service is a pipeline on a
Spark cluster, gateways stand where clients can reach them, and a back end in any language publishes its changes.
"""

from __future__ import annotations

import base64
import re
import secrets
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import tidings
from tidings.testing import eventually
from tidings_thialfi import Client, Listener, service

SERVICE = "contacts"


class BackEnd:
    """The application's own server: its store has the truth, and each change of it is published with its version."""

    def __init__(self, store: Path, producer: tidings.Producer) -> None:
        self._store = sqlite3.connect(store, check_same_thread=False, isolation_level=None)
        self._store.execute("create table people (name text primary key, phone text, version integer)")
        self._producer = producer
        self._lock = threading.Lock()

    def change(self, name: str, phone: str, source: str | None = None) -> int:
        """Change a person's number, and publish that it has changed; `source` is the client that did it."""
        with self._lock:
            (version,) = self._store.execute(
                "insert into people values (?, ?, 1)"
                " on conflict (name) do update set phone = excluded.phone, version = version + 1 returning version",
                (name, phone),
            ).fetchone()
        self._producer.publish(name, version, source=source).result()
        return int(version)

    def fetch(self, name: str) -> tuple[str | None, int]:
        """What a client asks for when it has heard of a change."""
        with self._lock:
            found = self._store.execute("select phone, version from people where name = ?", (name,)).fetchone()
        return found or (None, 0)


class Phonebook(Listener):
    """A client's cache. It is told that something has changed, never what: that it fetches from the back end."""

    def __init__(self, owner: str, back_end: BackEnd, names: list[str], say: Callable[[str], None] = print) -> None:
        self.owner = owner
        self.numbers: dict[str, tuple[str | None, int]] = {}
        self.heard: list[str] = []
        self.state: bytes | None = None
        self.client: Client | None = None
        self._back_end = back_end
        self._names = names
        self._say = say

    @contextmanager
    def connected(self, address: str) -> Iterator[None]:
        """Keep the cache fresh for as long as the block runs; it goes on where it was left."""
        self.client = Client(address, self.owner, self)
        self.client.start(self.state)
        try:
            yield
        finally:
            self.client.stop()

    def reissue_registrations(self) -> None:
        if self.client is not None:
            self.client.register_many(self._names)

    def notify(self, object: str, version: int, payload: bytes | None = None) -> None:
        self._fetch(object, f"version {version}")

    def notify_unknown(self, object: str) -> None:
        self._fetch(object, "an unknown version")

    def notify_all(self) -> None:
        for name in self._names:
            self._fetch(name, "anything may have changed")

    def write_state(self, state: bytes) -> None:
        self.state = state  # a real one keeps it on the device

    def fresh(self) -> bool:
        """Whether it has what the back end has."""
        return all(self.numbers.get(name) == self._back_end.fetch(name) for name in self._names)

    def _fetch(self, name: str, why: str) -> None:
        self.numbers[name] = self._back_end.fetch(name)
        self.heard.append(f"{name}: {why}")
        self._say(f"  {self.owner} hears of {name}, {why}, and fetches {self.numbers[name][0]}")


class Gateway:
    """A gateway in a process of its own, as an operator would run it."""

    def __init__(self, zookeeper: str, folder: str, listen: str = "127.0.0.1:0") -> None:
        keys = Path(folder, "keys.txt")
        if not keys.exists():
            keys.write_text(f"k1 {base64.b64encode(secrets.token_bytes(32)).decode()}\n")
        command = [Path(sys.executable).with_name("tidings"), "gateway", "--service", SERVICE, "--keys", keys]
        settings = ["--zookeeper", zookeeper, "--listen", listen, "--session-timeout", "4"]
        self.process = subprocess.Popen([*map(str, command), *settings], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.listens = next(
            found[1] for line in self.process.stderr if (found := re.search(r"listens on (\S+);", line))
        )
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # so that it is never held up
        self.address = f"ws://{self.listens}"

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        self.process.wait()


@contextmanager
def serving(cluster: tidings.Cluster, folder: str) -> Iterator[BackEnd]:
    """A service for the stream `people`: its pipeline, and a publisher for what clients are told; and the back end."""
    people = cluster.create_stream("people", shards=4)
    contacts = service.create(cluster, SERVICE, ["people"], storage=folder, shards=4)
    with (
        contacts.open(cluster).start(tidings.session("contacts", master="local[2]")),
        cluster.publisher(token_interval=1.0),
        people.producer(linger=0.005) as producer,
    ):
        yield BackEnd(Path(folder, "people.db"), producer)


def main() -> None:
    with ExitStack() as leaving:
        folder = leaving.enter_context(tempfile.TemporaryDirectory())
        cluster = leaving.enter_context(tidings.embedded(folder))
        back_end = leaving.enter_context(serving(cluster, folder))
        gateway = leaving.enter_context(Gateway(cluster.address, folder))
        phone, laptop = (Phonebook(owner, back_end, ["alice", "bob"]) for owner in ("phone", "laptop"))
        with phone.connected(gateway.address):
            with laptop.connected(gateway.address):
                eventually(lambda: len(phone.heard) == len(laptop.heard) == 2)
                print("the laptop changes alice's number: the phone hears of it, and the laptop knows already")
                laptop.numbers["alice"] = ("555-1000", back_end.change("alice", "555-1000", source="laptop"))
                eventually(phone.fresh)
            print("the laptop is shut; bob's number changes five times")
            for number in range(5):
                back_end.change("bob", f"555-200{number}")
                eventually(phone.fresh)
            print("the laptop is opened again")
            with laptop.connected(gateway.address):
                eventually(laptop.fresh)
    print("both caches are fresh")


if __name__ == "__main__":
    main()
