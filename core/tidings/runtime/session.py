"""A SparkSession with what tidings needs: its jars, Delta, the right Python, and settings for small micro-batches.

`session()` makes one; `configure()` brings the same to a builder of your own. What you have set yourself, on the
builder or in spark-defaults.conf, always wins; lists (jars, extensions, Java options) are added to.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.errors import InvalidOption
from tidings.runtime import jars, java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DELTA = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_NEEDED = {"spark.sql.extensions": _DELTA, "spark.sql.catalog.spark_catalog": _CATALOG}

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def session(
    app_name: str = "tidings", master: str | None = None, config: Mapping[str, object] | None = None
) -> SparkSession:
    """A SparkSession that reads and writes Delta and `format("tidings")`.

    `master` is `local[*]` unless you or spark-defaults.conf say otherwise; `config` adds to and overrides our settings.
    A session that is already active is returned as it is, with `config` applied as far as Spark allows.

    Raises `JavaMissing` or `JarsUnavailable` before Spark is started, and `InvalidOption` when Spark runs already and
    was started without Delta.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder()
    for name, setting in (config or {}).items():
        builder = builder.config(name, _text(setting))
    if SparkContext._active_spark_context is not None:
        active = builder.getOrCreate()
        for key, value in _NEEDED.items():
            if value not in str(active.conf.get(key, "")):
                raise InvalidOption(
                    f"the Spark session that is active lacks {value} in {key}: stop it and make it with "
                    "'tidings.configure(builder)'"
                )
        return active
    builder = builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    builder = configure(builder)
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        _launch(builder)
    elif not _has_delta():
        raise InvalidOption(
            "Spark's Java runs already, without the jars of tidings, and cannot take them in now: let "
            "'tidings.session()' or 'tidings.configure(builder)' make the first session of this program"
        )
    return builder.getOrCreate()


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Your builder, with what tidings needs added to it and nothing that you set replaced. Fetches the jars if need be.

    The Python that runs this also becomes the one of the workers (PYSPARK_PYTHON), unless the variable is set.
    """
    java.find()
    given = _outside() | {key: _text(value) for key, value in builder._options.items()}
    added = plan(given, [str(path) for path in jars.class_path()])
    # Spark's Python side takes the workers' Python from here and from nowhere else.
    os.environ.setdefault("PYSPARK_PYTHON", (given | added)["spark.pyspark.python"])
    for key, value in added.items():
        builder = builder.config(key, value)
    return builder


def plan(given: Mapping[str, str], jar_paths: list[str]) -> dict[str, str]:
    """The settings to add to those that were given.

    >>> plan({"spark.master": "local[2]"}, [])["spark.sql.shuffle.partitions"]
    '2'
    >>> "spark.ui.enabled" in plan({"spark.ui.enabled": "true"}, [])
    False
    """
    defaults = {
        "spark.sql.catalog.spark_catalog": _CATALOG,
        "spark.pyspark.python": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "spark.pyspark.driver.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    master = given.get("spark.master", "local[*]")
    if master.startswith("local"):
        few = str(min(_cores(master), 8))
        defaults |= {
            "spark.master": master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Spark's 200 make a task each, in every micro-batch that groups or joins.
            "spark.sql.shuffle.partitions": few,
            # Likewise Delta's 50, each time that it reads a table's state.
            "spark.databricks.delta.snapshotPartitions": few,
        }
        if _files_are_local(given):
            # Takes a tenth of a second off every micro-batch.
            defaults["spark.sql.streaming.checkpointFileManagerClass"] = _CHECKPOINTS
    added = {key: value for key, value in defaults.items() if key not in given}
    added["spark.jars"] = _joined(given.get("spark.jars"), jar_paths)
    added["spark.sql.extensions"] = _joined(given.get("spark.sql.extensions"), [_DELTA])
    options = given.get("spark.driver.extraJavaOptions", "")
    if "log4j2.configurationFile" not in options and not _found("log4j2.properties"):
        quiet = f"-Dlog4j2.configurationFile={shlex.quote(str(Path(__file__).with_name('log4j2.properties')))}"
        added["spark.driver.extraJavaOptions"] = f"{options} {quiet}".strip()
    return added


def _cores(master: str) -> int:
    match = re.match(r"local\[(\d+)", master)
    return int(match[1]) if match else 1 if master == "local" else os.cpu_count() or 1


def _files_are_local(given: Mapping[str, str]) -> bool:
    named = given.get("spark.hadoop.fs.defaultFS")
    if named is not None:
        return named.startswith("file:")
    # A Hadoop configuration most likely names a file system of a cluster.
    return "HADOOP_CONF_DIR" not in os.environ


def _joined(given: str | None, ours: list[str]) -> str:
    present = [part.strip() for part in given.split(",") if part.strip()] if given else []
    return ",".join([*present, *(part for part in ours if part not in present)])


def _text(value: Any) -> str:
    # As Spark's own builder does it: True is written true.
    return str(value).lower() if isinstance(value, bool) else str(value)


def _found(name: str) -> Path | None:
    """A file in Spark's own configuration folder, where that is and has it."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    path = Path(folder, name) if folder else None
    return path if path is not None and path.is_file() else None


def _outside() -> dict[str, str]:
    """What was set outside this program: on the command line of spark-submit, or in spark-defaults.conf."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    file = _found("spark-defaults.conf")
    lines = file.read_text(encoding="utf-8").splitlines() if file else []
    # Java's format for properties, of which Spark's users write `key value` and `key=value`.
    pairs = [re.match(r"\s*(spark\.[^\s=:]+)[\s=:]+(.*\S)", line) for line in lines]
    return {pair[1]: pair[2] for pair in pairs if pair}


def _has_delta() -> bool:
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    assert SparkContext._jvm is not None
    try:
        SparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_DELTA)
    except Py4JJavaError:
        return False
    return True


def _launch(builder: SparkSession.Builder) -> None:
    """Start Spark, with what its Java says on stderr passed on, but for one line.

    Spark's launcher always adds an incubator module, of which Java itself warns, and not a logger: no option turns that
    off, and every program and command of ours would begin with it. The rest is kept: there Java tells why it does not
    start, and there Spark logs.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf().setAll([(key, _text(value)) for key, value in builder._options.items()])
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="spark-stderr", daemon=True).start()
    try:
        gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]  # PySpark has no hints here
    finally:
        os.close(writing)
    SparkContext(conf=conf, gateway=gateway)


def _pass_on(reading: int) -> None:
    with open(reading, "rb") as lines:
        for line in lines:
            if not line.startswith(b"WARNING: Using incubator modules"):
                # With stderr closed there is nobody to tell; but Java must not wait for a reader.
                with contextlib.suppress(OSError):
                    os.write(2, line)
