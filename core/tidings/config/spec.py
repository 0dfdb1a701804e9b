"""`tidings.yml`: the streams, applications and pipelines of a project, in one file.

`load` reads and checks the file. Every mistake is an `InvalidConfig` that names the file, the line and the key, and all
mistakes are told at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from tidings.applications import PARK, Application, start_problems
from tidings.config.validation import explain
from tidings.config.values import (
    Address,
    Bytes,
    FilterText,
    Log,
    Logs,
    OneOrMore,
    OnFailure,
    Seconds,
    Start,
    Text,
    or_empty,
)
from tidings.config.yaml_lines import Key, Mistakes, read
from tidings.errors import InvalidConfig, TidingsError
from tidings.log_checks import check_claims
from tidings.log_opening import resolve_log
from tidings.names import check_name
from tidings.stream_definition import DEFAULT_SHARDS, MAX_SHARDS, StreamDefinition

DEFAULT_STORAGE = "storage"
SECTIONS = {"streams": "a stream", "applications": "an application", "pipelines": "a pipeline"}

# Without these an entry is still one in which other mistakes can be found, and none that is not there.
_SIDE_KEYS = {
    "streams": {"retention", "caravans", "replicas", "collect"},
    "applications": {"filter", "start", "max_age", "balance", "on_failure"},
    "pipelines": {"max_rows"},
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RetentionSpec(_Model):
    """How long a log of ours keeps updates."""

    age: Seconds | None = None
    size: Bytes | None = None


class CaravansSpec(_Model):
    """Who reads a log for whom: the allocation policy, and limits for each publisher."""

    policy: Text | None = None
    caravans: Annotated[int, Field(ge=1)] | None = None
    rate: Annotated[float, Field(gt=0, strict=False)] | None = None
    total_rate: Annotated[float, Field(gt=0, strict=False)] | None = None


class StreamSpec(_Model):
    """A stream, as `Cluster.create_stream` makes it; with `logs`, a family of them."""

    shards: Annotated[int, Field(ge=1, le=MAX_SHARDS)] = DEFAULT_SHARDS
    logs: Logs | None = None
    log: Annotated[Log | None, Field(validate_default=True)] = None
    retention: Annotated[RetentionSpec, BeforeValidator(or_empty)] = RetentionSpec()
    options: Annotated[dict[str, Any], BeforeValidator(or_empty)] = {}
    caravans: Annotated[CaravansSpec, BeforeValidator(or_empty)] = CaravansSpec()
    replicas: Annotated[dict[str, Log], BeforeValidator(or_empty)] = {}
    collect: Annotated[dict[str, Any], BeforeValidator(or_empty)] = {}

    @field_validator("log")
    @classmethod
    def _one_of_both(cls, log: str | None, beside: ValidationInfo) -> str | None:
        if log is not None and beside.data.get("logs") is not None:
            raise ValueError("is there beside `logs`: keep one of them")
        if log is None and beside.data.get("logs", ...) is None:  # else there are some, or they are a mistake
            raise PydanticCustomError("missing", "is missing")
        return log

    def addresses(self, name: str) -> dict[str, str]:
        """The address of the log of each stream that this makes."""
        if self.logs is None:
            return {name: self.log or ""}
        return {f"{name}.{member}": log for member, log in self.logs.items()}

    def definitions(self, name: str, folder: Path) -> list[StreamDefinition]:
        """The stream, or those of the family, as a cluster defines them; relative paths start at the folder."""
        return [self.definition(name, stream, folder) for stream in self.addresses(name)]

    def definition(self, name: str, stream: str, folder: Path) -> StreamDefinition:
        """One of these."""
        return StreamDefinition(
            stream,
            self.shards,
            resolve_log(self.addresses(name)[stream], folder),
            self.retention.age,
            self.retention.size,
            self.options,
            self.caravans.model_dump(exclude_none=True),
            {replica: resolve_log(place, folder) for replica, place in self.replicas.items()},
            self.collect,
            "" if self.logs is None else name,
        )


class ApplicationSpec(_Model):
    """An application; what its keys mean is said of `Application`."""

    streams: Annotated[list[Text], Field(min_length=1)]
    filter: FilterText | None = None
    start: Start = "latest"
    mode: Literal["reliable", "realtime"] = "reliable"
    max_age: Seconds | None = None
    balance: Text = "random"
    on_failure: OnFailure = PARK

    def definition(self, name: str) -> Application:
        """The application as a cluster defines it."""
        how = (self.start, self.mode, self.max_age, self.balance, self.on_failure)
        return Application(name, tuple(self.streams), self.filter, *how)


class PipelineSpec(_Model):
    """A pipeline: streams in, a stage, and a stream out unless the stage only keeps tables."""

    input: OneOrMore
    stage: Text
    options: Annotated[dict[str, Any], BeforeValidator(or_empty)] = {}
    output: Text | None = None
    max_rows: Annotated[int, Field(ge=1)] | None = None


ENTRIES: dict[str, type[_Model]] = {
    "streams": StreamSpec,
    "applications": ApplicationSpec,
    "pipelines": PipelineSpec,
}


class Spec(_Model):
    """A whole `tidings.yml`. Made by `load`."""

    name: Text | None = None
    zookeeper: Address | None = None
    storage: Text = DEFAULT_STORAGE
    streams: Annotated[dict[str, StreamSpec], BeforeValidator(or_empty)] = {}
    applications: Annotated[dict[str, ApplicationSpec], BeforeValidator(or_empty)] = {}
    pipelines: Annotated[dict[str, PipelineSpec], BeforeValidator(or_empty)] = {}
    _path: Path = PrivateAttr()
    _mistakes: Mistakes = PrivateAttr()
    _left_out: frozenset[Key] = PrivateAttr(frozenset())

    @property
    def path(self) -> Path:
        """The file that it was read from."""
        return self._path

    @property
    def storage_folder(self) -> Path:
        """Where pipelines keep their checkpoints and tables; a relative folder starts at the file's own."""
        return Path(os.path.abspath(self.path.absolute().parent / Path(self.storage).expanduser()))

    def mistakes(self) -> Mistakes:
        """Those of the file, if they were not told yet, for others that only show beside a cluster."""
        return self._mistakes.copy()

    def left_out(self, section: str, name: str) -> bool:
        """Whether the file defines something of that name, or its family, with a mistake in it."""
        keys = ((section,), (section, name), (section, name.rpartition(".")[0]))
        return any(key in self._left_out for key in keys)

    def definitions(self) -> list[StreamDefinition]:
        """The streams as a cluster defines them, with the paths of their logs made absolute."""
        folder = self.path.absolute().parent
        return [each for name, one in self.streams.items() for each in one.definitions(name, folder)]


