"""A member of another release: `release.py SPEAKS SCRIPT …` runs the script as if it were of that one.

It is the code of this release, which says that it speaks other versions of the protocol, as in `3:2`, the newest and
the oldest; or `unsaid`, and it says nothing of it, as members did before there was anything to say. So it shows what
members do with each other's records and greetings, and not that what an older release said is understood. For that,
TIDINGS_OLD_RELEASE names a checkout of the older one, whose code runs then as `unsaid`: try it before a release.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from tidings import protocol_versions


def main() -> None:
    speaks, script = sys.argv[1:3]
    old = os.environ.get("TIDINGS_OLD_RELEASE")
    if speaks == "unsaid" and old:
        roots = ":".join(f"{old}/{root}" for root in ("core", "connectors", "plugins/log_tailing", "."))
        command = [sys.executable, f"{old}/tests/support/{script}", *sys.argv[3:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": roots})
    if speaks == "unsaid":
        vars(protocol_versions)["own_record"] = dict
    else:
        protocol_versions.PROTOCOL, protocol_versions.OLDEST = map(int, speaks.split(":"))
    sys.argv = sys.argv[2:]
    runpy.run_path(str(Path(__file__).parent / script), run_name="__main__")


if __name__ == "__main__":
    main()
