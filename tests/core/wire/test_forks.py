"""A program that holds exchanges starts other programs."""

from __future__ import annotations

import subprocess
import sys

BUSY_AND_FORKING = """
import logging, os, subprocess, threading
from tidings.wire.exchange_server import ExchangeServer
from tidings.wire.security import OPEN
from tidings.wire.channel import open_channel
from tidings.wire.flight_data import METHOD, pack_first

logging.disable()
server = ExchangeServer("p1", "127.0.0.1:0", OPEN, OPEN.keys, patience_s=1.0)
server.start(lambda *_: None, lambda *_: None)

def speak():
    while True:
        with open_channel(server.address, OPEN) as channel:
            try:
                list(channel.stream_stream(METHOD)(iter([pack_first({"t": "x"})])))
            except Exception:
                pass

for _ in range(3):
    threading.Thread(target=speak, daemon=True).start()
children = [subprocess.Popen(["true"], preexec_fn=lambda: None) for _ in range(150)]
print([child.wait(20) for child in children].count(0), flush=True)
os._exit(0)
"""


def test_children_that_are_forked_beside_exchanges_start_their_programs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUSY_AND_FORKING], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "150", done.stderr[-2000:]
