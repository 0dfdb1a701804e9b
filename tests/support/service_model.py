"""A small model of the service, and of a world around it in which a channel loses, repeats and reorders messages."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tidings_thialfi.client.core import ClientCore
from tidings_thialfi.client.listener import Handle
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import (
    Failure,
    FromClient,
    FromService,
    Grant,
    Notice,
    Status,
    SyncPart,
    encode,
    parse_client,
    parse_service,
)

FORBIDDEN = "forbidden"


@dataclass
class Registrar:
    """What the service knows of one client."""

    operations: dict[str, tuple[int, bool]] = field(default_factory=dict)
    floor: int = 0
    seen: int = 0
    parts: dict[int, dict[int, SyncPart]] = field(default_factory=dict)
    acked: dict[str, int] = field(default_factory=dict)
    acked_unknown: dict[str, int] = field(default_factory=dict)

    def registered(self) -> dict[str, int]:
        return {
            name: number
            for name, (number, registered) in self.operations.items()
            if registered and number >= self.floor
        }

    def operate(self, name: str, number: int, registered: bool) -> None:
        self.seen = max(self.seen, number)
        if number > self.operations.get(name, (-1, False))[0] and number >= self.floor:
            self.operations[name] = number, registered

    def sync(self, part: SyncPart) -> None:
        parts = self.parts.setdefault(part.number, {})
        parts[part.part] = part
        if len(parts) == part.parts and part.number > self.floor:
            for one in parts.values():
                for name in one.objects:
                    if FORBIDDEN not in name:
                        self.operate(name, part.number, True)
            self.floor = part.number
            self.seen = max(self.seen, part.number)


class Service:
    """Every client is online; `repeat` tells a client all that it has not acknowledged."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.clients: dict[int, Registrar] = {}
        self.identity = 0
        self.issued = 0
        self.asks = True
        """Whether it asks for a sync; if not, it is for the client to see that one is needed."""
        self.lost = 0

    def forget(self) -> None:
        """Lose everything."""
        self.versions, self.clients = {}, {}

    def forget_versions(self, wall: float) -> None:
        """Lose the versions, and so all registrations, which have to be told that they are unknown now."""
        self.versions, self.lost = {}, int(wall * 1e6)
        for about in self.clients.values():
            about.operations = {}

    def forget_registrations(self) -> None:
        """Lose what clients want, and the numbers that it has seen, without a word."""
        for about in self.clients.values():
            about.operations, about.parts, about.seen, about.floor = {}, {}, 0, 0

    def publish(self, name: str, version: int) -> None:
        self.versions[name] = max(version, self.versions.get(name, -1))

    def take(self, message: FromClient) -> FromService:
        owner = self._owner(message.token)
        if message.hello is not None:
            return self._grant(message, owner)
        if owner is None or owner[0] not in self.clients:
            return FromService(invalid="not known")
        if owner[1] != self.identity:
            return FromService(stale=True)
        client = owner[0]
        about = self.clients[client]
        operations = [(*one, True) for one in message.register] + [(*one, False) for one in message.unregister]
        for name, number, registered in operations:
            if not (registered and FORBIDDEN in name):  # refused at the door: the service never sees its number
                about.operate(name, number, registered)
        if message.sync is not None:
            about.sync(message.sync)
            operations += [(name, message.sync.number, True) for name in message.sync.objects if FORBIDDEN in name]
        for ack in message.acknowledge:
            acked = about.acked_unknown if ack.unknown else about.acked
            acked[ack.name] = max(ack.version, acked.get(ack.name, -1))
        answer = self.repeat(client)
        status = [
            Status(name, name in about.registered(), about.operations[name][0])
            for name, _, registered in operations
            if name in about.operations and not (registered and FORBIDDEN in name)
        ]
        failed = [Failure(name, number, False, "no") for name, number, yes in operations if yes and FORBIDDEN in name]
        differ = self.asks and message.digest is not None and message.digest != answer.digest
        return FromService(
            digest=answer.digest,
            seen=answer.seen,
            notify=answer.notify,
            status=tuple(status),
            failed=tuple(failed),
            sync=differ and not operations and message.sync is None,
        )

    def repeat(self, client: int) -> FromService:
        about = self.clients[client]
        notices = []
        for name, number in about.registered().items():
            version, number = self.versions.get(name), max(number, self.lost)
            if version is None and about.acked_unknown.get(name, -1) < number:
                notices.append(Notice(name, number, unknown=True))
            elif version is not None and about.acked.get(name, -1) < version:
                notices.append(Notice(name, version, payload=b"p" if version % 2 else None))
        return FromService(digest=Digest.of(client, about.registered()), seen=about.seen, notify=tuple(notices))

    def _grant(self, message: FromClient, owner: tuple[int, int] | None) -> FromService:
        assert message.hello is not None
        again = owner is not None and owner[0] in self.clients
        client = owner[0] if owner is not None and again else len(self.clients) + 1000 * self.issued + 1
        self.issued += 1
        self.clients.setdefault(client, Registrar())
        return FromService(grant=Grant(message.hello.nonce, f"{client}.{self.identity}", client, again))

    def _owner(self, token: str | None) -> tuple[int, int] | None:
        if token is None:
            return None
        client, identity = token.split(".")
        return int(client), int(identity)


