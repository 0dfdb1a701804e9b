"""`make soak [MINUTES=3] [SEED=…]`: everything at once, under random faults; is anything lost, invented, out of order?

Faults come by a seed, which is printed: the same seed plans the same ones.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.soak import plan
from tests.soak.soak import END_S, run
from tests.soak.world import PARTS, SABOTAGE, Shape


def one_of(known: tuple[str, ...]) -> Callable[[str], frozenset[str]]:
    """Some of what there is, with commas between."""

    def parse(text: str) -> frozenset[str]:
        names = frozenset(filter(None, text.split(",")))
        if unknown := names - set(known):
            raise argparse.ArgumentTypeError(f"there is no {min(unknown)!r}; there are {', '.join(known)}")
        return names

    return parse


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3.0, help="of faults; starting and ending come on top (3)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="made up if not given")
    parser.add_argument("--within", type=float, default=10.0, help="seconds of which the share is told (10)")
    parser.add_argument("--ending", type=float, default=END_S, help=f"seconds in which all must arrive ({END_S:g})")
    parser.add_argument("--clients", type=int, default=240)
    parser.add_argument(
        "--faults", type=one_of(plan.KINDS), default=frozenset(plan.KINDS), help=f"some of {','.join(plan.KINDS)}"
    )
    parser.add_argument("--without", type=one_of(PARTS), default=frozenset(), help=f"leave out {' or '.join(PARTS)}")
    parser.add_argument(
        "--sabotage", type=one_of(SABOTAGE), default=frozenset(), help=f"faults to be found: {','.join(SABOTAGE)}"
    )
    given = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # that ZooKeeper is away is no news here
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # and so what was started is ended
    shape = Shape(given.seed, given.minutes, given.clients, given.without, given.sabotage)
    folder = Path(tempfile.mkdtemp(prefix="tidings-soak-"))
    print(f"seed {given.seed}, {given.minutes:g} minutes of faults: {', '.join(sorted(given.faults))}; in {folder}")
    verdict = run(shape, folder, kinds=given.faults, within=given.within, ending=given.ending, say=say)
    return 1 if verdict.findings else 0


if __name__ == "__main__":
    sys.exit(main())
