"""`tidings keys`: the secret of a cluster, and the keys that are made of it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tidings.cli.options import SecretFile
from tidings.cli.output import refuse
from tidings.identity.environment import SECRET, secrets_in
from tidings.names import check_name

keys = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make the cluster's secret, and keys of it.")

EXAMPLES = """\b
Examples:
  tidings keys new > secret                         for publishers, and for you
  tidings keys show --application cache --secret-file secret > cache.key
  tidings subscribe cache --application-key cache.key
  export TIDINGS_ZOOKEEPER_CREDENTIALS=$(tidings keys show --role viewer --secret-file secret)
"""


@keys.command("new", epilog=EXAMPLES)
def new_command() -> None:
    """Print a new secret of a cluster. Publishers and operators hold it; nobody else should."""
    from tidings.identity.keys import new_secret

    typer.echo(new_secret())


@keys.command("show", epilog=EXAMPLES)
def show_command(
    application: Annotated[
        str | None, typer.Option(metavar="APP", help="The key of this application.", show_default=False)
    ] = None,
    role: Annotated[
        Literal["viewer", "producer"] | None,
        typer.Option(
            help="The credentials of this role for ZooKeeper: viewers read everything, producers read definitions of "
            "streams and run pipelines.",
            show_default=False,
        ),
    ] = None,
    secret_file: SecretFile = None,
) -> None:
    """Print the key of an application, or the credentials of a role.

    Whoever holds a key can be that application, and nothing else: publishers and ZooKeeper know it by that. It is made
    of the cluster's secret and the application's name; the application need not be there yet. What a role has goes into
    TIDINGS_ZOOKEEPER_CREDENTIALS. While the secret is replaced there are two of each, a line each; both are used.
    """
    from tidings.identity.credentials import role_credentials
    from tidings.identity.keys import application_key
    from tidings.wire.security import Security

    secrets = secret_file or secrets_in(SECRET)
    if secrets is None:
        raise refuse("name the file of the cluster's secret by --secret-file, or set TIDINGS_SECRET")
    if (application is None) == (role is None):
        raise refuse("name either an application, by --application, or a role, by --role")
    name = None if application is None else check_name("an application", application)
    Security(secret=secrets[0], accepted=tuple(secrets[1:]))  # or it is refused
    for secret in secrets:
        typer.echo(application_key(secret, name) if name else role_credentials(secret, str(role)))