class Application:
    """A client and its application, which fetches what it is told of, and keeps it over restarts."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.wanted: set[str] = set()
        self.has: dict[str, int] = {}
        self.state: bytes | None = None
        self.registered: dict[str, bool] = {}
        self.told: list[tuple[str, object]] = []
        self.handles: list[Handle] = []
        self.core = self._new_core(None)

    def restart(self, state: bytes | None) -> None:
        self.handles = []
        self.registered = {}
        self.core = self._new_core(state)

    def _new_core(self, state: bytes | None) -> ClientCore:
        core = ClientCore(self.name, rng=self.world.rng)
        core.start(state, now=self.world.now, wall=self.world.wall())
        core.connected(now=self.world.now)
        return core

    def want(self, name: str) -> None:
        self.wanted.add(name)
        self.core.register(name, self.has.get(name), now=self.world.now)

    def leave(self, name: str) -> None:
        self.wanted.discard(name)
        self.core.unregister(name, now=self.world.now)

    def listen(self, faults: float) -> None:
        while event := self.core.next_event():
            if self.world.rng.random() < faults:
                self.core.redeliver(event, now=self.world.now)
                continue
            self._tell(event.method, event.arguments)
            if event.handle is not None:
                if self.world.rng.random() < faults:
                    self.handles.append(event.handle)  # acknowledged some time later
                else:
                    self.core.acknowledge(event.handle)
            self.core.delivered(event, now=self.world.now)

    def _tell(self, method: str, arguments: tuple[object, ...]) -> None:
        self.told.append((method, arguments))
        name = str(arguments[0]) if arguments else ""
        if method == "notify":
            assert isinstance(arguments[1], int)
            assert arguments[1] <= self.world.truth[name], "a version that was never published"
            self.has[name] = max(arguments[1], self.has.get(name, -1))
        elif method == "notify_unknown":
            if name in self.world.truth:
                self.has[name] = self.world.truth[name]
        elif method == "reissue_registrations":
            for wanted in sorted(self.wanted):
                self.want(wanted)
        elif method == "write_state":
            assert isinstance(arguments[0], bytes)
            self.state = arguments[0]
        elif method == "registration_status_changed":
            self.registered[name] = bool(arguments[1])
        elif method == "registration_failure":
            assert FORBIDDEN in name
            self.wanted.discard(name)


class World:
    """Applications, the service and the channel between them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.clock_error = 0.0
        self.truth: dict[str, int] = {}
        self.service = Service()
        self.faults = 0.0
        self.to_service: list[tuple[Application, str]] = []
        self.to_client: list[tuple[Application, ClientCore, str]] = []
        self.applications = [Application(self, name) for name in ("web", "phone")]
        self.sent = 0

    def wall(self) -> float:
        return 1_700_000_000 + self.now + self.clock_error

    def publish(self, name: str) -> None:
        self.truth[name] = self.truth.get(name, self.rng.randrange(10)) + 1
        self.service.publish(name, self.truth[name])

    def step(self) -> None:
        """Let everyone say and hear what is due."""
        for application in self.applications:
            application.listen(self.faults)
            for message in application.core.messages(now=self.now):
                self.sent += 1
                self.to_service += [(application, encode(message))] * self._copies()
            application.listen(self.faults)
        for _ in range(len(self.to_service)):
            application, text = self.to_service.pop(self._pick(self.to_service))
            answer = encode(self.service.take(parse_client(text)))
            self.to_client += [(application, application.core, answer)] * self._copies()
            if self.faults and self.rng.random() < 0.5:
                break
        for _ in range(len(self.to_client)):
            application, core, text = self.to_client.pop(self._pick(self.to_client))
            if core is application.core:  # a run that has ended hears nothing
                core.received(parse_service(text), now=self.now)
            if self.faults and self.rng.random() < 0.5:
                break

    def repeat(self) -> None:
        """The service tells every client what it has not acknowledged."""
        for application in self.applications:
            client = application.core._registrations.client
            if client in self.service.clients:
                answer = encode(self.service.repeat(client))
                self.to_client += [(application, application.core, answer)] * self._copies()

    def settle(self, hours: float = 6.0) -> None:
        """No more faults: go on until there is nothing to do but heartbeats."""
        self.faults = 0.0
        for application in self.applications:
            for handle in application.handles:
                application.core.acknowledge(handle)
        end = self.now + hours * 3600
        repeat = self.now
        while self.now < end:
            self.step()
            wake = min(application.core.wake(now=self.now) for application in self.applications)
            if self.now >= repeat:
                self.repeat()
                repeat = self.now + 60
            self.now = max(self.now + 0.01, min(wake, repeat, end))

    def _copies(self) -> int:
        return self.rng.choice((0, 1, 1, 2)) if self.rng.random() < self.faults else 1

    def _pick(
        self, queue: list[object] | list[tuple[Application, str]] | list[tuple[Application, ClientCore, str]]
    ) -> int:
        return self.rng.randrange(len(queue)) if self.rng.random() < self.faults else 0
