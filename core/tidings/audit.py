"""The audit: who changed what in a cluster, when, from where, from what to what, and how it ended.

```
/<root>/audit/entry-<number>     one entry a command, in the order in which ZooKeeper took them
```

An entry is written before the change, and its outcome after it: a change that was cut off is seen as one, and none is
made that was not recorded. Operators write entries and viewers read them. Whoever has the secret of the cluster may
also delete them: ZooKeeper's own audit log, which is a file of its servers, is out of their reach.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import getpass
import itertools
import json
import logging
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from kazoo.exceptions import NoNodeError, NotEmptyError

from tidings.coordination.values import decode, encode
from tidings.coordination.zookeeper import Coordination
from tidings.errors import CoordinationDenied, ForeignValue, TidingsError
from tidings.stream_definition import holds_password

AUDIT = "audit"
PREFIX = "entry-"
MAX_ENTRIES, TRIM_EVERY = 2_000, 100
MAX_SUBJECTS = 20
MAX_ENTRY_BYTES = 4_096
_SUBJECTS_BYTES, _VALUE_BYTES, _TEXT_BYTES, _NAME_BYTES = 900, 1_000, 400, 100
_READ_AT_ONCE = 100

DONE, FAILED, INTERRUPTED, UNKNOWN = "done", "failed", "interrupted", "unknown"
"""How a change ended. `unknown`: it is still under way, or its process was killed, or cut off from ZooKeeper."""

HIDDEN = "(hidden)"
_SECRET_KEY = re.compile(
    r"passw(or)?d|passphrase|\bpwd|secret|credential|token$|(api|access|private|ssl)_?key|signature|^(auth|sig)$",
    re.IGNORECASE,
)
_SECRET_IN_TEXT = re.compile(
    r"\b(passphrase|[a-z-_]*(secret|token|signature)|(secret|api|access|private)[-_]?key|sig)\s*=", re.IGNORECASE
)

logger = logging.getLogger(__name__)

_open: ContextVar[OpenEntry | None] = ContextVar("tidings_audit_entry", default=None)
_actor: ContextVar[str | None] = ContextVar("tidings_audit_actor", default=None)
_acting: ContextVar[str | None] = ContextVar("tidings_audit_program", default=None)


@dataclass
class OpenEntry:
    """The entry of a change that is under way; what is set here is written with its outcome."""

    tree: Coordination
    action: str
    subjects: list[str]
    before: Any = None
    after: Any = None
    parts: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """What was done to each of the first subjects, where it was done one after the other."""
    problem: str = ""
    """Why it is failed, though nothing was raised: some of it was not done, say."""

    def add(self, subjects: Iterable[str], before: Any, after: Any) -> None:
        """What is done to these is a part of it."""
        for subject in subjects:
            if subject not in self.subjects[:MAX_SUBJECTS]:
                if len(self.subjects) >= MAX_SUBJECTS:
                    continue
                self.subjects.append(subject)
            self.parts[subject] = (before, after)

    def to_json(self, outcome: str, error: str) -> dict[str, Any]:
        """What is kept of it: small, and without secrets, whatever was given."""
        before, after = self.before, self.after
        if list(self.parts) == self.subjects and len(self.parts) == 1:
            before, after = self.parts[self.subjects[0]]
        if before is None and self.parts:
            before = of_each({subject: part[0] for subject, part in self.parts.items()})
        if after is None and self.parts:
            after = of_each({subject: part[1] for subject, part in self.parts.items()})
        return {
            "role": _cut(self.tree.credentials.role, _NAME_BYTES),
            "user": _cut(_shown(_actor.get() or _os_user()), _NAME_BYTES),
            "host": _cut(socket.gethostname(), _NAME_BYTES),
            "pid": os.getpid(),
            "program": _cut(_shown(_acting.get() or _program()), _NAME_BYTES),
            "action": _cut(_shown(self.action), _NAME_BYTES),
            "subjects": _first(self.subjects),
            "count": len(self.subjects),
            "before": _bounded(before),
            "after": _bounded(after),
            "outcome": outcome,
            **({"error": _cut(_shown(error), _TEXT_BYTES)} if error else {}),
        }


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry. `time` is when ZooKeeper took it, `ended` when it heard of the outcome."""

    number: int
    time: dt.datetime
    user: str
    role: str
    origin: str
    action: str
    subjects: tuple[str, ...]
    """The first of them; `count` is of all."""
    count: int
    before: Any
    after: Any
    outcome: str
    error: str | None
    ended: dt.datetime | None

    @property
    def who(self) -> str:
        """The user, and what ZooKeeper knows them as."""
        return f"{self.user} ({self.role})"

    def to_json(self) -> dict[str, Any]:
        """The entry for programs."""
        return {
            "number": self.number,
            "time": _stamp(self.time),
            "who": self.who,
            "from": self.origin,
            "action": self.action,
            "subject": list(self.subjects),
            "count": self.count,
            "before": self.before,
            "after": self.after,
            "outcome": self.outcome,
            "error": self.error,
            "ended": _stamp(self.ended) if self.ended else None,
        }

    def concerns(self, text: str) -> bool:
        """Whether this is one of its subjects, or all subjects below it are: `cache` has `cache/contacts/3`."""
        return any(subject == text or subject.startswith(f"{text}/") for subject in self.subjects)


