"""What comes in no whole message is counted and bounded too: control frames, pieces of messages, tiny chunks, heads."""

from __future__ import annotations

import base64
import socket
import struct
from urllib.parse import urlsplit

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import gateway_scene
from tests.support.gateway_scene import Process, Scene
from tidings.testing import eventually
from tidings_thialfi.gateway.websocket_frames import Frames

HOSTILE, HONEST = "127.0.0.3", "127.0.0.2"
TEXT, PING, PONG, CLOSE = 1, 9, 10, 8
MANY = 2000  # frames: more than may come at once, and few enough for any buffer

scene = gateway_scene.scene


@pytest.fixture(scope="module")
def gateway(scene: Scene) -> Process:
    """A gateway that takes a message and ten frames a second of a client, 200 frames at once, and waits for 2 s."""
    return scene.gateway("g1", "--rate", "1", "--burst", "5", "--request-timeout", "2", "--origin", "*")


@pytest.fixture(scope="module")
def honest(scene: Scene) -> aiohttp.ClientSession:
    return scene.http_from(HONEST)


def limited(gateway: Process, limit: str) -> float:
    return gateway.metric("limited_total", limit=limit)


def frame(opcode: int, payload: bytes = b"", *, final: bool = True, masked: bool = True) -> bytes:
    head = bytes([(0x80 if final else 0) | opcode])
    size = len(payload)
    mask = 0x80 if masked else 0
    if size < 126:
        head += bytes([mask | size])
    else:
        head += (
            bytes([mask | 126]) + struct.pack(">H", size)
            if size < 2**16
            else bytes([mask | 127]) + struct.pack(">Q", size)
        )
    return head + (bytes(4) if masked else b"") + payload  # a mask of nothing changes nothing


def connect(gateway: Process, sends: bytes, address: str = HOSTILE) -> socket.socket:
    place = urlsplit(gateway.url)
    made = socket.create_connection((place.hostname or "", place.port or 0), 20, source_address=(address, 0))
    made.sendall(sends)
    return made


def upgrade(key: bytes = base64.b64encode(bytes(16)), **more: bytes) -> bytes:
    headers = {"Upgrade": b"websocket", "Connection": b"Upgrade", "Sec-WebSocket-Key": key}
    headers |= {"Sec-WebSocket-Version": b"13", "Sec-WebSocket-Protocol": b"tidings.thialfi.v1", "Host": b"x"}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    lines = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in headers.items())
    return b"GET /v1/client HTTP/1.1\r\n" + lines + b"\r\n"


class RawSocket:
    """A WebSocket that sends what no library would."""

    def __init__(self, gateway: Process, behind: bytes = b"") -> None:
        self.socket = connect(gateway, upgrade() + behind)
        self._file = self.socket.makefile("rb")
        assert b" 101 " in self._file.readline()
        while self._file.readline() != b"\r\n":
            pass

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def closed(self) -> int | None:
        """The code with which the gateway closes; None if it is cut off, or not closed in time."""
        try:
            while head := self._file.read(2):
                payload = self._file.read(struct.unpack(">H", self._file.read(2))[0] if head[1] == 126 else head[1])
                if head[0] & 15 == CLOSE:
                    return int.from_bytes(payload[:2], "big")
        except OSError:
            pass
        return None

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@pytest.mark.parametrize(
    "sends",
    [
        [frame(PONG)] * MANY,
        [frame(PING)] * MANY,
        [frame(TEXT, final=False), *[frame(0, final=False)] * MANY],
        [frame(TEXT, b"{}")] * MANY,
    ],
    ids=["pongs", "pings", "empty pieces", "messages"],
)
@pytest.mark.parametrize("behind", [False, True], ids=["", "behind the request"])
def test_frames_without_end_close_the_connection_and_are_counted(
    scene: Scene, gateway: Process, honest: aiohttp.ClientSession, sends: list[bytes], behind: bool
) -> None:
    client = scene.client_from(honest, gateway)
    client.hello()
    before = limited(gateway, "pace")
    one = RawSocket(gateway, b"".join(sends) if behind else b"")
    one.send(*([frame(PONG)] if behind else sends))
    assert one.closed() == 3501
    assert limited(gateway, "pace") > before
    one.close()
    client.say(heartbeat=True)
    client.hear()
    client.close()


def test_a_client_that_sends_what_it_may_is_never_held_back(scene: Scene, honest: aiohttp.ClientSession) -> None:
    gateway = scene.gateway("g-much")
    client = scene.client_from(honest, gateway)
    client.hello()
    for part in range(5):  # as many entries, and nearly as many bytes, as a client may say at once
        names = [[f"{'x' * 200}{part}-{number}", str(number + 1)] for number in range(250)]
        client.say(register=names, heartbeat=True)
        assert "error" not in client.hear()
    assert limited(gateway, "pace") == 0
    gateway.end()


