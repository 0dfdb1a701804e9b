"""`tidings.yml`: the streams, applications and pipelines of a project, in one file.

`load` reads and checks the file. Every mistake is an `InvalidConfig` that names the file, the line and the key, and all
mistakes are told at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from tidings.applications import Application, check_start, start_problems
from tidings.config.units import parse_duration, parse_size
from tidings.config.validation import explain
from tidings.config.yaml_lines import Key, Mistakes, read
from tidings.coordination.zookeeper import split_address
from tidings.errors import InvalidConfig, InvalidOption, TidingsError
from tidings.filters import parse as parse_filter
from tidings.logs import resolve_log
from tidings.names import check_name
from tidings.stream_definition import DEFAULT_SHARDS, MAX_SHARDS, StreamDefinition
from tidings.stream_definition import split_address as split_log

FILE_NAMES = ("tidings.yml", "tidings.yaml")
DEFAULT_STORAGE = "storage"

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


def _list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, AfterValidator(_text)]
Seconds = Annotated[int, BeforeValidator(_duration)]
Bytes = Annotated[int, BeforeValidator(_size)]


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
    """A stream, as `Cluster.create_stream` makes it."""

    shards: Annotated[int, Field(ge=1, le=MAX_SHARDS)] = DEFAULT_SHARDS
    log: Annotated[str, AfterValidator(_log)]
    retention: Annotated[RetentionSpec, BeforeValidator(_or_empty)] = RetentionSpec()
    options: Annotated[dict[str, Any], BeforeValidator(_or_empty)] = {}
    caravans: Annotated[CaravansSpec, BeforeValidator(_or_empty)] = CaravansSpec()
    replicas: Annotated[dict[str, Annotated[str, AfterValidator(_log)]], BeforeValidator(_or_empty)] = {}
    collect: Annotated[dict[str, Any], BeforeValidator(_or_empty)] = {}

    def definition(self, name: str, folder: Path) -> StreamDefinition:
        """The stream as a cluster defines it; relative paths start at the folder."""
        return StreamDefinition(
            name,
            self.shards,
            resolve_log(self.log, folder),
            self.retention.age,
            self.retention.size,
            self.options,
            self.caravans.model_dump(exclude_none=True),
            {replica: resolve_log(log, folder) for replica, log in self.replicas.items()},
            self.collect,
        )


class ApplicationSpec(_Model):
    """An application; what its keys mean is said of `Application`."""

    streams: Annotated[list[Text], Field(min_length=1)]
    filter: Annotated[str, AfterValidator(_filter)] | None = None
    start: Annotated[Any, BeforeValidator(_start)] = "latest"
    mode: Literal["reliable", "realtime"] = "reliable"
    max_age: Seconds | None = None
    balance: Text = "random"

    def definition(self, name: str) -> Application:
        """The application as a cluster defines it."""
        return Application(name, tuple(self.streams), self.filter, self.start, self.mode, self.max_age, self.balance)


class PipelineSpec(_Model):
    """A pipeline: streams in, a stage, and a stream out unless the stage only keeps tables."""

    input: Annotated[list[Text], BeforeValidator(_list), Field(min_length=1)]
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
    _lines: dict[Key, int] = PrivateAttr()

    @property
    def path(self) -> Path:
        """The file that it was read from."""
        return self._path

    @property
    def storage_folder(self) -> Path:
        """Where pipelines keep their checkpoints and tables; a relative folder starts at the file's own."""
        return Path(os.path.abspath(self.path.absolute().parent / Path(self.storage).expanduser()))

    def mistakes(self) -> Mistakes:
        """For mistakes that only show beside a cluster."""
        return Mistakes(self._path, self._lines)

    def definitions(self) -> list[StreamDefinition]:
        """The streams as a cluster defines them, with the paths of their logs made absolute."""
        folder = self.path.absolute().parent
        return [one.definition(name, folder) for name, one in self.streams.items()]


def find(start: Path) -> Path:
    """The `tidings.yml` or `tidings.yaml` of this folder, or of the nearest one above that has one."""
    for folder in (start.absolute(), *start.absolute().parents):
        there = [folder / name for name in FILE_NAMES if (folder / name).exists()]
        if len(there) > 1:
            raise InvalidConfig(f"{folder} has both {FILE_NAMES[0]} and {FILE_NAMES[1]}: keep one of them")
        if there:
            return there[0]
    raise InvalidConfig(f"there is no {FILE_NAMES[0]} in {start.absolute()} or above it: name a file")


def load(path: Path) -> Spec:
    """The file, read and checked as far as that can be done without a cluster."""
    mistakes = Mistakes(path, {})
    value = read(mistakes)
    mistakes.check()
    if value is None:
        raise InvalidConfig(f"{path}: says nothing; its keys are {', '.join(Spec.model_fields)}")
    try:
        spec = Spec.model_validate(value)
    except ValidationError as error:
        for one in error.errors():
            mistakes.blame(one["loc"], explain(dict(one), Spec))
        mistakes.check()
        raise
    spec._path, spec._lines = path, mistakes.lines
    _check_spec(spec, mistakes)
    mistakes.check()
    return spec


def _check_spec(spec: Spec, mistakes: Mistakes) -> None:
    """Blame what is wrong with the spec as a whole."""
    for section, kind in (("streams", "a stream"), ("applications", "an application"), ("pipelines", "a pipeline")):
        for name in getattr(spec, section):
            try:
                check_name(kind, name)
            except TidingsError as error:
                mistakes.blame((section, name), str(error))
    folder = mistakes.path.absolute().parent
    homes: dict[str, str] = {}
    for name, stream in spec.streams.items():
        first = homes.setdefault(resolve_log(stream.log, folder), name)
        if first != name:
            mistakes.blame(("streams", name, "log"), f"is the log of stream {first!r} too; each stream has its own")
    for name, application in spec.applications.items():
        for at, stream_name in enumerate(application.streams):
            if stream_name in application.streams[:at]:
                mistakes.blame(("applications", name, "streams", at), f"names stream {stream_name!r} twice")
        for key, problem in start_problems(application.start, dict.fromkeys(application.streams)):
            mistakes.blame(("applications", name, "start", *key), problem)
        if application.max_age is not None and application.mode != "realtime":
            mistakes.blame(("applications", name, "max_age"), "is for mode: realtime; reliable sends every update")
    _check_pipelines(spec.pipelines, mistakes)


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
