"""`tidings …`, in a process that loses descriptors: a fault that the soak must find."""

from __future__ import annotations

import os
import sys
import threading
import time

from tidings.cli import main

LEAK_EVERY_S = 0.01


def leak() -> None:
    while True:
        os.open(os.devnull, os.O_RDONLY)
        time.sleep(LEAK_EVERY_S)


if __name__ == "__main__":
    threading.Thread(target=leak, daemon=True).start()
    sys.exit(main())
