"""The core needs no plugin: with itself and the Delta connector on the path, updates reach their subscribers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PUBLISH_AND_SUBSCRIBE = """
import importlib.util, logging, sys
import tidings
from tidings.testing import eventually

assert not [name for name in ("tidings_thialfi", "tidings_log_tailing") if importlib.util.find_spec(name)]
got = []

class Collect(tidings.Handler):
    def on_update(self, update):
        got.append(update.object)

logging.basicConfig()
with tidings.embedded(sys.argv[1]) as cluster:
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], start="earliest")
    with stream.producer() as producer:
        producer.publish("contacts/alice", 1).result()
    with cluster.subscribe("cache", Collect()), cluster.publisher():
        eventually(lambda: got == ["contacts/alice"], timeout=60)
print("got", got)
"""


WITHOUT_PLUGINS = """
import pathlib, sys
sys.path[:] = [one for one in sys.path if pathlib.Path(one).parent.name != "plugins"]
"""


@pytest.mark.slow
def test_a_publisher_runs_with_only_the_core_and_the_delta_connector_on_the_path(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_PLUGINS + PUBLISH_AND_SUBSCRIBE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "got ['contacts/alice']\n", done.stderr
    assert "all flows of a stream share one reader: allocation policy 'gaps'" in done.stderr