@contextlib.contextmanager
def acting_as(who: str, program: str | None = None) -> Iterator[None]:
    """Record what this thread changes as done by this person, as a console knows them, instead of the system's user.

    And by this program, if it is named, instead of the command that the process was started as.
    """
    before, acting = _actor.set(who), _acting.set(program)
    try:
        yield
    finally:
        _actor.reset(before)
        _acting.reset(acting)


@contextlib.contextmanager
def recorded(
    tree: Coordination,
    action: str,
    subjects: Iterable[object],
    *,
    before: Any = None,
    after: Any = None,
    required: bool = True,
) -> Iterator[OpenEntry]:
    """Record a change, which is what the block does: that it begins, and how it ended.

    `action` is the command, as in `flows stop`, and `subjects` name what it changes. Whatever else is recorded within
    the block is a part of it: one entry a command. `CoordinationDenied` if it may not be recorded, before anything is
    changed; unless it is not `required`, because those may do it who are no operators: then a warning is logged.
    """
    named = [str(subject) for subject in subjects]
    outer = _open.get()
    if outer is not None and outer.tree is tree:
        outer.add(named, before, after)
        yield outer
        return
    entry = OpenEntry(tree, action, named, before, after)
    name = _begin(entry, required)
    token = _open.set(entry)
    try:
        yield entry
    except BaseException as error:
        if isinstance(error, TidingsError):
            _end(entry, name, FAILED, str(error))
        elif isinstance(error, Exception):  # whose text may hold anything
            _end(entry, name, FAILED, type(error).__name__)
        else:
            _end(entry, name, INTERRUPTED, "")
        raise
    else:
        _end(entry, name, FAILED if entry.problem else DONE, entry.problem)
    finally:
        _open.reset(token)


def of_each(values: Mapping[Any, Any]) -> Any:
    """What is recorded of several subjects: one value if all have the same, else those of the first of them.

    >>> of_each({"a": {"stopped": True}, "b": {"stopped": True}}), of_each({"a": 1, "b": 2})
    ({'stopped': True}, {'a': 1, 'b': 2})
    """
    first = next(iter(values.values()), None)
    if all(value == first for value in values.values()):
        return first
    return {str(subject): value for subject, value in itertools.islice(values.items(), MAX_SUBJECTS)}


