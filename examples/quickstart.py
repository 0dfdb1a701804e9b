"""The shortest way from a change to those who hold a copy: publish updates, read them with Spark."""

import tempfile

import tidings

with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
    contacts = cluster.create_stream("contacts", shards=4)

    with contacts.producer() as producer:
        for version in range(3):
            producer.publish("contacts/alice", version, payload=b"+46 8 123 45")
        position = producer.publish("contacts/bob", 7, attributes={"country": "se"}).result()
    print("bob's update is durable at", position)

    spark = tidings.session("quickstart")
    updates = spark.read.format("tidings").options(stream="contacts", zookeeper=cluster.address).load()
    updates.groupBy("object").agg({"version": "max"}).orderBy("object").show()
    spark.stop()
