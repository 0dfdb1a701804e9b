"""`python -m bench [name…] [--quick]`: run benchmarks, print a table each and write `bench/results/<name>.json`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pkgutil
import sys
import time
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.table import Table

from bench.report import Row

HERE = Path(__file__).parent


def benchmarks() -> dict[str, ModuleType]:
    """The benchmarks by name: every module beside this one that can be run."""
    modules = [
        importlib.import_module(f"bench.{each.name}")
        for each in pkgutil.iter_modules([str(HERE)])
        if each.name != "__main__"
    ]
    return {
        module.__name__.removeprefix("bench.").replace("_", "-"): module for module in modules if hasattr(module, "run")
    }


def show(console: Console, name: str, rows: list[Row], seconds: float, caption: str | None) -> None:
    table = Table(title=f"{name} ({seconds:.0f} s)", title_justify="left", caption=caption, caption_justify="left")
    table.add_column("metric")
    table.add_column("ours", justify="right")
    table.add_column("unit")
    table.add_column("beside")
    table.add_column("theirs", justify="right")
    table.add_column("ratio", justify="right")
    for row in rows:
        theirs = "-" if row.reference_value is None else f"{row.reference_value:,.4g}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.metric, f"{row.ours:,.4g}", row.unit, row.reference or "-", theirs, ratio)
    console.print(table)


def main() -> int:
    known = benchmarks()
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of: {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="smaller, and under a minute each")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - known.keys()
    if unknown:
        parser.error(f"there is no benchmark {min(unknown)!r}; there are {', '.join(known)}")
    console = Console(width=None if sys.stdout.isatty() else 140)
    for name in arguments.names or known:
        print(f"{name}: {(known[name].__doc__ or '').splitlines()[0]}", file=sys.stderr)
        start = time.monotonic()
        rows = known[name].run(arguments.quick)
        show(console, name, rows, time.monotonic() - start, getattr(known[name], "CAPTION", None))
        (HERE / "results").mkdir(exist_ok=True)
        text = json.dumps([dataclasses.asdict(row) for row in rows], indent=2)
        (HERE / "results" / f"{name}.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
