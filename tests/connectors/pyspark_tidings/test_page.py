"""The page for data teams: every block of it is run, and its tables are those of the code."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pyspark_tidings.options import READ, WRITE
from pyspark_tidings.reference import reading, writing
from tests.support.avro_table import items
from tests.support.places import ROOT
from tidings.cluster import Cluster

PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PEOPLE = [("alice", "se"), ("bob", "no"), ("cecilia", "se"), ("dan", "dk")]


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Cluster:
    """What the page takes for granted."""
    with cluster.create_stream("contacts", shards=2).producer() as producer:
        for name, country in PEOPLE * 3:
            payload = json.dumps({"name": name.title(), "country": country}).encode()
            producer.publish(f"contacts/{name}", 1, payload=payload, attributes={"country": country})
    cluster.create_stream("swedes", shards=2)
    items(cluster, tmp_path, "pen", "ink", stream="shop")
    return cluster


def fitted(block: str, cluster: Cluster, folder: Path) -> str:
    """A block with the places of this test in it."""
    return block.replace("zk1:2181/prod", cluster.address).replace("/data/", f"{folder}/data/")


def is_job(block: str) -> bool:
    return block.startswith("# job.py\n")


def test_every_block_of_the_page_is_of_a_kind_that_is_run() -> None:
    assert {kind for kind, _ in BLOCKS} == {"python", "sql", "console"}
    assert sum(is_job(block) for _, block in BLOCKS) == 1


@pytest.mark.slow
def test_the_python_and_the_sql_of_the_page_run_one_after_the_other(
    spark: SparkSession,
    scene: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", scene.address)
    names: dict[str, Any] = {"spark": spark}
    answers: list[Any] = []
    try:
        for kind, block in BLOCKS:
            text = fitted(block, scene, tmp_path)
            if kind == "python" and not is_job(block):
                exec(compile(text, "docs/spark.md", "exec"), names)
            elif kind == "sql":
                answers += [spark.sql(statement).collect() for statement in text.split(";") if statement.strip()]
        assert names["newest"].count() == len(PEOPLE)
        assert names["recent"].count() == names["past"].count() == 3 * len(PEOPLE)
        assert {row.object: row.version for row in answers[-1]} == {f"contacts/{name}": 1 for name, _ in PEOPLE}
        swedes = spark.read.format("tidings").options(stream="swedes", zookeeper=scene.address).load()
        assert swedes.count() == 6
        assert names["some"].count() == 5
        assert spark.read.format("delta").load(f"{tmp_path}/data/swedes").count() == 6
    finally:
        for view in ("updates", "contacts"):
            spark.catalog.dropTempView(view)
    printed = capsys.readouterr().out
    assert "InvalidOption: stream 'contacts' has shards 0 to 1, not 9" in printed
    assert re.search(r"contacts/bob\|\s*Bob\|\s*Norway\|", printed)
    assert re.search(r"\|\s*pen\|10\.50\|", printed)


@pytest.mark.slow
@pytest.mark.parametrize("command", [block for kind, block in BLOCKS if kind == "console"])
def test_spark_submit_runs_the_job_of_the_page(scene: Cluster, tmp_path: Path, command: str) -> None:
    job = next(block for _, block in BLOCKS if is_job(block))
    (tmp_path / "job.py").write_text(job)
    here = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TIDINGS_ZOOKEEPER": scene.address}
    done = subprocess.run(
        command.removeprefix("$ "),
        shell=True,
        executable="/bin/bash",
        cwd=tmp_path,
        env={**os.environ, **here},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"updates: {3 * len(PEOPLE)}\n"


def test_the_tables_of_options_are_those_of_the_code() -> None:
    told = "make them anew: python -m pyspark_tidings.reference"
    assert f"\n\n{reading()}\n" in PAGE, told
    assert f"\n\n{writing()}\n" in PAGE, told


def test_every_option_that_the_code_asks_for_is_in_a_table() -> None:
    tree = ast.parse((ROOT / "connectors" / "pyspark_tidings" / "options.py").read_text())
    asked = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "known.get"
        and isinstance(node.args[0], ast.Constant)
    }
    assert asked - {"checkpointlocation"} <= {one.name.lower() for one in (*READ, *WRITE)}, "that one is Spark's own"


def test_a_table_of_sql_is_refused_and_one_with_columns_cannot_be_read_as_the_page_says(
    spark: SparkSession, scene: Cluster, tmp_path: Path
) -> None:
    options = f"OPTIONS (stream 'contacts', zookeeper '{scene.address}') LOCATION '{tmp_path}/table'"
    with pytest.raises(AnalysisException, match="make it a view, by CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE not_to_be_read USING tidings {options}")
    spark.sql(f"CREATE TABLE not_to_be_read (object STRING) USING tidings {options}")
    try:
        with pytest.raises(AnalysisException, match="tidings is not a valid Spark SQL Data Source"):
            spark.sql("SELECT * FROM not_to_be_read").collect()
    finally:
        spark.sql("DROP TABLE not_to_be_read")
