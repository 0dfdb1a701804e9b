"""A publisher in a process of its own: `sender.py <zookeeper> <name> [options]`. SIGTERM drains it."""

from __future__ import annotations

import argparse
import logging
import signal
import threading

import tidings


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("zookeeper")
    parser.add_argument("name")
    parser.add_argument("--token-interval", type=float, default=0.5)
    parser.add_argument("--session-timeout", type=float, default=2.0)
    parser.add_argument("--patience", type=float, default=10.0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with (
        tidings.connect(options.zookeeper, session_timeout=options.session_timeout) as cluster,
        cluster.publisher(name=options.name, token_interval=options.token_interval, patience=options.patience),
    ):
        stop.wait()


if __name__ == "__main__":
    main()
