"""Pipelines: Swedes into a stream of their own, by a stage of one's own, and the newest state of each in a table."""

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import tidings
from tidings.stages import Stage


class Greeting(Stage):
    """Puts a greeting before each payload; `text` is its option."""

    text: str = "hello"

    def prepare(self, rows: DataFrame) -> DataFrame:
        return rows.withColumn("payload", sf.concat(sf.lit(f"{self.text}, ").cast("binary"), "payload"))


with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
    for name in ("contacts", "swedes", "greetings"):
        cluster.create_stream(name, shards=2)

    with cluster.stream("contacts").producer() as producer:
        for version, (name, country) in enumerate([("alva", "se"), ("bob", "us"), ("cecilia", "se"), ("alva", "se")]):
            payload = f"{name} {version}".encode()
            producer.publish(f"contacts/{name}", version, attributes={"country": country}, payload=payload)

    swedes = cluster.pipeline(
        "swedes",
        input="contacts",
        stage="filter",
        options={"filter": "country = se"},
        output="swedes",
        storage=folder,
    )
    greetings = cluster.pipeline(
        "greetings", input="swedes", stage=Greeting(text="hej"), output="greetings", storage=folder
    )
    newest = cluster.pipeline("newest", input="greetings", stage="latest", storage=folder)

    spark = tidings.session("pipelines")
    for pipeline in (swedes, greetings, newest):
        pipeline.run(spark, once=True)  # without `once` it goes on until it is stopped

    table = spark.read.format("delta").load(str(Path(newest.tables, "latest")))
    table.select("object", "version", table.payload.cast("string")).orderBy("object").show(truncate=False)
    spark.stop()
