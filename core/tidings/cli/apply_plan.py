"""What `tidings apply` does: `plan` compares a `tidings.yml` with a cluster, `carry_out` does what is to be done.

>>> Action("stream", "contacts", "create").verb
'create'
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tidings.allocation_policies import policy as allocation_policy
from tidings.applications import Application, start_problems
from tidings.audit import differences, recorded
from tidings.collection import check_collection
from tidings.config.spec import Spec, log_key, stream_key
from tidings.config.yaml_lines import Key, Mistakes
from tidings.coordination.membership import make_room
from tidings.errors import InvalidConfig, InvalidOptions, TidingsError
from tidings.hosts import trust_addresses
from tidings.log_checks import check_claims, check_dead_letters, check_new_log, preflight, prove_replica
from tidings.log_opening import create_log, is_tailed, open_log, placing, redefine_log
from tidings.moves import check_move, moved_logs, prepare_move
from tidings.pipelines.check import check_stage
from tidings.publisher.balancing import strategy
from tidings.stream_definition import StreamDefinition, streams_by_name
from tidings.texts import counted
from tidings.undo import Undo

if TYPE_CHECKING:
    from tidings.cluster import Cluster

Streams = Mapping[str, StreamDefinition]


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a plan. `before` and `after` are what the cluster knows of the thing, None if nothing.

    `warnings` says what is allowed and cannot be meant.
    """

    kind: Literal["stream", "application", "pipeline"]
    name: str
    verb: Literal["create", "change", "unchanged", "checked"]
    detail: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()


def plan(spec: Spec, cluster: Cluster) -> list[Action]:
    """What is to be done to make the cluster as the spec says; only reads. `InvalidConfig` if it cannot be done.

    Nothing is ever dropped: what the cluster has and the file does not name stays as it is.
    """
    mistakes = spec.mistakes()
    there = {stream.name: stream.definition for stream in cluster.streams()}
    wanted = {definition.name: definition for definition in spec.definitions()}
    streams = {**there, **wanted}
    by_name = streams_by_name(streams.values())
    actions = []
    others = [one for one in there.values() if one.name not in wanted]
    for definition in wanted.values():
        trust_addresses(definition.locations)  # which the file gives, and not ZooKeeper
        _check_family(definition, streams, mistakes)
        actions.append(_plan_stream(definition, there.get(definition.name), others, cluster, mistakes))
    families = {definition.family for definition in wanted.values()} - {""}
    left = sorted(name for name in there.keys() - wanted.keys() if there[name].family in families)
    actions += [Action("stream", name, "unchanged", f"not in the file: `tidings streams drop {name}`") for name in left]
    for name, application in spec.applications.items():
        defined = application.definition(name)
        shards = {stream: streams[stream].shards for stream in defined.reads(by_name)}
        _check_application(defined, by_name, shards, spec, mistakes)
        _check_failures(defined, streams, shards, spec, mistakes)
        actions.append(_plan_application(defined, shards, cluster))
    for name, pipeline in spec.pipelines.items():
        for at, stream in enumerate(pipeline.input):
            _check_stream(stream, streams, ("pipelines", name, "input", at), spec, mistakes)
        if pipeline.output is not None:
            _check_output(pipeline.output, streams, ("pipelines", name, "output"), spec, mistakes)
        check_stage(pipeline, streams, ("pipelines", name), mistakes)
        detail = " → ".join(filter(None, (", ".join(pipeline.input), pipeline.stage, pipeline.output)))
        actions.append(Action("pipeline", name, "checked", detail))
    mistakes.check()
    return actions


def check_alone(spec: Spec) -> Mistakes:
    """The mistakes of a file as far as they show without a cluster, which may not be there yet."""
    mistakes = spec.mistakes()
    streams = {definition.name: definition for definition in spec.definitions()}
    for definition in streams.values():
        trust_addresses(definition.locations)
        _check_policies(definition, mistakes)
        _checks_log(functools.partial(preflight, definition), definition, mistakes)
    for name, application in spec.applications.items():
        _found(functools.partial(strategy, application.balance), ("applications", name, "balance"), mistakes)
    for name, pipeline in spec.pipelines.items():
        check_stage(pipeline, streams, ("pipelines", name), mistakes)
    return mistakes


