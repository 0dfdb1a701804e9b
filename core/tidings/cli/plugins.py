"""`tidings plugins`: what is installed, and whether it works."""

from __future__ import annotations

from tidings.cli.options import Json
from tidings.cli.output import emit, print_table


def plugins_command(json: Json = False) -> None:
    """List the plugins that are installed, each tried once; one that does not work says why.

    They are logs, stages, balancers, allocation policies and commands.
    """
    from tidings.plugins import installed

    plugins = installed()
    listed = [
        {
            "kind": plugin.kind,
            "name": plugin.name,
            "package": plugin.distribution,
            "target": plugin.target,
            "state": "broken" if plugin.problem else "ready",
            "problem": plugin.problem,
        }
        for plugin in plugins
    ]
    rows = [
        (plugin.kind, plugin.name, plugin.distribution, f"broken: {plugin.problem}" if plugin.problem else "ready")
        for plugin in plugins
    ]
    emit(listed, json, lambda: print_table(["KIND", "NAME", "PACKAGE", "STATE"], rows))
