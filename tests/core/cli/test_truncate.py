"""`tidings streams truncate`: what is held before and after."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import Run, objects, published, tail


def test_truncate_shows_what_is_held_before_and_after(contacts: Run) -> None:
    for n in range(3):
        published(contacts, {"object": "a", "version": n})
    (shard,) = {line["shard"] for line in tail(contacts, "--from", "earliest")}
    before = json.dumps({**dict.fromkeys("0123", 0), str(shard): 2})
    dry = contacts("streams", "truncate", "contacts", "--before", before, "--dry-run", "--json").json
    assert dry["executed"] is False
    assert len(objects(contacts)) == 3
    done = contacts("streams", "truncate", "contacts", "--before", before, "--execute", "--json").json
    assert (done["before"], done["after"]) == (dry["before"], dry["after"])
    assert done["after"][shard] == {"shard": shard, "floor": 2, "head": 2, "updates": 1}
    assert done["after"] == contacts("streams", "describe", "contacts", "--json").json["held"]
    assert [line["version"] for line in tail(contacts, "--from", "earliest")] == [2]
    published(contacts, {"object": "a", "version": 3})
    result = contacts("streams", "truncate", "contacts", "--larger-than", "1B", "--execute")
    assert result.err == "2 updates were held, 1 is held now\n"
    assert result.out.splitlines()[1 + shard].split() == [str(shard), "2", "3", "3", "2", "1"]


def test_one_update_is_called_one(contacts: Run) -> None:
    published(contacts, {"object": "a", "version": 1})
    truncate = ("streams", "truncate", "contacts", "--larger-than", "1B")
    assert contacts(*truncate, "--dry-run").err == "1 update is held, 1 would be; nothing was deleted (--dry-run)\n"
    assert contacts(*truncate, "--execute").err == "1 update was held, 1 is held now\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--older-than", "P1D"], 2, "error: truncate takes either --dry-run, "),
        (["--older-than", "P1D", "--dry-run", "--execute"], 2, "error: truncate takes either --dry-run, "),
        (["--execute"], 2, "error: truncate takes exactly one of --before, --older-than and --larger-than"),
        (["--execute", "--older-than", "P1D", "--larger-than", "1B"], 2, "error: truncate takes exactly one of "),
        (["--execute", "--older-than", "1d"], 2, "'1d' is no duration"),
        (["--execute", "--larger-than", "0"], 2, "'0' is no size"),
        (["--execute", "--before", "all"], 2, "'all' is no set of positions"),
        (["--execute", "--before", '{"4": 1}'], 1, "error: there is no shard 4: the stream has shards 0 to 3"),
        (["--execute", "--before", '{"0": 1000}'], 1, "error: shard 0 ends at 0: there is no update 1,000 yet"),
        (["--execute", "--before", '{"1": 1000}'], 1, "error: shard 1 has no update yet, so none before 1,000"),
    ],
)
def test_a_truncation_that_cannot_be_is_refused(contacts: Run, arguments: list[str], code: int, message: str) -> None:
    published(contacts, {"object": "a"})  # in shard 0
    result = contacts("streams", "truncate", "contacts", *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert objects(contacts) == ["a"]
