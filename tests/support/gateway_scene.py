"""A service with real gateways in processes of their own, and clients that speak to them over real sockets.

The tests stand where the server stage would: they read the rows of operations and write rows of notifications.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
import resource
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tidings.cluster import Cluster
from tidings.coordination.zookeeper import Coordination
from tidings.testing import eventually, held
from tidings_thialfi import service
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.digests import Digest

SERVICE = "contacts"
PROGRAM = [sys.executable, "-c", "import sys; from tidings.cli import main; sys.exit(main())"]
PATIENCE = 20.0
START_PATIENCE = 60.0  # for a process to start, beside others that do

Message = dict[str, Any]


class Loop:
    """An event loop in a thread, so that tests read from top to bottom."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Any, timeout: float = PATIENCE) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Client:
    """One WebSocket; remembers its token, and what came before what was awaited."""

    def __init__(
        self,
        scene: Scene,
        gateway: Process,
        path: str,
        protocol: str,
        headers: dict[str, str],
        http: aiohttp.ClientSession,
    ) -> None:
        self._scene = scene
        self.token: str | None = None
        self.number = itertools.count(1_700_000_000_000_000)
        self.client = -1
        self.code: int | None = None

        async def connect() -> aiohttp.ClientWebSocketResponse:
            url = f"{gateway.url}{path}"
            socket: aiohttp.ClientWebSocketResponse = await http.ws_connect(url, protocols=[protocol], headers=headers)
            return socket

        self.socket = scene.loop.run(connect())

    def say(self, **parts: Any) -> None:
        message = {"v": "1.0", **({"token": self.token} if self.token else {}), **parts}
        self.text(json.dumps({key: value for key, value in message.items() if value is not None}))

    def text(self, text: str) -> None:
        self._scene.loop.run(self.socket.send_str(text))

    def hear(self, timeout: float = PATIENCE) -> Message:
        """The next message; ConnectionError if the socket is closed."""
        got = self._scene.loop.run(self.socket.receive(timeout), timeout + 5)
        if got.type is not aiohttp.WSMsgType.TEXT:
            if got.type is aiohttp.WSMsgType.CLOSE:
                self.code = got.data
            raise ConnectionError(f"closed: {got}")
        found: Message = json.loads(got.data)
        return found

    def hear_of(self, part: str, timeout: float = PATIENCE) -> Message:
        """The next message that has this part."""
        while part not in (message := self.hear(timeout)):
            pass
        return message

    def closed(self, timeout: float = PATIENCE) -> int | None:
        """The code with which the gateway closes."""
        with contextlib.suppress(ConnectionError):
            while True:
                self.hear(timeout)
        return self.code

    def hello(self, application: str = "web-1", **more: Any) -> Message:
        nonce = secrets.token_hex(8)
        self.say(hello={"nonce": nonce, "application": application, **more})
        grant: Message = self.hear_of("grant")["grant"]
        assert grant["nonce"] == nonce
        self.token, self.client = grant["token"], int(grant["client"])
        return grant

    def digest(self, *objects: str) -> list[str]:
        return Digest.of(self.client, objects).to_json()

    def close(self) -> None:
        self._scene.loop.run(self.socket.close())