def carry_out(actions: Iterable[Action], cluster: Cluster) -> None:
    """Carry all steps out, if the cluster still is as it was when the plan was made; or none, if one of them fails."""
    changing = [action for action in actions if action.verb in ("create", "change") and action.after is not None]
    if not changing:
        return
    changes = {f"{action.kind} {action.name}": differences(action.before, action.after) for action in changing}
    before, after = ({name: both[at] for name, both in changes.items()} for at in (0, 1))
    names = dict.fromkeys(action.name for action in changing)
    with recorded(cluster.coordination, "apply", names, before=before, after=after), Undo() as undo:
        for action in changing:
            _execute(action, cluster, undo)


def _execute(action: Action, cluster: Cluster, undo: Undo) -> None:
    assert action.after is not None
    if action.kind == "stream" and action.verb == "create":
        cluster.define_stream(StreamDefinition.from_json(action.after), undo)
        return
    if action.kind == "stream" and action.before is not None:
        known, wanted = StreamDefinition.from_json(action.before), StreamDefinition.from_json(action.after)
        if moved_logs(known, wanted):
            prepare_move(cluster, known, wanted)
    if action.kind == "stream" and (action.before or {}).get("options") != action.after.get("options"):
        # Whatever is wrong with them is told before publishers go by them.
        create_log(StreamDefinition.from_json(action.after)).close()
    if action.kind == "stream" and _is_retained_otherwise(action.before or {}, action.after):
        kept = f"how long updates of stream {action.name!r} are kept"
        undo.add(kept, lambda: redefine_log(cluster.stream(action.name).definition))
        redefine_log(StreamDefinition.from_json(action.after))
    place = (f"{action.kind}s", action.name)
    tree, before, after = cluster.coordination, action.before, action.after
    # Where nothing is known there may still be a node, made only to hold those below it.
    done = (before is None and tree.create(after, *place)) or tree.replace(after, before, *place)
    if not done:
        raise InvalidConfig(f"{action.kind} {action.name!r} was changed since the plan was made: apply again")
    undo.add(f"what was changed of {action.kind} {action.name!r}", lambda: _take_back(action, cluster))
    if action.kind == "application":
        make_room(tree, action.name)


def _take_back(action: Action, cluster: Cluster) -> None:
    place = (f"{action.kind}s", action.name)
    if action.before is None and cluster.coordination.read(*place) == action.after:
        cluster.drop_application(action.name)
    elif action.before is None or not cluster.coordination.replace(action.before, action.after, *place):
        raise InvalidConfig("it was changed once more meanwhile")


def _is_retained_otherwise(before: Mapping[str, Any], after: dict[str, Any]) -> bool:
    """Whether a stream in a log of ours is to be kept for longer or shorter than before, which its log must know."""
    same = all(before.get(key) == after.get(key) for key in ("retention_seconds", "retention_bytes"))
    return not same and not is_tailed(StreamDefinition.from_json(after))


