"""Collection policies: which updates of a stream are obsolete.

A policy is a pure function, of one of three kinds:

- `Keyed`: some updates collect all earlier ones of their key in their shard. All such policies of a stream share one
  key, so that whatever collects one of these updates also matches what that one has collected.
- `Prefix`: the oldest updates of a shard are obsolete, up to some position.
- `ExplicitEvents`: gc events that producers publish have an effect.

A stream names its policies, with their options, in its definition; what any of them says is collected. A third party
adds one by an entry point of the group `tidings.collection_policies`: a function of the option's value that gives a
policy.

| name | its option | what is obsolete |
| --- | --- | --- |
| `latest_per_key` | `true`, or `{key: [object]}` | what is not the latest of its key |
| `temporary_keys` | `true`, or `{key: [object], deletes: "kind = gc"}` | what a later delete of its key has ended |
| `keep_last` | a number | what is not among so many newest positions of its shard |
| `max_age` | a duration, as in `P7D` | what is older, and has nothing younger before it |
| `events` | `true` | what an explicit gc event matches |
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.config.units import parse_duration
from tidings.errors import InvalidFilter, InvalidOption, PluginBroken, TidingsError
from tidings.filters import EVERYTHING, Filter, parse
from tidings.plugins import load
from tidings_gc_tombstones.covering import check_keyed
from tidings_gc_tombstones.keys import DEFAULT_KEY, check_key, keys_of
from tidings_gc_tombstones.predicates import Predicate

GROUP = "tidings.collection_policies"
PROTECT_FLOWS = "protect_flows"
DELETES = "kind = gc"  # what is a delete, unless the policy says otherwise

Mask = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Keyed:
    """Some updates collect all earlier ones of their key in their shard: the filter `collecting` says which."""

    key: tuple[str, ...]
    collecting: Filter = EVERYTHING

    def collects(self, rows: pa.Table) -> Mask:
        """Which of these updates collect the earlier ones of their key; one without a key collects nothing."""
        keyed: Mask = keys_of(rows, self.key).is_valid().to_numpy(zero_copy_only=False)
        collecting: Mask = self.collecting.mask(rows).to_numpy(zero_copy_only=False)
        return collecting & keyed


@dataclass(frozen=True, slots=True)
class Prefix:
    """The oldest updates of a shard are obsolete: `leading` says how many of the next ones, from the first on.

    It is given their positions in ascending order, their times (in milliseconds since 1970; the earlier one of their
    own and of their commit's), the shard's newest position, and when that one was committed. With a newer one, it must
    not say less.
    """

    leading: Callable[[Integers, Integers, int, int], int]

    def obsolete(self, seqs: Integers, times_ms: Integers, head: int, now_ms: int) -> int:
        """How many of these updates of a shard, from the first on, are obsolete; never the newest one."""
        older = int(np.searchsorted(seqs, head, "left"))
        return max(0, min(int(self.leading(seqs, times_ms, head, now_ms)), older))


@dataclass(frozen=True, slots=True)
class ExplicitEvents:
    """Explicit gc events collect what they match."""


Policy = Keyed | Prefix | ExplicitEvents


@dataclass(frozen=True, slots=True)
class CollectionPolicies:
    """The policies of a stream, by name, as `policies_of` makes them of its definition.

    With `protect_flows`, what a flow has not passed stays.
    """

    named: Mapping[str, Policy] = field(default_factory=dict, hash=False)
    protect_flows: bool = False

    def __post_init__(self) -> None:
        keys = {name: policy.key for name, policy in self.keyed.items()}
        first = next(iter(keys), None)
        for name, key in keys.items():
            if first is not None and set(key) != set(keys[first]):
                raise InvalidOption(
                    f"{first} has the key {', '.join(keys[first])} and {name} the key {', '.join(key)}: all policies "
                    "of a stream share one, since what collects an update must match all that this one has collected"
                )

    @property
    def keyed(self) -> dict[str, Keyed]:
        """Those by which updates collect earlier ones of their key."""
        return {name: policy for name, policy in self.named.items() if isinstance(policy, Keyed)}

    @property
    def prefixes(self) -> dict[str, Prefix]:
        """Those by which the oldest updates are obsolete."""
        return {name: policy for name, policy in self.named.items() if isinstance(policy, Prefix)}

    @property
    def explicit_events(self) -> bool:
        """Whether explicit gc events have an effect."""
        return any(isinstance(policy, ExplicitEvents) for policy in self.named.values())

    @property
    def key(self) -> tuple[str, ...] | None:
        """The key that all keyed policies share, or None if there is no such policy."""
        return next((policy.key for policy in self.keyed.values()), None)

    def collects(self, rows: pa.Table) -> Mask:
        """Which of these updates collect the earlier ones of their key, by any policy."""
        found = np.zeros(len(rows), np.bool_)
        for policy in self.keyed.values():
            found |= policy.collects(rows)
        return found

    def obsolete(self, seqs: Integers, times_ms: Integers, head: int, now_ms: int) -> int:
        """How many of these next updates of a shard, from the first on, are obsolete by any policy."""
        return max((one.obsolete(seqs, times_ms, head, now_ms) for one in self.prefixes.values()), default=0)

    def check(self, predicate: Predicate, former_key: tuple[str, ...] | None = None) -> None:
        """Refuse the predicate of a gc event that this stream does not take: `InvalidOption` or `InvalidFilter`.

        `former_key` is one by which updates have collected others, whatever the policies are now.
        """
        if not self.explicit_events:
            raise InvalidOption("gc events have no effect on this stream: add the policy `events` to its `collect`")
        key = self.key or former_key
        if key is not None:
            check_keyed(predicate, key)


def policies_of(collect: Mapping[str, Any]) -> CollectionPolicies:
    """The policies of a stream's definition. What is `false` is as if it were not there.

    >>> policies = policies_of({"latest_per_key": True, "keep_last": 1000, "protect_flows": True})
    >>> list(policies.named), policies.key, policies.protect_flows
    (['latest_per_key', 'keep_last'], ('object',), True)
    >>> policies_of({"keep_last": 0})
    Traceback (most recent call last):
    tidings.errors.InvalidOption: keep_last: 0 is no number of updates to keep: 1 or more
    """
    if not isinstance(collect, Mapping):
        raise InvalidOption(f"collect is {collect!r}: give policies by their names, as in {{latest_per_key: true}}")
    protect_flows = collect.get(PROTECT_FLOWS, False)
    if not isinstance(protect_flows, bool):
        raise InvalidOption(f"{PROTECT_FLOWS} is {protect_flows!r}: it is true or false")
    wanted = {name: value for name, value in collect.items() if name != PROTECT_FLOWS and value is not False}
    return CollectionPolicies({name: _policy(name, value) for name, value in wanted.items()}, protect_flows)


@contextlib.contextmanager
def blaming(policy: str) -> Iterator[None]:
    """Say whose mistake it is, if a policy raises."""
    try:
        yield
    except TidingsError:
        raise
    except Exception as error:
        raise PluginBroken(f"collection policy {policy!r} failed: {type(error).__name__}: {error}") from error


def _policy(name: str, value: Any) -> Policy:
    with blaming(name):
        made = load(GROUP, name)(value)
    if not isinstance(made, Keyed | Prefix | ExplicitEvents):
        raise PluginBroken(f"collection policy {name!r} made {made!r}, which is no policy")
    return made


# ---- those that are there ------------------------------------------------------------------------------------------


def latest_per_key(value: Any = True) -> Keyed:
    """Each update collects the earlier ones of its key, which is `object` unless the option `key` says otherwise.

    >>> latest_per_key({"key": ["object", "attributes.client"]}).key
    ('attributes.client', 'object')
    """
    options = _options("latest_per_key", value, {"key"})
    return Keyed(_key("latest_per_key", options))


def temporary_keys(value: Any = True) -> Keyed:
    """A delete collects the earlier updates of its key. The option `deletes` is a filter that says what is a delete.

    >>> temporary_keys({"deletes": "op = delete"}).key
    ('object',)
    >>> temporary_keys({"deletes": "op ="})
    Traceback (most recent call last):
    tidings.errors.InvalidOption: temporary_keys: deletes: column 5: expected a value, not the end
      op =
          ^
    """
    options = _options("temporary_keys", value, {"key", "deletes"})
    try:
        deletes = parse(options.get("deletes", DELETES))
    except InvalidFilter as error:
        raise InvalidOption(f"temporary_keys: deletes: {error}") from None
    return Keyed(_key("temporary_keys", options), deletes)


def keep_last(value: Any) -> Prefix:
    """So many of the newest positions of a shard stay.

    >>> keep_last(2).obsolete(np.arange(5), np.zeros(5, np.int64), head=9, now_ms=0)
    5
    >>> keep_last(7).obsolete(np.arange(5), np.zeros(5, np.int64), head=9, now_ms=0)
    3
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(f"keep_last: {value!r} is no number of updates to keep: 1 or more")

    def leading(seqs: Integers, times_ms: Integers, head: int, now_ms: int) -> int:
        return int(np.searchsorted(seqs, head - value, "right"))

    return Prefix(leading)


def max_age(value: Any) -> Prefix:
    """What is older than that, as seen when the newest was committed, is obsolete if all before it is.

    >>> max_age("PT1S").obsolete(np.arange(4), np.array([0, 10, 5000, 20]), head=9, now_ms=2000)
    2
    """
    if not isinstance(value, str):
        raise InvalidOption(f"max_age: {value!r} is no duration: write ISO 8601, as in P7D or PT12H")
    try:
        oldest_ms = parse_duration(value) * 1000
    except InvalidOption as error:
        raise InvalidOption(f"max_age: {error}") from None

    def leading(seqs: Integers, times_ms: Integers, head: int, now_ms: int) -> int:
        young = np.flatnonzero(times_ms >= now_ms - oldest_ms)
        return int(young[0]) if len(young) else len(times_ms)

    return Prefix(leading)


def events(value: Any = True) -> ExplicitEvents:
    """Explicit gc events collect what they match."""
    if value is not True:
        raise InvalidOption(f"events: {value!r} is no option: write `events: true`")
    return ExplicitEvents()


def _options(name: str, value: Any, known: Set[str]) -> Mapping[str, Any]:
    if value is True:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidOption(f"{name}: {value!r} is no option: write true, or {', '.join(sorted(known))} with a value")
    unknown = sorted(map(str, value.keys() - known))
    if unknown:
        raise InvalidOption(f"{name} has no option {unknown[0]!r}: it has {', '.join(sorted(known))}")
    return value


def _key(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return check_key(options.get("key", DEFAULT_KEY))
    except InvalidOption as error:
        raise InvalidOption(f"{name}: {error}") from None