class Process:
    """A gateway in a process of its own, which may have so many files open."""

    def __init__(
        self, scene: Scene, id: str, *options: str, env: dict[str, str] | None = None, files: int | None = None
    ) -> None:
        self.id = id
        command = [] if files is None else ["prlimit", f"--nofile={files}:{files}"]
        command += [*PROGRAM, "gateway", "--service", SERVICE, "--keys", str(scene.keys), "--listen", "127.0.0.1:0"]
        command += ["--id", id, "--zookeeper", scene.cluster.address, "--session-timeout", "4", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        self.lines: list[str] = []
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        eventually(lambda: self.url or self.process.poll() is not None, START_PATIENCE)
        assert self.url, "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"listens on (\S+);", line):
                self.url = f"http://{found[1]}"

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, raw, {name.replace("_", "-"): v for name, v in headers.items()}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        wanted = "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else ""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"tidings_gateway_{name}{wanted} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def memory(self) -> int:
        """The bytes that it has."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def end(self, number: int | None = signal.SIGTERM) -> int:
        if number is not None and self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code


class Scene:
    """A cluster with the service's streams, a publisher, gateways and clients."""

    def __init__(self, cluster: Cluster, folder: Path, shards: int = 4) -> None:
        self.cluster = cluster
        self.people = cluster.create_stream("people", shards)
        self.service = service.create(cluster, SERVICE, ["people"], storage=folder / "storage", shards=shards)
        self.operations = cluster.stream(stream_schema.operations_of(SERVICE))
        self.notifications = cluster.stream(stream_schema.notifications_of(SERVICE))
        self.folder = folder
        self.keys = self.secret_file("keys", f"k1 {base64.b64encode(secrets.token_bytes(32)).decode()}")
        self.loop = Loop()
        self.http = self.loop.run(self._session())
        self._gateways: list[Process] = []
        self._stack = contextlib.ExitStack()
        self._producer = self._stack.enter_context(self.notifications.producer(linger=0.0))
        self._stack.enter_context(cluster.publisher(token_interval=0.2))

    async def _session(self, address: str | None = None) -> aiohttp.ClientSession:
        place = None if address is None else (address, 0)
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, local_addr=place))

    def http_from(self, address: str) -> aiohttp.ClientSession:
        """What connects from this address, of those that a machine has for itself."""
        made: aiohttp.ClientSession = self.loop.run(self._session(address))
        self._stack.callback(lambda: self.loop.run(made.close()))
        return made

    def secret_file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text + "\n")
        return path

    def hooks(self, source: str) -> dict[str, str]:
        """Install hooks as an application would, with an entry point; what a gateway's environment has for them."""
        packages = self.folder / "packages"
        about = packages / "doorman-1.0.dist-info"
        about.mkdir(parents=True, exist_ok=True)
        (packages / "doorman.py").write_text(textwrap.dedent(source))
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: doorman\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[tidings.gateway_hooks]\ndoorman = doorman:Doorman\n")
        return {"PYTHONPATH": os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])}

    def gateway(
        self, id: str = "g1", *options: str, env: dict[str, str] | None = None, files: int | None = None
    ) -> Process:
        made = Process(self, id, *options, env=env, files=files)
        self._gateways.append(made)
        return made

    def client(
        self,
        gateway: Process,
        path: str = "/v1/client",
        protocol: str = "tidings.thialfi.v1",
        **headers: str,
    ) -> Client:
        return Client(self, gateway, path, protocol, headers, self.http)

    def client_from(self, http: aiohttp.ClientSession, gateway: Process) -> Client:
        return Client(self, gateway, "/v1/client", "tidings.thialfi.v1", {}, http)

    def rows(self, client: int | None = None) -> list[dict[str, Any]]:
        """What was written of a client: `op`, `number`, and the other attributes."""
        return [
            {**row["attributes"], "number": row["version"], "source": row["source"]}
            for row in held(self.operations.log).to_pylist(maps_as_pydicts="lossy")
            if client is None or row["object"] == str(client)
        ]

    def ops(self, client: int) -> list[str]:
        return [row["op"] for row in self.rows(client)]

    def await_row(self, client: int, op: str, count: int = 1, **about: Any) -> dict[str, Any]:
        def found() -> list[dict[str, Any]] | None:
            those = [row for row in self.rows(client) if row["op"] == op and about.items() <= row.items()]
            return those if len(those) >= count else None

        return eventually(found, PATIENCE)[-1]  # type: ignore[index]  # it is there when eventually returns

    def tell(self, client: int, say: str, version: int | None, payload: bytes | None = None, **about: str) -> None:
        """Say what the stage would."""
        self._producer.publish(str(client), version, payload=payload, attributes={"say": say, **about}).result()

    def notify(self, client: int, name: str, version: int, payload: bytes | None = None) -> None:
        self.tell(client, stream_schema.NOTIFY, version, payload, object=name)

    def tell_digest(self, client: int, seen: int, *objects: str) -> None:
        digest = Digest.of(client, objects)
        self.tell(client, stream_schema.DIGEST, seen, count=str(digest.count), sum=str(digest.sum))

    def tell_many(self, made: list[dict[str, Any]]) -> None:
        self._producer.publish_many(made).result()

    def close(self) -> None:
        for gateway in self._gateways:
            if gateway.process.poll() is None:
                gateway.process.kill()
            gateway.process.wait()
            gateway._reader.join(PATIENCE)
            if gateway.process.stderr is not None:
                gateway.process.stderr.close()
        self.loop.run(self.http.close())
        self._stack.close()
        self.loop.close()


@contextlib.contextmanager
def scene_of(cluster: Cluster, folder: Path, shards: int = 4) -> Iterator[Scene]:
    scene = Scene(cluster, folder, shards)
    try:
        yield scene
    finally:
        scene.close()


@pytest.fixture(scope="module")
def scene(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The scene of all tests of a module."""
    folder = tmp_path_factory.mktemp("gateway")
    coordination = Coordination(f"{zookeeper}/{uuid.uuid4()}")
    with Cluster(coordination, logs=f"delta:{folder}/streams") as cluster, scene_of(cluster, folder) as own:
        yield own


def online(scene: Scene, gateway: Process, make: Callable[[], Client] | None = None) -> Client:
    """A client that has said hello, and whose route is there."""
    client = make() if make is not None else scene.client(gateway)
    client.hello()
    scene.await_row(client.client, stream_schema.ONLINE)
    return client