def _plan_stream(
    wanted: StreamDefinition,
    known: StreamDefinition | None,
    others: Sequence[StreamDefinition],
    cluster: Cluster,
    mistakes: Mistakes,
) -> Action:
    key = stream_key(wanted)
    after = replace(wanted, id=known.id if known else "").to_json()
    _check_policies(wanted, mistakes)
    own = known == wanted or _found(lambda: check_claims(wanted, others), log_key(wanted), mistakes)
    if known is None:
        if own:
            _check_new_stream(wanted, mistakes)
        else:
            _checks_log(lambda: placing(wanted), wanted, mistakes)  # by which its options are read
        return Action(
            "stream", wanted.name, "create", f"{counted(wanted.shards, 'shard')} in {wanted.log}", None, after
        )
    if known.shards != wanted.shards:
        mistakes.blame(
            (*key, "shards"), f"the stream has {counted(known.shards, 'shard')}; that cannot become {wanted.shards}"
        )
    warnings = _check_moves(known, wanted, cluster, mistakes)
    if known.options != wanted.options and _checks_log(lambda: placing(wanted), wanted, mistakes):
        _check_placing(known, wanted, (*key, "options"), mistakes)
        _checks_log(lambda: preflight(wanted), wanted, mistakes)
    if known == wanted:
        return Action("stream", wanted.name, "unchanged", "", after, after, _trouble(wanted, mistakes))
    changes = [
        f"{word} {_limit(old)} → {_limit(new)}"
        for word, old, new in (
            ("seconds kept", known.retention_seconds, wanted.retention_seconds),
            ("bytes kept", known.retention_bytes, wanted.retention_bytes),
        )
        if old != new
    ]
    if known.log != wanted.log:
        changes.append(f"log {known.log} → {wanted.log}")
    changes += [
        f"{word} {dict(old)} → {dict(new)}"
        for word, old, new in (
            ("options", known.options, wanted.options),
            ("caravans", known.caravans, wanted.caravans),
            ("replicas", known.replicas, wanted.replicas),
            ("collect", known.collect, wanted.collect),
        )
        if old != new
    ]
    if known.family != wanted.family:
        changes.append(f"family {known.family or 'none'} → {wanted.family or 'none'}")
    return Action("stream", wanted.name, "change", ", ".join(changes), known.to_json(), after, tuple(warnings))


def _check_policies(wanted: StreamDefinition, mistakes: Mistakes) -> None:
    """Blame policies that are not there, or make no sense."""
    key = stream_key(wanted)
    if policy := wanted.caravans.get("policy"):
        _found(lambda: allocation_policy(policy), (*key, "caravans", "policy"), mistakes)
    _found(lambda: check_collection(wanted), (*key, "collect"), mistakes)


def _trouble(stream: StreamDefinition, mistakes: Mistakes) -> tuple[str, ...]:
    """Why a log of ours that is to stay as it is cannot be opened. The rest of the file can be applied all the same."""
    try:
        if not is_tailed(stream):
            open_log(stream).close()
    except TidingsError as error:
        return (f"{mistakes.place(log_key(stream))}: {error}",)
    return ()


def _check_family(wanted: StreamDefinition, streams: Streams, mistakes: Mistakes) -> None:
    """Blame a name that would be both a stream's and that of a family of streams."""
    if wanted.family in streams:
        mistakes.blame(stream_key(wanted), f"cannot have `logs`: there is a stream {wanted.family!r} with one `log`")
    if members := [one.name for one in streams.values() if one.family == wanted.name]:
        mistakes.blame(stream_key(wanted), f"cannot be one stream: it is a family ({', '.join(sorted(members))})")


def _check_moves(known: StreamDefinition, wanted: StreamDefinition, cluster: Cluster, mistakes: Mistakes) -> list[str]:
    """Blame addresses at which the stream's datastore is not; what an operator should know of the others."""
    warnings = []
    for replica in moved_logs(known, wanted) if known.shards == wanted.shards else ():
        key = log_key(wanted) if replica is None else (*stream_key(wanted), "replicas", replica)
        try:
            warnings += check_move(cluster, known, wanted, replica)
        except TidingsError as error:
            mistakes.blame(key, str(error))
    return warnings


def _check_placing(known: StreamDefinition, wanted: StreamDefinition, key: Key, mistakes: Mistakes) -> None:
    """Blame an option whose change would put updates elsewhere: flows that are past that place would never get them."""
    before, after = placing(known), placing(wanted)
    for name, old in before.items():
        new = after.get(name)
        same = old.items() <= new.items() if isinstance(old, dict) and isinstance(new, dict) else old == new
        if not same:
            where = (*key, name) if name in wanted.options else key
            mistakes.blame(
                where, f"{name!r} decides where updates are, so {old!r} cannot become {new!r}: make a new stream"
            )


