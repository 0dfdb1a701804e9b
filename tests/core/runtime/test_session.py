from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidings
from tidings.errors import JavaMissing
from tidings.runtime import jars
from tidings.runtime.session import configure, plan

CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.fixture(autouse=True)
def no_outside_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_CONF_DIR", "SPARK_HOME", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_delta_tables_are_written_and_read(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    spark.range(10).write.format("delta").save(table)
    assert spark.read.format("delta").load(table).count() == 10
    assert spark.sql(f"DESCRIBE HISTORY delta.`{table}`").count() == 1


def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    def python(_: object) -> str:
        return sys.executable

    assert spark.sparkContext.parallelize([0], 1).map(python).collect() == [sys.executable]


def test_the_jars_are_loaded_and_listen_on_the_loopback_address_only(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert (conf.get("spark.jars") or "").split(",") == [str(path) for path in jars.class_path()]
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_an_active_session_is_given_again_with_the_settings_asked_for(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        again = tidings.session(config={"spark.sql.shuffle.partitions": 3})
        assert again.sparkContext is spark.sparkContext
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))


def test_what_the_user_set_is_left_alone() -> None:
    own = {
        "spark.master": "local[3]",
        "spark.ui.enabled": "true",
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.catalog.spark_catalog": "example.Catalog",
        "spark.pyspark.python": "/opt/python",
        "spark.driver.host": "10.0.0.1",
        CHECKPOINTS: "example.Manager",
    }
    assert own.keys().isdisjoint(plan(own, []))


def test_lists_are_added_to() -> None:
    own = {
        "spark.jars": "/mine.jar, /ours.jar",
        "spark.sql.extensions": "example.Extension",
        "spark.driver.extraJavaOptions": "-Dmine=1",
    }
    added = plan(own, ["/ours.jar", "/other.jar"])
    assert added["spark.jars"] == "/mine.jar,/ours.jar,/other.jar"
    assert added["spark.sql.extensions"] == "example.Extension,io.delta.sql.DeltaSparkSessionExtension"
    assert added["spark.driver.extraJavaOptions"].startswith("-Dmine=1 -Dlog4j2.configurationFile=")


def test_a_log_configuration_of_the_users_own_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "spark.driver.extraJavaOptions"
    assert key not in plan({key: "-Dlog4j2.configurationFile=mine.xml"}, [])
    (tmp_path / "log4j2.properties").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert key not in plan({}, [])


def test_settings_for_one_machine_stay_off_a_cluster() -> None:
    added = plan({"spark.master": "spark://host:7077"}, [])
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions", CHECKPOINTS} & set(
        added
    )


@pytest.mark.parametrize(
    ("default_fs", "fast"), [(None, True), ("file:///", True), ("hdfs://name/", False), ("s3a://bucket/", False)]
)
def test_the_fast_checkpoint_manager_is_for_local_files_only(default_fs: str | None, fast: bool) -> None:
    given = {"spark.hadoop.fs.defaultFS": default_fs} if default_fs else {}
    assert (CHECKPOINTS in plan(given, [])) is fast


def test_a_hadoop_configuration_is_taken_for_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert CHECKPOINTS not in plan({}, [])


@pytest.mark.parametrize(("master", "partitions"), [("local", "1"), ("local[2]", "2"), ("local[64]", "8")])
def test_shuffles_have_as_many_partitions_as_cores_but_few(master: str, partitions: str) -> None:
    assert plan({"spark.master": master}, [])["spark.sql.shuffle.partitions"] == partitions


def test_spark_defaults_win_as_the_builder_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# ours\nspark.ui.enabled true\nspark.master=local[3]\n  spark.jars   /mine.jar  \n\nspark.empty\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    builder = configure(SparkSession.Builder().config("spark.driver.host", "localhost"))
    options = builder._options
    assert "spark.ui.enabled" not in options
    assert "spark.master" not in options
    assert options["spark.sql.shuffle.partitions"] == "3"
    assert options["spark.driver.host"] == "localhost"
    assert options["spark.jars"].startswith("/mine.jar,")


def test_without_java_the_builder_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing):
        configure(SparkSession.Builder())


@pytest.mark.slow
def test_a_session_starts_and_stops_without_a_word(tmp_path: Path) -> None:
    code = """
import tidings
spark = tidings.session(master="local[1]", config={"spark.ui.enabled": False})
query = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().groupBy("value").count()
query = query.writeStream.format("noop").outputMode("complete").option("checkpointLocation", "checkpoint")
query = query.trigger(availableNow=True).start()
query.awaitTermination()
spark.stop()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.slow
def test_a_spark_that_was_started_without_delta_is_refused() -> None:
    code = """
import tidings
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for stop in (spark.stop, lambda: None):
    try:
        tidings.session(master="local[1]")
    except tidings.TidingsError as error:
        print(type(error).__name__, error)
    stop()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    active, stopped = done.stdout.splitlines()
    assert active.startswith("InvalidOption the Spark session that is active lacks io.delta.sql.")
    assert stopped.startswith("InvalidOption Spark's Java runs already, without the jars")


@pytest.mark.slow
def test_a_second_session_after_a_stop_still_has_delta_and_warnings_are_still_seen(tmp_path: Path) -> None:
    code = """
import tidings
tidings.session(master="local[1]").stop()
spark = tidings.session(master="local[1]")
spark.range(1).write.format("delta").save("table")
spark._jvm.org.slf4j.LoggerFactory.getLogger("example").warn("deliberate")
spark.stop()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert [line.split("Z ")[1] for line in done.stderr.splitlines()] == ["WARN example: deliberate"]
