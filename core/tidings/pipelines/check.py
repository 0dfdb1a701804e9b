"""The pipelines of a `tidings.yml`, checked beside the cluster before any of them is started.

Nothing is written, and no update is read. All mistakes are told at once, each with its line and key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidings.errors import InvalidConfig, TidingsError
from tidings.logs import WritableLog
from tidings.pipelines.pipeline import Pipeline
from tidings.stages import Stage, parse
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue
    from tidings.config.spec import PipelineSpec, Spec
    from tidings.config.yaml_lines import Key, Mistakes


def choose(spec: Spec, wanted: str | None) -> list[str]:
    """The names of the pipelines to run: all of the file, or the one that is wanted."""
    if spec.left_out("pipelines", wanted) if wanted else not spec.pipelines:
        spec.mistakes().check()
    if not spec.pipelines:
        raise InvalidConfig(f"{spec.path} has no pipelines: add one under 'pipelines:'")
    if wanted is not None and wanted not in spec.pipelines:
        raise InvalidConfig(f"{spec.path} has no pipeline {wanted!r} (pipelines: {', '.join(spec.pipelines)})")
    return list(spec.pipelines) if wanted is None else [wanted]


def plan(spec: Spec, cluster: Catalogue, names: Sequence[str]) -> list[Pipeline]:
    """These pipelines, ready to be started; `InvalidConfig` if any of them cannot be."""
    mistakes = spec.mistakes()
    there = {stream.name: stream for stream in cluster.streams()}
    pipelines = [_plan(name, spec, cluster, there, mistakes) for name in names]
    mistakes.check()
    return [pipeline for pipeline in pipelines if pipeline is not None]


def waves(pipelines: Sequence[Pipeline]) -> list[list[Pipeline]]:
    """The pipelines in groups, each after all groups that write what it reads. There are no circles in a `Spec`."""
    found: list[list[Pipeline]] = []
    left = list(pipelines)
    while left:
        written = {one.output.name for one in left if one.output is not None}
        ready = [one for one in left if not any(stream.name in written for stream in one.inputs)]
        found.append(ready or left)
        left = [one for one in left if one not in found[-1]]
    return found


def check_stage(
    pipeline: PipelineSpec, streams: Mapping[str, StreamDefinition], key: Key, mistakes: Mistakes
) -> Stage | None:
    """The stage with its options, or None after it was blamed that they, or the streams around it, will not do."""
    try:
        stage = parse(pipeline.stage, pipeline.options, lambda at, text: mistakes.blame((*key, "options", *at), text))
    except TidingsError as error:
        mistakes.blame((*key, "stage"), str(error))
        return None
    names = [*pipeline.input, *([pipeline.output] if pipeline.output else [])]
    if stage is None or not all(name in streams for name in names):
        return stage
    try:
        output = streams[pipeline.output] if pipeline.output else None
        stage.check([streams[name] for name in pipeline.input], output)
    except TidingsError as error:
        mistakes.blame(key, str(error))
        return None
    return stage


def _plan(
    name: str, spec: Spec, cluster: Catalogue, there: Mapping[str, Stream], mistakes: Mistakes
) -> Pipeline | None:
    wanted, key = spec.pipelines[name], ("pipelines", name)
    stage = check_stage(wanted, {stream: one.definition for stream, one in there.items()}, key, mistakes)
    inputs = [_check_input(one, (*key, "input", at), spec, there, mistakes) for at, one in enumerate(wanted.input)]
    output = wanted.output is None or _check_output(wanted.output, (*key, "output"), spec, there, mistakes)
    if stage is None or not all(inputs) or not output:
        return None
    try:
        pipeline = Pipeline(
            cluster,
            name,
            input=wanted.input,
            stage=stage,
            output=wanted.output,
            storage=spec.storage_folder,
            max_rows=wanted.max_rows,
        )
        pipeline.check_inputs()
    except TidingsError as error:
        mistakes.blame(key, str(error))
        return None
    return pipeline


def _check_input(name: str, key: Key, spec: Spec, there: Mapping[str, Stream], mistakes: Mistakes) -> bool:
    try:
        _found(name, spec, there).log.bounds()
    except TidingsError as error:
        mistakes.blame(key, str(error))
        return False
    return True


def _check_output(name: str, key: Key, spec: Spec, there: Mapping[str, Stream], mistakes: Mistakes) -> bool:
    try:
        log: WritableLog = _found(name, spec, there).writable_log
        log.bounds()
    except TidingsError as error:
        mistakes.blame(key, str(error))
        return False
    return True


def _found(name: str, spec: Spec, there: Mapping[str, Stream]) -> Stream:
    if name not in there:
        planned = spec.left_out("streams", name) or any(name == one.name for one in spec.definitions())
        cure = "; `tidings apply` makes it" if planned else f" (streams: {', '.join(there) or 'none'})"
        raise InvalidConfig(f"there is no stream {name!r} in the cluster{cure}")
    return there[name]
