"""`tidings keys`: the secret of a cluster, and the keys that are made of it."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.options import SecretFile, secrets_in
from tidings.cli.output import refuse
from tidings.names import check_name

keys = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make the cluster's secret, and keys of it.")

EXAMPLES = """\b
Examples:
  tidings keys new > secret                         for publishers, and for you
  tidings keys show --application cache --secret-file secret > cache.key
  tidings subscribe cache --application-key cache.key
"""


@keys.command("new", epilog=EXAMPLES)
def new_command() -> None:
    """Print a new secret of a cluster. Publishers and operators hold it; nobody else should."""
    from tidings.identity.keys import new_secret

    typer.echo(new_secret())


@keys.command("show", epilog=EXAMPLES)
def show_command(
    application: Annotated[
        str, typer.Option(metavar="APP", help="The application whose key it is.", show_default=False)
    ],
    secret_file: SecretFile = None,
) -> None:
    """Print the key of an application. Whoever holds it can be that application, and nothing else.

    It is made of the cluster's secret and the application's name; the application need not be there yet. While the
    secret is replaced there are two keys, a line each, and a subscriber takes both.
    """
    from tidings.wire.security import Security

    secrets = secret_file or secrets_in("TIDINGS_SECRET")
    if secrets is None:
        raise refuse("name the file of the cluster's secret by --secret-file, or set TIDINGS_SECRET")
    name = check_name("an application", application)
    first, *others = secrets
    for key in Security(secret=first, accepted=tuple(others)).keys(name):
        typer.echo(key)
