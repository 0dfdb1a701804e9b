"""`tidings schema`: the JSON Schema of `tidings.yml`, for editors."""

from __future__ import annotations

import json

import typer

EXAMPLES = """\b
Examples:
  tidings schema > tidings.schema.json    and this as the first line of tidings.yml:
                                          # yaml-language-server: $schema=tidings.schema.json
"""


def schema_command() -> None:
    """Print the JSON Schema of tidings.yml, by which editors complete its keys and mark mistakes."""
    typer.echo(page(), nl=False)


def page() -> str:
    """The schema as it is printed, and kept in docs/tidings.schema.json."""
    from tidings.config.schema import schema

    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