def stream_key(stream: StreamDefinition) -> Key:
    """The key under which a file defines a stream: its own, or that of its family."""
    return ("streams", stream.family or stream.name)


def log_key(stream: StreamDefinition) -> Key:
    """The key of a stream's log."""
    return _log_key(stream.family or stream.name, stream.name)


def _log_key(name: str, stream: str) -> Key:
    return ("streams", name, *(("log",) if stream == name else ("logs", stream[len(name) + 1 :])))


def load(path: Path, *, partly: bool = False) -> Spec:
    """The file, read and checked as far as that can be done without a cluster.

    Who can find more mistakes takes it `partly`: without what is wrong, and without the streams, applications and
    pipelines of which nothing can be known then.
    """
    mistakes = Mistakes(path, {})
    value = read(mistakes)
    if value is None:
        mistakes.check()
        raise InvalidConfig(f"{path}: says nothing; its keys are {', '.join(Spec.model_fields)}")
    spec = _validated(value, mistakes)
    spec._path, spec._mistakes = path, mistakes
    _check_spec(spec, mistakes)
    if not partly or mistakes.within(("zookeeper",)):
        mistakes.check()
    return _sound(spec, value, mistakes)


def _validated(value: Any, mistakes: Mistakes) -> Spec:
    """What the types allow of the file; all else is blamed, once."""
    try:
        return Spec.model_validate(value)
    except ValidationError as error:
        wrong = error.errors()
    unreadable = mistakes.copy()
    for one in wrong:
        if not unreadable.within(one["loc"]):
            mistakes.blame(one["loc"], explain(dict(one), Spec))
    if not isinstance(value, dict):
        mistakes.check()
    return Spec.model_validate(_pruned(value, {one["loc"] for one in wrong}))


def _pruned(value: dict[str, Any], wrong: set[Key]) -> dict[str, Any]:
    """The file without all that is wrong: keys at the top, side keys of entries, and else whole entries."""
    kept = {key: one for key, one in value.items() if (key,) not in wrong}
    for section in SECTIONS:
        if not isinstance(kept.get(section), dict):
            continue
        kept[section] = dict(kept[section])
        for name, entry in tuple(kept[section].items()):
            keys = _wrong_keys({one for one in wrong if one[:2] == (section, name)}, section)
            if keys is None:
                del kept[section][name]
            elif keys:
                kept[section][name] = {key: one for key, one in entry.items() if key not in keys}
    return kept


