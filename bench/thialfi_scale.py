"""What more clients cost: the CPU of a notification, and its delay, as the service's state grows a hundred times.

The rate of notifications stays the same. The paper is Thialfi's: three times the resources for 23 times the users.
"""

from __future__ import annotations

from bench.report import Row, less_is_better, milliseconds
from bench.thialfi_delay import measure

RATE = 2_000


def run(quick: bool) -> list[Row]:
    sizes = (20_000, 100_000) if quick else (100_000, 2_300_000, 10_000_000)
    found = {clients: measure(clients, (RATE,), 10.0 if quick else 30.0)[RATE] for clients in sizes}
    rows = []
    for clients, measured in found.items():
        name = f"{clients / 1e6:g} M clients"
        rows.append(Row(f"{name}: CPU of a notification", measured.cpu * 1000, "ms"))
        rows.append(Row(f"{name}: median delay", milliseconds(measured.delays, 50), "ms"))
    first = found[sizes[0]]
    for clients in sizes[1:]:
        growth = found[clients].cpu / first.cpu
        metric = f"CPU for {clients / sizes[0]:.3g} times the clients"
        rows.append(less_is_better(metric, growth, "times", "Thialfi, for 23 times the users", 3.0))
    return rows