def test_a_message_that_has_begun_ends_in_time_or_the_connection_does(gateway: Process) -> None:
    before = limited(gateway, "timeout")
    pieces = [frame(TEXT, b'{"v": ', final=False)], [frame(TEXT, b"x" * 50_000)[:40_000]]
    sockets = [RawSocket(gateway) for _ in pieces]
    for one, sends in zip(sockets, pieces, strict=True):
        one.send(*sends)
    assert [one.closed() for one in sockets] == [3008, 3008]
    assert limited(gateway, "timeout") == before + 2
    for one in sockets:
        one.close()


def test_a_message_in_pieces_is_one(gateway: Process) -> None:
    one = RawSocket(gateway)
    one.send(frame(TEXT, b'{"v"', final=False), frame(PONG), frame(0, b': "9.0"}'))
    assert b'"version"' in one.socket.recv(4096)
    one.close()


def test_bytes_are_counted_when_they_are_received(scene: Scene, honest: aiohttp.ClientSession) -> None:
    gateway = scene.gateway("g-unfinished", "--address-bytes", "1KiB")  # 20 KiB at once; twice as much is not read
    sockets = [RawSocket(gateway) for _ in range(3)]
    for one in sockets:
        one.send(frame(TEXT, b"x" * 20_000, final=False))
    assert eventually(lambda: limited(gateway, "pace") > 0)
    assert limited(gateway, "address-bytes") == 0, "no message is whole"
    scene.client_from(honest, gateway).hello()
    for one in sockets:
        one.close()
    gateway.end()


def test_chunks_of_a_byte_are_read_at_the_pace_of_an_address(scene: Scene, honest: aiohttp.ClientSession) -> None:
    gateway = scene.gateway("g-chunks", "--rate", "1", "--burst", "1")
    head = b"POST /v1/poll HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    one = connect(gateway, head + b"1\r\nx\r\n" * 5000)
    assert eventually(lambda: limited(gateway, "pace") > 0)
    scene.client_from(honest, gateway).hello()
    one.close()
    gateway.end()


def test_a_frame_without_a_mask_is_none_of_a_client(gateway: Process) -> None:
    one = RawSocket(gateway)
    one.send(frame(TEXT, b'{"v": "9.0"}', masked=False))
    assert one.closed() == 3501
    one.close()


messages = st.lists(
    st.tuples(st.sampled_from([TEXT, 0, PING, PONG]), st.sampled_from([0, 1, 125, 126, 70_000]), st.booleans()),
    max_size=8,
)


@given(messages, st.integers(1, 5000))
def test_frames_are_followed_however_they_are_cut(made: list[tuple[int, int, bool]], step: int) -> None:
    data = b"".join(frame(opcode, bytes(size), final=final) for opcode, size, final in made)
    frames = Frames()
    for at in range(0, len(data), step):
        frames.follow(data[at : at + step], float(at))
    assert frames.count == len(made)
    ends = [final for opcode, _, final in made if opcode < CLOSE]
    assert (frames.begun is not None) == (bool(ends) and not ends[-1])
    assert not frames.unmasked


@pytest.mark.parametrize(
    ("sends", "code"),
    [
        (upgrade(b"\xff\xfe"), b"400"),
        (upgrade(b"k\xc3\xa9y="), b"400"),
        (upgrade(b""), b"400"),
        (upgrade(b"dG9vIHNob3J0"), b"400"),
        (upgrade(Sec_WebSocket_Version=b"\xff"), b"400"),
        (upgrade(Sec_WebSocket_Protocol=b"\xff"), b"400"),
        (upgrade(Upgrade=b"\xff"), b"400"),
        (upgrade(Connection=b"\xff"), b"400"),
        (upgrade(Sec_WebSocket_Extensions=b"\xff"), b"101"),
        (upgrade(Authorization=b"\xff"), b"101"),
        (upgrade(X_Forwarded_For=b"\xff"), b"101"),
        (upgrade(Origin=b"\xff"), b"403"),
        (upgrade(Origin=b"\xff").replace(b"/v1/client", b"/v1/nothing"), b"403"),
        (upgrade(Origin=b"https://app.example"), b"101"),
    ],
)
def test_a_head_of_any_bytes_is_answered_and_leaves_no_trace(gateway: Process, sends: bytes, code: bytes) -> None:
    with connect(gateway, sends) as one:
        assert one.recv(4096)[9:12] == code
    assert not any("Traceback" in line for line in gateway.lines), "".join(gateway.lines)
