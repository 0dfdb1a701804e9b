"""`tidings.yml`: the streams, applications and pipelines of a project, in one file.

`load` reads and checks the file. Every mistake is an `InvalidConfig` that names the file, the line and the key, and all
mistakes are told at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from tidings.applications import PARK, Application, check_on_failure, check_start, start_problems
from tidings.config.units import parse_duration, parse_size
from tidings.config.validation import explain
from tidings.config.yaml_lines import Key, Mistakes, read
from tidings.coordination.session import split_address
from tidings.errors import InvalidConfig, InvalidOption, TidingsError
from tidings.filters import parse as parse_filter
from tidings.log_checks import check_claims
from tidings.log_opening import resolve_log
from tidings.names import check_name
from tidings.stream_definition import DEFAULT_SHARDS, MAX_SHARDS, StreamDefinition
from tidings.stream_definition import split_address as split_log

DEFAULT_STORAGE = "storage"
SECTIONS = {"streams": "a stream", "applications": "an application", "pipelines": "a pipeline"}

T = TypeVar("T")


# What pydantic checks. A validator raises ValueError where the rest of tidings raises TidingsError.


def _check(parse: Callable[..., T], *arguments: Any) -> T:
    try:
        return parse(*arguments)
    except TidingsError as error:
        raise ValueError(str(error)) from None


def _or_empty(value: Any) -> Any:
    return {} if value is None else value  # a section whose entries were all taken out or commented out


def _duration(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"must be a duration, as in P7D, not {value!r}")
    return _check(parse_duration, value)


def _size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"must be a size, as in 10GiB, not {value!r}")
    return _check(parse_size, str(value))


def _start(value: Any) -> Any:
    try:
        return check_start(value)
    except InvalidOption as error:
        raise ValueError(str(error).replace("start is", "must be", 1)) from None
    except TidingsError as error:
        raise ValueError(str(error)) from None


def _on_failure(value: Any) -> Any:
    try:
        return check_on_failure(value)
    except TidingsError as error:
        raise ValueError(str(error).replace("on_failure is", "must be", 1)) from None


def _filter(value: str) -> str:
    _check(parse_filter, _text(value))
    return value


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def _log(value: str) -> str:
    _check(split_log, value)
    return value


def _address(value: str) -> str:
    _check(split_address, value)
    return value


def _logs(value: Any) -> Any:
    if value == {}:
        raise ValueError("must name one at least, as in {east: 'postgres:…'}")
    return value


def _list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


# What an editor is told of a value, where that is not what the type says (`tidings.config.schema`).
_Duration = Annotated[str, Field(pattern="^P", examples=["P7D", "PT12H"])]
_Size = int | Annotated[str, Field(pattern="^[0-9]", examples=["500MB", "10GiB"])]
_Start = Literal["earliest", "latest"] | str | dict[str, dict[str, int]]
_OnFailure = Literal["park", "skip"] | Annotated[str, Field(pattern="^stream:.")]

Text = Annotated[str, AfterValidator(_text), WithJsonSchema({"type": "string", "minLength": 1})]
Seconds = Annotated[int, BeforeValidator(_duration, json_schema_input_type=_Duration)]
Bytes = Annotated[int, BeforeValidator(_size, json_schema_input_type=_Size)]


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


Log = Annotated[str, AfterValidator(_log)]


class StreamSpec(_Model):
    """A stream, as `Cluster.create_stream` makes it; with `logs`, a family of them."""

    shards: Annotated[int, Field(ge=1, le=MAX_SHARDS)] = DEFAULT_SHARDS
    logs: Annotated[dict[str, Log], BeforeValidator(_logs)] | None = None
    log: Annotated[Log | None, Field(validate_default=True)] = None
    retention: Annotated[RetentionSpec, BeforeValidator(_or_empty)] = RetentionSpec()
    options: Annotated[dict[str, Any], BeforeValidator(_or_empty)] = {}
    caravans: Annotated[CaravansSpec, BeforeValidator(_or_empty)] = CaravansSpec()
    replicas: Annotated[dict[str, Log], BeforeValidator(_or_empty)] = {}
    collect: Annotated[dict[str, Any], BeforeValidator(_or_empty)] = {}

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
    filter: Annotated[str, AfterValidator(_filter)] | None = None
    start: Annotated[Any, BeforeValidator(_start, json_schema_input_type=_Start)] = "latest"
    mode: Literal["reliable", "realtime"] = "reliable"
    max_age: Seconds | None = None
    balance: Text = "random"
    on_failure: Annotated[str, BeforeValidator(_on_failure, json_schema_input_type=_OnFailure)] = PARK

    def definition(self, name: str) -> Application:
        """The application as a cluster defines it."""
        how = (self.start, self.mode, self.max_age, self.balance, self.on_failure)
        return Application(name, tuple(self.streams), self.filter, *how)


class PipelineSpec(_Model):
    """A pipeline: streams in, a stage, and a stream out unless the stage only keeps tables."""

    input: Annotated[list[Text], BeforeValidator(_list, json_schema_input_type=Text | list[Text]), Field(min_length=1)]
    stage: Text
    options: Annotated[dict[str, Any], BeforeValidator(_or_empty)] = {}
    output: Text | None = None
    max_rows: Annotated[int, Field(ge=1)] | None = None


class Spec(_Model):
    """A whole `tidings.yml`. Made by `load`."""

    name: Text | None = None
    zookeeper: Annotated[str, AfterValidator(_address)] | None = None
    storage: Text = DEFAULT_STORAGE
    streams: Annotated[dict[str, StreamSpec], BeforeValidator(_or_empty)] = {}
    applications: Annotated[dict[str, ApplicationSpec], BeforeValidator(_or_empty)] = {}
    pipelines: Annotated[dict[str, PipelineSpec], BeforeValidator(_or_empty)] = {}
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
        return any((section, one) in self._left_out for one in (name, name.rpartition(".")[0]))

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

    Who can find more mistakes takes it `partly`: without the streams, applications and pipelines in which there is one.
    """
    mistakes = Mistakes(path, {})
    value = read(mistakes)
    if value is None:
        mistakes.check()
        raise InvalidConfig(f"{path}: says nothing; its keys are {', '.join(Spec.model_fields)}")
    spec = _validated(value, mistakes)
    spec._path, spec._mistakes = path, mistakes
    _check_spec(spec, mistakes)
    if not partly or any(mistakes.within((key,)) for key in Spec.model_fields if key not in SECTIONS):
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
    if not isinstance(value, dict) or any(one["loc"][0] not in SECTIONS or len(one["loc"]) < 2 for one in wrong):
        mistakes.check()
    entries = {one["loc"][:2] for one in wrong}
    sections = {
        section: {name: entry for name, entry in value[section].items() if (section, name) not in entries}
        for section in {section for section, _ in entries}
    }
    return Spec.model_validate({**value, **sections})


def _sound(spec: Spec, value: dict[str, Any], mistakes: Mistakes) -> Spec:
    """The spec without all in which there is a mistake."""
    named = {(section, name) for section in SECTIONS for name in value.get(section) or ()}
    wrong = frozenset(key for key in named if mistakes.within(key))
    sections = {
        section: {name: entry for name, entry in getattr(spec, section).items() if (section, name) not in wrong}
        for section in SECTIONS
    }
    sound = spec.model_copy(update=sections)
    sound._left_out = wrong
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
