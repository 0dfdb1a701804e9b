"""A stage: what a pipeline makes of its updates, DataFrame in, DataFrame out.

A stage is found by its name among the entry points of the group `tidings.stages`. Its options are the fields of its
class, so that they are checked before anything runs.

    class Loud(Stage):
        suffix: str = "!"

        def prepare(self, rows):
            return rows.withColumn("object", sf.concat("object", sf.lit(self.suffix)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tidings.config.validation import explain
from tidings.errors import InvalidOption, PluginBroken
from tidings.plugins import load

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tidings.catalogue import Catalogue
    from tidings.config.yaml_lines import Key
    from tidings.stages.state import State
    from tidings.stream_definition import StreamDefinition
    from tidings.streams import Stream

GROUP = "tidings.stages"


class Stage(BaseModel):
    """What a pipeline does with updates. The fields of a subclass are its options.

    What can be said of rows alone belongs into `prepare`, which is a part of the query and planned with it; what needs
    a batch as a whole, or tables, belongs into `apply`. What must hold for the pipeline's guarantees:

    - `apply` writes nothing but through `state`. It may be called again for the same batch, with the same rows and
      with the state as it was before that batch; what it returned or wrote before is then not written again.
    - It keeps the order of an object's updates, or leaves `shard`, `seq` and `index` on the rows, by which the pipeline
      puts them in order again.
    - It works on columns. A Python function for each row would take longer than all the rest.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    max_inputs: ClassVar[int | None] = None
    """How many streams it can read; None: any number."""

    writes: ClassVar[bool] = True
    """Whether it writes a stream; one that does not only keeps tables."""

    def check(self, inputs: Sequence[StreamDefinition], output: StreamDefinition | None) -> None:
        """Raise `InvalidOption` if the stage cannot work between these streams."""
        if self.max_inputs is not None and len(inputs) > self.max_inputs:
            raise InvalidOption(f"the stage reads {self.max_inputs} streams at most, not {len(inputs)}")
        if self.writes and output is None:
            raise InvalidOption("the stage writes a stream: name it as the output")
        if not self.writes and output is not None:
            raise InvalidOption("the stage writes no stream: leave the output out")

    def begin(self, cluster: Catalogue, inputs: Sequence[Stream], output: Stream | None) -> None:
        """The pipeline starts, between these streams; called before the first batch."""

    def end(self) -> None:
        """The pipeline has ended; called after the last batch."""

    def figures(self) -> Mapping[str, float]:
        """What Prometheus is told of the stage: as `tidings_stage_<name>`, with the pipeline as a label.

        One whose name ends in `_total` only grows.
        """
        return {}

    def prepare(self, rows: DataFrame) -> DataFrame:
        """The rows as batches are to have them, chosen and changed one by one; as they are, if this is not said.

        They have the canonical columns and `stream`, the name of the stream that a row comes from.
        """
        return rows

    def apply(self, batch: DataFrame, state: State) -> DataFrame | pa.Table | None:
        """The rows to write, of the canonical columns, `object` at least; None if there are none.

        Rows that are in the driver already may be returned as Arrow, which saves a Spark job.

        An object's rows are in order within each stream. Unless this is said, the batch is written as it is.
        """
        return batch


def make(name: str, options: Mapping[str, Any]) -> Stage:
    """The stage of this name, with these options.

    >>> make("filter", {"filter": "region = eu"})
    FilterStage(filter='region = eu')
    """
    problems: list[str] = []
    stage = parse(name, options, lambda key, text: problems.append(f"{'.'.join(map(str, key))}: {text}"))
    if stage is None:
        raise InvalidOption(f"stage {name!r}: {'; '.join(problems)}")
    return stage


def parse(name: str, options: Mapping[str, Any], blame: Callable[[Key, str], None]) -> Stage | None:
    """The stage, or None after everything that is wrong with the options was blamed on its key."""
    kind = load(GROUP, name)
    if not (isinstance(kind, type) and issubclass(kind, Stage)):
        raise PluginBroken(f"stage {name!r} is {kind!r}, which is no subclass of tidings.stages.Stage")
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        for one in error.errors():
            blame(one["loc"], explain(dict(one), kind))
        return None