def _check_new_stream(wanted: StreamDefinition, mistakes: Mistakes) -> None:
    """Blame whatever would keep the stream from being made."""
    known: list[Mapping[str, Any] | None] = []
    if _checks_log(lambda: known.append(check_new_log(wanted)), wanted, mistakes):
        for replica in wanted.replicas:
            key = (*stream_key(wanted), "replicas", replica)
            _found(functools.partial(prove_replica, wanted, replica, known[0]), key, mistakes)


def _checks_log(check: Callable[[], Any], stream: StreamDefinition, mistakes: Mistakes) -> bool:
    """Whether a check of a log passes; if not, its options are to blame, or else its address."""
    try:
        return _found(check, log_key(stream), mistakes)
    except InvalidOptions as error:
        for place, problem in error.problems:
            mistakes.blame((*stream_key(stream), "options", *place), problem)
        return False


def _plan_application(definition: Application, shards: Mapping[str, int], cluster: Cluster) -> Action:
    name, after = definition.name, definition.to_json()
    before = cluster.coordination.read("applications", name)
    warnings = tuple(definition.warnings(shards))
    detail = f"reads {', '.join(definition.streams)}"
    if before is None:
        return Action("application", name, "create", detail, None, after, warnings)
    known = before
    with contextlib.suppress(TidingsError):  # what was written before there was a key has its default
        known = Application.from_json(before).to_json()
    changed = [f"{key} {_told(known.get(key))} → {_told(after[key])}" for key in after if after[key] != known.get(key)]
    if not changed:
        return Action("application", name, "unchanged", "", before, after, warnings)
    return Action("application", name, "change", ", ".join(changed), before, after, warnings)


def _told(value: Any) -> str:
    return "none" if value is None else ", ".join(value) if isinstance(value, list) else str(value)


def _check_application(
    application: Application,
    by_name: Mapping[str, Sequence[str]],
    shards: Mapping[str, int],
    spec: Spec,
    mistakes: Mistakes,
) -> None:
    key = ("applications", application.name)
    for at, stream in enumerate(application.streams):
        _check_stream(stream, by_name, (*key, "streams", at), spec, mistakes)
    for twice in application.repeated(by_name):
        mistakes.blame((*key, "streams"), f"names stream {twice!r} twice, by itself and by its family")
    unknown = {stream: None for stream in application.streams if stream not in by_name}
    for place, problem in start_problems(application.start, {**shards, **unknown}):
        mistakes.blame((*key, "start", *place), problem)
    _found(lambda: strategy(application.balance), (*key, "balance"), mistakes)


def _check_failures(
    application: Application, streams: Streams, read: Container[str], spec: Spec, mistakes: Mistakes
) -> None:
    """Blame a stream in which the application cannot keep what its handler fails at."""
    key, kept_in = ("applications", application.name, "on_failure"), application.dead_letters
    if kept_in is not None and kept_in in streams:
        _found(lambda: check_dead_letters(streams[kept_in], read), key, mistakes)
    elif kept_in is not None:
        _check_stream(kept_in, streams, key, spec, mistakes)


def _check_stream(name: str, streams: Mapping[str, Any], key: Key, spec: Spec, mistakes: Mistakes) -> None:
    if name not in streams and not spec.left_out("streams", name):
        there = ", ".join(sorted(streams)) or "none"
        mistakes.blame(key, f"there is no stream {name!r}, neither in this file nor in the cluster (streams: {there})")


def _check_output(name: str, streams: Streams, key: Key, spec: Spec, mistakes: Mistakes) -> None:
    _check_stream(name, streams, key, spec, mistakes)
    try:
        tailed = name in streams and is_tailed(streams[name])
    except TidingsError:  # its log is blamed already, if it is in this file
        return
    if tailed:
        mistakes.blame(key, f"stream {name!r} is read from a datastore, and cannot be written to: name another stream")


def _found(find: Callable[[], Any], key: Key, mistakes: Mistakes) -> bool:
    """Whether something is there, or right; if not, the key that names it is to blame."""
    try:
        find()
    except InvalidOptions:
        raise
    except TidingsError as error:
        mistakes.blame(key, str(error))
        return False
    return True


def _limit(value: int | None) -> str:
    return "without limit" if value is None else f"{value:,}"