def _wrong_keys(wrong: set[Key], section: str) -> set[str | int] | None:
    """The keys of an entry in which there are these mistakes; None if nothing is known of the entry without them."""
    known: set[str | int] = set(ENTRIES[section].model_fields)
    keys = {key[2] for key in wrong if len(key) > 2}
    return None if any(len(key) < 3 for key in wrong) or keys & (known - _SIDE_KEYS[section]) else keys


def _sound(spec: Spec, value: dict[str, Any], mistakes: Mistakes) -> Spec:
    """The spec without all in which there is a mistake."""
    left_out: set[Key] = {(section,) for section in SECTIONS if (section,) in mistakes.within((section,))}
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for section in SECTIONS:
        entries = getattr(spec, section)
        for name in value.get(section) or () if (section,) not in left_out else ():
            keys = _wrong_keys(mistakes.within((section, name)), section)
            if keys is None or name not in entries:
                left_out.add((section, name))
                continue
            fields = ENTRIES[section].model_fields
            default = {str(key): fields[str(key)].default for key in keys if key in fields}
            sections[section][name] = entries[name].model_copy(update=default)
    sound = spec.model_copy(update=sections)
    sound._left_out = frozenset(left_out)
    return sound


def _check_spec(spec: Spec, mistakes: Mistakes) -> None:
    """Blame what is wrong with the spec as a whole."""
    for section, kind in SECTIONS.items():
        for name in getattr(spec, section):
            _check_name(kind, name, (section, name), mistakes)
    _check_logs(spec.streams, mistakes)
    for name, application in spec.applications.items():
        for at, stream_name in enumerate(application.streams):
            if stream_name in application.streams[:at]:
                mistakes.blame(("applications", name, "streams", at), f"names stream {stream_name!r} twice")
        for key, problem in start_problems(application.start, dict.fromkeys(application.streams)):
            if not key[0].startswith(tuple(f"{one}." for one in application.streams)):  # else perhaps of a family
                mistakes.blame(("applications", name, "start", *key), problem)
        if application.max_age is not None and application.mode != "realtime":
            mistakes.blame(("applications", name, "max_age"), "is for mode: realtime; reliable sends every update")
    _check_pipelines(spec.pipelines, mistakes)


def _check_name(kind: str, name: str, key: Key, mistakes: Mistakes) -> None:
    try:
        check_name(kind, name)
    except TidingsError as error:
        mistakes.blame(key, str(error))


def _check_logs(streams: Mapping[str, StreamSpec], mistakes: Mistakes) -> None:
    """Blame streams that have the name of another, or what is another's of a log."""
    folder, others = mistakes.path.absolute().parent, []
    for name, stream in streams.items():
        if stream.logs is not None and stream.replicas:
            mistakes.blame(("streams", name, "replicas"), "is for a stream with one `log`; this one has `logs`")
            stream = stream.model_copy(update={"replicas": {}})
        for made in stream.addresses(name):
            place = _log_key(name, made)
            if made != name:
                _check_name("a stream", made, place, mistakes)
            if made != name and made in streams:
                mistakes.blame(place, f"makes stream {made!r}, which this file defines by itself, too")
            try:
                others.append(stream.definition(name, made, folder))
            except TidingsError as error:
                if not mistakes.within(("streams", name)):
                    mistakes.blame(("streams", name), str(error))
                continue
            try:
                check_claims(others[-1], others)
            except TidingsError as error:
                mistakes.blame(place, str(error))


def _check_pipelines(pipelines: Mapping[str, PipelineSpec], mistakes: Mistakes) -> None:
    for name, pipeline in pipelines.items():
        for at, stream in enumerate(pipeline.input):
            if stream in pipeline.input[:at]:
                mistakes.blame(("pipelines", name, "input", at), f"names stream {stream!r} twice")
        if pipeline.output in pipeline.input:
            mistakes.blame(("pipelines", name, "output"), f"stream {pipeline.output!r} is the pipeline's input too")
        elif way := _way_back(name, pipelines):
            mistakes.blame(("pipelines", name, "output"), f"comes back to its own input, by {' → '.join(way)}")


def _way_back(name: str, pipelines: Mapping[str, PipelineSpec]) -> list[str]:
    """The pipelines through which what this one writes reaches it again; none if it does not."""
    ways, seen = [[name]], {name}
    while ways:
        way = ways.pop(0)
        output = pipelines[way[-1]].output
        for reader, pipeline in pipelines.items():
            if output is not None and output in pipeline.input:
                if reader == name:
                    return [*way, name]
                if reader not in seen:
                    seen.add(reader)
                    ways.append([*way, reader])
    return []
