"""The tables of options in docs/spark.md, as the code has them: `python -m pyspark_tidings.reference` prints them."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_tidings.options import READ, WRITE, Option


def reading() -> str:
    """The options of `spark.read` and `spark.readStream`."""
    return _table(READ)


def writing() -> str:
    """The options of `df.write` and `df.writeStream`."""
    return _table(WRITE)


def _table(options: Iterable[Option]) -> str:
    rows = [
        (f"`{one.name}`", one.default, f"{one.use} only: {one.meaning}" if one.use else one.meaning) for one in options
    ]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (("option", "default", "meaning"), ("---",) * 3, *rows))


if __name__ == "__main__":
    print(reading(), writing(), sep="\n", end="")
