"""What the embedded ZooKeeper is started with: its jars, the JVM's options and its configuration."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from tidings.errors import EmbeddedFailed

LOG_FILE = "zookeeper.log"
"""The server's log, in its folder."""

# Only what the server loads: with all of PySpark's jars on the class path it starts in twice the time. Netty, Snappy
# and commons-io are there because classes in use refer to theirs.
_JARS = (
    *("zookeeper", "zookeeper-jute", "slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "metrics-core"),
    *("snappy-java", "commons-io", "netty-buffer", "netty-common", "netty-handler", "netty-transport"),
)

JVM_OPTIONS = (
    *("-Xms16m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto"),
    *("-XX:+ExitOnOutOfMemoryError", "-XX:ErrorFile=./jvm-crash.log", "-Dfile.encoding=UTF-8"),
    "-Dlog4j2.configurationFile=./log4j2.properties",
)

# Paths are relative to the folder, which is where the server runs: so no character in the folder's name needs escaping.
# Sessions of one second are allowed, because tests of failover would wait for longer ones. A transaction log takes 4 MB
# at first, not 64. `conf` tells which server it is that answers.
ZOO_CFG = """\
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=120000
dataDir=./data
preAllocSize=4096
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
clientPort={port}
clientPortAddress={host}
maxClientCnxns=1000
maxCnxns=2000
admin.enableServer=false
4lw.commands.whitelist=srvr,ruok,conf
"""

# ServerCnxn complains with a stack trace when it is asked for its state before it has read its data, as `start` does.
LOG4J = f"""\
status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName={LOG_FILE}
appender.file.filePattern={LOG_FILE}.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}}{{UTC}} %p %c{{1}}: %m%n%ex
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=4MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=2
rootLogger.level=warn
rootLogger.appenderRef.file.ref=file
logger.connection.name=org.apache.zookeeper.server.ServerCnxn
logger.connection.level=off
"""


def class_path() -> str:
    """The jars that the server needs, among those of PySpark (which is found without being imported)."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EmbeddedFailed("the embedded ZooKeeper comes with PySpark, which is not installed: pip install pyspark")
    folder = Path(spec.origin).parent / "jars"
    versioned = re.compile(r"(.+?)-(\d[\w.-]*)\.jar")
    found = {match[1]: match[0] for match in map(versioned.fullmatch, _names(folder)) if match}
    missing = [jar for jar in _JARS if jar not in found]
    if missing:
        raise EmbeddedFailed(
            f"the embedded ZooKeeper needs jars that are not in {folder}: {', '.join(missing)}; install PySpark again"
        )
    return os.pathsep.join(str(folder / found[jar]) for jar in _JARS)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
