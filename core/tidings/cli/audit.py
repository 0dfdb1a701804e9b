"""`tidings audit`: who changed what, when and from where."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected, entry_number, moment
from tidings.cli.output import document, emit, print_fields, print_table, to_the_second
from tidings.cli.watching import Listing, show_again_and_again
from tidings.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidings.audit import AuditEntry
    from tidings.cluster import Cluster

EXAMPLES = """\b
Examples:
  tidings audit                                   the newest 50, the newest last
  tidings audit 1204                              all that is known of one, before and after among it
  tidings audit --since PT1H --action flows       what was done to flows in the last hour
  tidings audit --subject cache --json            of application cache, and of its flows
"""

COLUMNS = ["#", "TIME", "WHO", "ROLE", "ACTION", "SUBJECT", "OUTCOME", "FROM"]
SPARE = ["FROM", "ROLE"]


def audit_command(
    number: Annotated[
        int | None,
        typer.Argument(metavar="NUMBER", parser=entry_number, help="This entry alone, whole.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many entries, the newest.")] = 50,
    since: Annotated[
        Any,
        typer.Option(
            metavar="TIME|DURATION",
            parser=moment,
            help="Only from then on, as in 2026-01-01T00:00:00Z, or PT1H for the last hour.",
            show_default=False,
        ),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(metavar="ACTION", help="Only these, as in 'flows stop', or flows for all.", show_default=False),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only changes to this stream, application or flow.", show_default=False),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Look again every 2 s, until Ctrl-C; with --json a line each time.",
            show_default=False,
        ),
    ] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show what operators have changed: who, when, from where, from what to what, and how it ended; the newest last.

    The 2,000 newest changes are kept. TIME is ZooKeeper's; WHO is the user of the system, or of the console, and ROLE
    what ZooKeeper knows them as. SUBJECT is the first thing that was changed, and how many more there are.

    \b
    done         it was done
    failed       it was refused, or failed; `tidings audit NUMBER` says why
    interrupted  it was ended, by Ctrl-C say: some of it may be done
    unknown      it is under way, or its process was killed: some of it may be done
    """
    from tidings.audit import entries

    def look(cluster: Cluster) -> Listing:
        chosen = (one for one in _since(entries(cluster.coordination), since) if _is_meant(one, action, subject))
        found = list(itertools.islice(chosen, limit))[::-1]
        return Listing(COLUMNS, [_row(one) for one in found], [one.to_json() for one in found])

    with connected(zookeeper, timeout) as cluster:
        if number is not None:
            one = next((one for one in entries(cluster.coordination) if one.number == number), None)
            if one is None:
                raise InvalidOption(f"the audit has no entry {number}: it never had, or it is not kept any more")
            emit(one.to_json(), json, lambda: print_fields(_fields(one)))
            return
        if watch:
            show_again_and_again(lambda: look(cluster), SPARE, json=json)
            return
        found = look(cluster)
    emit(found.json, json, lambda: print_table(found.columns, found.rows, SPARE))


def _since(found: Iterator[AuditEntry], since: Any) -> Iterator[AuditEntry]:
    return found if since is None else itertools.takewhile(lambda one: one.time >= since, found)


def _is_meant(one: AuditEntry, action: str | None, subject: str | None) -> bool:
    return (action is None or f"{one.action} ".startswith(f"{action} ")) and (subject is None or one.concerns(subject))


def _row(one: AuditEntry) -> list[Any]:
    return [
        str(one.number),
        to_the_second(one.time),
        one.user,
        one.role,
        one.action,
        _subject(one),
        one.outcome,
        one.origin,
    ]


def _subject(one: AuditEntry) -> str | None:
    """The first, and how many more there are."""
    more = one.count - 1
    return f"{one.subjects[0]} +{more:,}" if one.subjects and more > 0 else next(iter(one.subjects), None)


def _fields(one: AuditEntry) -> dict[str, Any]:
    shown = one.to_json()
    more = one.count - len(one.subjects)
    del shown["count"]
    return {
        **shown,
        "number": str(one.number),
        "subject": ", ".join(one.subjects) + (f" and {more:,} more" if more > 0 else "") or None,
        "before": _lines(one.before),
        "after": _lines(one.after),
    }


def _lines(value: Any) -> Any:
    """What is told of something, a field a line."""
    if not value or not isinstance(value, dict):
        return value
    return tuple(document(value, "yaml").splitlines()[1:])  # without the line that begins a document
