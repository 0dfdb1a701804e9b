"""Finding plugins and connectors: entry points, so that a third party adds one without touching this code.

| group | what it names |
| --- | --- |
| `tidings.logs` | a log, by the scheme of its address |
| `tidings.stages` | a stage of a pipeline, by its name in `tidings.yml` |
| `tidings.balancers` | a way to share an application's flows among its subscribers, by its name |
| `tidings.allocation` | a policy that says which flows share a reader of the log |
| `tidings.collection` | what decides which updates are obsolete: `tombstones` is asked |
| `tidings.collection_policies` | a policy that says which updates of a stream are obsolete |
| `tidings.places` | what each role may do at a plugin's places in ZooKeeper: patterns, as in `coordination.roles` |
| `tidings.processes` | which processes `tidings up` starts for a plugin: a module, as `runtime.processes` says |
| `tidings.console` | a function that tells the console what a plugin knows: it takes the cluster, and returns a list |
| `tidings.commands` | a function that adds commands to the command line; it is given the `typer.Typer` |

"Not installed" and "installed, but it does not import" are different errors, because the cure is different.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tidings.errors import PluginBroken, PluginMissing, TidingsError

GROUPS = {
    "tidings.logs": "log",
    "tidings.stages": "stage",
    "tidings.balancers": "balancer",
    "tidings.allocation": "allocation policy",
    "tidings.collection": "collection",
    "tidings.collection_policies": "collection policy",
    "tidings.places": "places in ZooKeeper",
    "tidings.processes": "processes",
    "tidings.console": "answer for the console",
    "tidings.commands": "command",
}


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin that is installed; `problem` says why it cannot be used, or is None."""

    kind: str
    name: str
    target: str
    distribution: str
    problem: str | None


@functools.cache
def load(group: str, name: str) -> Any:
    """The thing that the entry point `name` of `group` names."""
    found = entry_points(group=group)
    matching = [entry for entry in found if entry.name == name]
    kind = GROUPS.get(group, group)
    if not matching:
        there = ", ".join(sorted(entry.name for entry in found)) or "none"
        raise PluginMissing(f"no {kind} {name!r} is installed (installed: {there})")
    if len({entry.value for entry in matching}) > 1:
        owners = " and ".join(sorted({_target(entry) for entry in matching}))
        raise PluginBroken(f"{kind} {name!r} is there more than once, in {owners}: uninstall one of them")
    try:
        return matching[0].load()
    except TidingsError:
        raise
    except Exception as error:
        raise PluginBroken(f"{kind} {name!r} ({_target(matching[0])}) does not import: {error}") from error


def installed_names(group: str) -> list[str]:
    """The names of a group's plugins; none of them is imported."""
    return sorted(entry.name for entry in entry_points(group=group))


def installed() -> list[Plugin]:
    """Every plugin that is installed, each tried once."""
    return [
        Plugin(kind, entry.name, entry.value, _target(entry), _problem(group, entry.name))
        for group, kind in GROUPS.items()
        for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)
    ]


def _problem(group: str, name: str) -> str | None:
    try:
        load(group, name)
    except TidingsError as error:
        return str(error)
    return None


def _target(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
