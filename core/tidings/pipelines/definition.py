"""What a pipeline is: its streams, its stage, and the folder that holds how far it has come."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from tidings.collection import EXPLICIT
from tidings.errors import InvalidOption, LogMismatch
from tidings.logs import Transaction
from tidings.names import check_name
from tidings.stages import Stage, make
from tidings.storage.durable import replace, sync_folder
from tidings.texts import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidings.catalogue import Catalogue

MAX_ROWS = 50_000  # of each input in one batch, which a driver must be able to hold


class PipelineKeywords(TypedDict):
    """What a `PipelineDefinition` is made of beside its name, for those who pass it on."""

    input: str | Sequence[str]
    stage: Stage | str
    options: NotRequired[Mapping[str, Any] | None]
    output: NotRequired[str | None]
    storage: str | Path
    max_rows: NotRequired[int | None]


class PipelineDefinition:
    """Reads `input`, applies `stage`, writes `output`.

    `stage` is a `Stage`, or the name of one, with its `options`. Checkpoint and tables are in
    `<storage>/pipelines/<name>`. A batch has at most `max_rows` rows of each input, 50,000 unless that is said.
    """

    def __init__(
        self,
        cluster: Catalogue,
        name: str,
        *,
        input: str | Sequence[str],
        stage: Stage | str,
        options: Mapping[str, Any] | None = None,
        output: str | None = None,
        storage: str | Path,
        max_rows: int | None = None,
    ) -> None:
        self.name = check_name("a pipeline", name)
        self.cluster = cluster
        self.inputs = [cluster.stream(one) for one in ([input] if isinstance(input, str) else input)]
        self.output = None if output is None else cluster.stream(output)
        if isinstance(stage, Stage) and options:
            raise InvalidOption(f"pipeline {name!r} has its stage's options twice: leave out 'options'")
        self.stage = stage if isinstance(stage, Stage) else make(stage, options or {})
        self.stage_name = stage if isinstance(stage, str) else type(stage).__name__
        self.folder = Path(storage).absolute() / "pipelines" / name
        self.max_rows = max_rows or MAX_ROWS
        self._check()

    def __repr__(self) -> str:
        streams = ", ".join(stream.name for stream in self.inputs)
        return f"{type(self).__name__}({self.name!r}: {streams} → {self.stage!r} → {self.output and self.output.name})"

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps how far the pipeline has come."""
        return self.folder / "checkpoint"

    @property
    def tables(self) -> Path:
        """Where the stage keeps its tables."""
        return self.folder / "state"

    def read(self, spark: SparkSession) -> DataFrame:
        """The inputs as one streaming DataFrame, prepared by the stage."""
        from pyspark.sql import functions as sf

        frames = []
        for stream in self.inputs:
            reader = spark.readStream.format("tidings").option("definition", json.dumps(stream.definition.to_json()))
            rows = reader.option("maxRowsPerBatch", self.max_rows).option("tombstones", False).load()
            frames.append(rows.where(~EXPLICIT.column()).withColumn("stream", sf.lit(stream.name)))
        return self.stage.prepare(functools.reduce(lambda one, other: one.union(other), frames))

    def check_inputs(self) -> None:
        """Raise `LogMismatch` if the checkpoint is that of other inputs.

        It holds positions by the place of an input, and not by its name, so they would be taken for another's.
        """
        file = self.folder / "inputs.json"
        known = json.loads(file.read_text()) if file.exists() else self._inputs()
        if known != self._inputs():
            read = ", ".join(f"{one['stream']} ({counted(one['shards'], 'shard')} in {one['log']})" for one in known)
            raise LogMismatch(
                f"pipeline {self.name!r} has read {read} so far, and cannot go on with other inputs: "
                f"give it another name, or delete {self.folder} to begin anew"
            )

    def _check(self) -> None:
        names = [stream.name for stream in self.inputs]
        if not names:
            raise InvalidOption(f"pipeline {self.name!r} reads no stream: name one at least as its input")
        if len(set(names)) < len(names):
            raise InvalidOption(f"pipeline {self.name!r} names an input twice: {', '.join(names)}")
        if self.output is not None and self.output.name in names:
            raise InvalidOption(
                f"pipeline {self.name!r} would read what it writes: {self.output.name!r} is its input too"
            )
        inputs = [stream.definition for stream in self.inputs]
        self.stage.check(inputs, None if self.output is None else self.output.definition)
        if self.output is not None:
            _ = self.output.writable_log  # raises if the log is not one of ours

    def _inputs(self) -> list[dict[str, Any]]:
        return [{"stream": one.name, "shards": one.shards, "log": one.definition.log} for one in self.inputs]

    def note_inputs(self) -> None:
        """Note which inputs the checkpoint is for."""
        self.check_inputs()
        self.folder.mkdir(parents=True, exist_ok=True)
        for parent in self.folder.parents[:3]:  # those that may have been made just now
            sync_folder(parent)
        self._note("inputs.json", self._inputs())

    def note_batch(self, batch: Transaction) -> None:
        """Note that this batch begins; `LogMismatch` if its number was another's before.

        The note is for the stage's tables, which are beside it, as the transaction is for the output: they would take
        the batch for one that they have.
        """
        file = self.folder / "batch.json"
        known = Transaction(**json.loads(file.read_text())) if file.exists() else None
        if known == batch:
            return
        if known is not None and known.app == batch.app and batch.number <= known.number:
            raise LogMismatch(
                f"pipeline {self.name!r} has begun batch {known.number}, and batch {batch.number} is no repeat of it: "
                f"the checkpoint in {self.checkpoint} went back; put its newest copy in its place, or delete "
                f"{self.folder} to begin anew"
            )
        self._note("batch.json", batch._asdict())

    def _note(self, name: str, value: Any) -> None:
        content = json.dumps(value)
        replace(self.folder / name, self.folder / f"{name}.tmp", lambda draft: draft.write_text(content))
