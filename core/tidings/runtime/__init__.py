"""What a process needs to run: Java, jars, a Spark session, an embedded ZooKeeper; and what is missing of it."""