def differences(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> tuple[Any, Any]:
    """What two definitions of a thing differ in, None if it is not there.

    >>> differences({"shards": 4, "log": "delta:/a"}, {"shards": 4, "log": "delta:/b"})
    ({'log': 'delta:/a'}, {'log': 'delta:/b'})
    """
    if before is None or after is None:
        return before, after
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {key: before.get(key) for key in keys}, {key: after.get(key) for key in keys}


def entries(tree: Coordination) -> Iterator[AuditEntry]:
    """All entries, the newest first, read as they are asked for. What makes no sense is left out, with a warning."""
    numbers = sorted(_numbers(tree), reverse=True)
    for at in range(0, len(numbers), _READ_AT_ONCE):
        some = numbers[at : at + _READ_AT_ONCE]
        with tree.translating_errors():
            asked = [(number, tree.client.get_async(tree.path(AUDIT, _name(number)))) for number in some]
            found = [(number, tree.found(pending)) for number, pending in asked]
        for number, node in found:
            if node is None:
                continue  # it was trimmed meanwhile
            try:
                yield _decoded(tree, number, *node)
            except ForeignValue as error:
                logger.warning("an entry of the audit is left out: %s", error)


def _begin(entry: OpenEntry, required: bool) -> str | None:
    """Write that a change begins; the name of the entry, None if it may not be recorded and need not be."""
    tree = entry.tree
    try:
        name = tree.append(entry.to_json(UNKNOWN, ""), AUDIT, PREFIX)
    except CoordinationDenied as error:
        if not required:
            logger.warning("`%s` is not recorded in the audit: %s", entry.action, error)
            return None
        raise CoordinationDenied(
            f"{error}; nothing was changed, since `{entry.action}` could not be recorded at {tree.path(AUDIT)}, where "
            "only operators write (`tidings doctor` checks its rights)"
        ) from None
    number = _number(name)
    if number and number % TRIM_EVERY == 0:
        _trim(tree, number - MAX_ENTRIES)
    return name


def _end(entry: OpenEntry, name: str | None, outcome: str, error: str) -> None:
    """Write how a change ended; if that cannot be, it is told, and the change stays what it was."""
    if name is None:
        return
    tree = entry.tree
    try:
        with tree.translating_errors(), contextlib.suppress(NoNodeError):  # trimmed, or deleted
            value = encode(entry.to_json(outcome, error))
            tree.wait(tree.client.set_async(tree.path(AUDIT, name), value))
    except TidingsError as problem:
        logger.warning("the audit does not say how `%s` ended: %s", entry.action, problem)


def _trim(tree: Coordination, last: int) -> None:
    """Delete the entries up to this number; others may do so at the same time."""
    try:
        old = [number for number in _numbers(tree) if number <= last]
        with tree.translating_errors():
            pending = [tree.client.delete_async(tree.path(AUDIT, _name(number))) for number in old]
            for one in pending:
                with contextlib.suppress(NoNodeError, NotEmptyError):
                    tree.wait(one)
    except TidingsError as problem:
        logger.warning("old entries of the audit stay: %s", problem)


def _decoded(tree: Coordination, number: int, raw: bytes, stat: Any) -> AuditEntry:
    path = tree.path(AUDIT, _name(number))
    value = decode(path, raw) if len(raw) <= 2 * MAX_ENTRY_BYTES else None
    subjects = (value or {}).get("subjects")
    if value is None or not isinstance(subjects, list) or not isinstance(value.get("action"), str):
        raise ForeignValue(f"what ZooKeeper holds at {path} is no entry of the audit: delete it")
    outcome, count, error = str(value.get("outcome")), value.get("count"), value.get("error")
    return AuditEntry(
        number,
        _time(stat.ctime),
        str(value.get("user")),
        str(value.get("role")),
        f"{value.get('program')} on {value.get('host')}, process {value.get('pid')}",
        value["action"],
        tuple(map(str, subjects)),
        count if type(count) is int else len(subjects),
        value.get("before"),
        value.get("after"),
        outcome,
        None if error is None else str(error),
        _time(stat.mtime) if outcome != UNKNOWN else None,
    )


def _numbers(tree: Coordination) -> list[int]:
    return [number for number in map(_number, tree.children(AUDIT)) if number is not None]


def _name(number: int) -> str:
    return f"{PREFIX}{number:010d}"


def _number(name: str) -> int | None:
    digits = name.removeprefix(PREFIX)
    return int(digits) if name.startswith(PREFIX) and len(digits) == 10 and re.fullmatch("[0-9]+", digits) else None


def _os_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in a container that knows no names
        return f"uid {os.getuid()}"


def _program() -> str:
    """What runs, without its arguments, which may be secrets."""
    started = Path(sys.argv[0] if sys.argv else "")
    return started.parent.name if started.name == "__main__.py" else started.name or "python"


def _time(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


def _stamp(time: dt.datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _first(subjects: list[str]) -> list[str]:
    """The first subjects, as many as there is room for, one at least."""
    kept: list[str] = []
    for subject in subjects[:MAX_SUBJECTS]:
        text = _cut(_shown(subject), _SUBJECTS_BYTES)
        if kept and _size([*kept, text]) > _SUBJECTS_BYTES:
            break
        kept.append(text)
    return kept


def _bounded(value: Any) -> Any:
    """A value without secrets, if it is small; else the beginning of its text."""
    shown = _without_secrets(value)
    return shown if _size(shown) <= _VALUE_BYTES else _cut(_text(shown), _VALUE_BYTES)


def _without_secrets(value: Any) -> Any:
    """The value as JSON has it, but for what is a secret by its name or by its form.

    >>> _without_secrets({"log": "postgres:postgresql://ann:x@db/shop", "password": "x", "shards": 4})
    {'log': '(hidden)', 'password': '(hidden)', 'shards': 4}
    >>> _without_secrets(["mysql:mysql://ann@db/shop?passwd=x", "delta:/data/a?sig=x", "delta:/data/keys"])
    ['(hidden)', '(hidden)', 'delta:/data/keys']
    """
    if isinstance(value, dict):
        return {
            _shown(str(key)): HIDDEN if _SECRET_KEY.search(str(key)) else _without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _shown(str(value))


def _shown(text: str) -> str:
    """The text, if it holds no secret, in UTF-8. What only may be one is not shown either."""
    if holds_password(text) or _SECRET_IN_TEXT.search(unquote(text)):
        return HIDDEN
    return text.encode(errors="backslashreplace").decode()


def _cut(text: str, limit: int) -> str:
    r"""The text, or as much of its beginning as JSON has room for.

    >>> _cut("contacts", 20), _cut("contacts", 8)
    ('contacts', 'con…')
    """
    if _size(text) <= limit:
        return text
    kept = text[:limit]
    while _size(f"{kept}…") > limit:
        kept = kept[: len(kept) * 9 // 10]
    return f"{kept}…"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _size(value: Any) -> int:
    return len(_text(value).encode())
