"""What Spark says of a mistake: its own class, one sentence of ours, and no stack of our source."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from tidings.cluster import Cluster
from tidings.streams import Stream
from tidings.testing import make_updates


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    return cluster.create_stream("contacts", shards=4)


MISTAKES = [
    ({"shards": "9"}, "InvalidOption: stream 'contacts' has shards 0 to 3, not 9"),
    ({"startingPosition": "newest"}, "InvalidOption: option 'startingPosition' is 'newest'; write earliest or latest"),
    ({"startingPositoin": "latest"}, "InvalidOption: format('tidings') has no option 'startingpositoin' here; did you"),
    ({"stream": "nobody"}, "UnknownStream: there is no stream 'nobody'"),
]


@pytest.mark.parametrize(("options", "sentence"), MISTAKES)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_mistake_in_an_option_is_an_analysis_exception_of_one_sentence_at_load(
    spark: SparkSession, cluster: Cluster, stream: Stream, options: dict[str, str], sentence: str, streaming: bool
) -> None:
    reader = (spark.readStream if streaming else spark.read).format("tidings")
    with pytest.raises(AnalysisException) as caught:
        reader.options(**{"stream": "contacts", "zookeeper": cluster.address, **options}).load()
    said = str(caught.value)
    assert said.startswith("[PYTHON_DATA_SOURCE_ERROR] ")
    assert f"tidings.errors.{sentence}" in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) <= 2, "Spark adds a line with its SQLSTATE"


def test_a_mistake_in_a_write_is_told_likewise(spark: SparkSession, cluster: Cluster, stream: Stream) -> None:
    rows = spark.createDataFrame([("a", 1)], "object STRING, version LONG")
    with pytest.raises(AnalysisException) as caught:
        rows.write.format("tidings").mode("append").options(stream="nobody", zookeeper=cluster.address).save()
    assert "UnknownStream: there is no stream 'nobody'" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_what_fails_later_has_no_stack_of_ours_either(
    spark: SparkSession, cluster: Cluster, stream: Stream, tmp_path: Path
) -> None:
    stream.writable_log.append(make_updates(10))
    rows = spark.readStream.format("tidings").options(stream="contacts", zookeeper=cluster.address).load()
    cluster.drop_stream("contacts", purge=True)
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination(60)
    assert "UnknownStream: there is no stream 'contacts'" in str(caught.value)
    assert "pyspark_tidings" not in str(caught.value)


def test_an_error_of_a_users_own_code_keeps_its_stack(spark: SparkSession, cluster: Cluster, stream: Stream) -> None:
    with pytest.raises(AnalysisException):
        spark.read.format("tidings").options(stream="nobody", zookeeper=cluster.address).load()

    def fail(batches: object) -> object:
        raise ValueError("of mine")

    with pytest.raises(PySparkException, match="of mine") as caught:
        spark.range(1).mapInArrow(fail, "id LONG").collect()  # type: ignore[arg-type]  # it is never called for rows
    assert "Traceback" in str(caught.value)
