"""A payload is shown as what it says, as far as that can be told, and never is more than a page can bear."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.avro_table import items
from tests.support.console_client import Browser, ConsoleThread
from tests.support.console_scene import OPERATOR, make_users
from tidings.cluster import Cluster
from tidings.console.payloads import MAX_JSON_BYTES, SHOWN_BYTES, payload_json
from tidings.console.records import MAX_PAGE_BYTES
from tidings.errors import InvalidUpdate
from tidings.log_opening import payload_form
from tidings.logs import PayloadForm
from tidings.testing import eventually

MARKUP = "<img src=x onerror=alert(1)>"
NAMED = {"id": 1, "name": MARKUP, "price": "10.50", "day": "2026-03-01", "raw": "\\x00ff"}


def deep(payload: bytes) -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


def refused(payload: bytes) -> None:
    raise InvalidUpdate("no schema has that fingerprint")


def records(browser: Browser, stream: str) -> Any:
    return eventually(lambda: browser.get(f"/api/streams/{stream}/records?after=earliest").json.get("items"))


@pytest.fixture
def console(cluster: Cluster, tmp_path: Path) -> ConsoleThread:
    return ConsoleThread(cluster, make_users(tmp_path / "users.json"))


def test_rows_in_avro_are_shown_as_what_they_say(cluster: Cluster, console: ConsoleThread, tmp_path: Path) -> None:
    items(cluster, tmp_path, MARKUP)
    with console:
        (found,) = records(console.browser(OPERATOR), "items")
        assert found["payload"] == {"as": "json", "form": "Avro", "value": NAMED, "truncated": False}
        assert found["size"] < len(json.dumps(NAMED))


def test_avro_that_is_not_decoded_is_bytes_with_the_reason_beside_rows_that_are(
    cluster: Cluster, console: ConsoleThread, tmp_path: Path
) -> None:
    items(cluster, tmp_path, "x" * (MAX_JSON_BYTES + 1), MARKUP)
    with console:
        large, other = records(console.browser(OPERATOR), "items")
        assert other["payload"]["value"]["name"] == MARKUP
        shown = large["payload"]
        assert (shown["as"], shown["truncated"], large["size"] > MAX_JSON_BYTES) == ("bytes", True, True)
        assert base64.b64decode(shown["value"]).startswith(b"\xc3\x01")  # the beginning, as it is
        assert len(base64.b64decode(shown["value"])) == SHOWN_BYTES
        assert f"{large['size']:,} bytes" in shown["reason"]


def test_an_update_in_avro_that_is_to_be_skipped_is_shown_as_what_it_says(
    cluster: Cluster, console: ConsoleThread, tmp_path: Path
) -> None:
    items(cluster, tmp_path, MARKUP)
    cluster.create_application("cache", ["items"], start="earliest")
    with console:
        browser = console.browser(OPERATOR)
        eventually(lambda: browser.get("/api/flows").json["total"] == 1)
        (change,) = browser.act("skip", ["cache/items/0"], position=[0, 0]).json["changes"]
        assert change["update"]["payload"]["value"] == NAMED


def test_only_streams_whose_definition_tells_it_are_decoded(cluster: Cluster, tmp_path: Path) -> None:
    found = payload_form(items(cluster, tmp_path, "pen").definition)
    assert found is not None
    assert found.name == "Avro"
    assert payload_form(cluster.create_stream("contacts", 1).definition) is None


def test_a_page_of_large_payloads_ends_and_goes_on_at_the_next_one(cluster: Cluster, console: ConsoleThread) -> None:
    count, payload = 60, json.dumps({"text": "x" * (MAX_JSON_BYTES - 100)}).encode()
    with cluster.create_stream("large", 1).producer() as producer:
        producer.publish_many([{"object": str(n), "payload": payload} for n in range(count)]).result()
    with console:
        browser, after, seen = console.browser(OPERATOR), "earliest", list[int]()
        eventually(lambda: browser.get("/api/streams/large").status == 200)
        while after != "None":
            reply = browser.get(f"/api/streams/large/records?shard=0&limit=500&after={after}")
            assert len(reply.body) < MAX_PAGE_BYTES + 2 * MAX_JSON_BYTES
            seen += [one["seq"] for one in reply.json["items"]]
            after = str(reply.json["next"])
        assert seen == list(range(count))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"price": Decimal("10.50")}, {"price": "10.50"}),
        ([dt.date(2026, 3, 1), dt.time(1, 2)], ["2026-03-01", "01:02:00"]),
        (dt.datetime(2026, 3, 1, tzinfo=dt.UTC), "2026-03-01T00:00:00+00:00"),
        ([float("nan"), float("-inf")], ["NaN", "-Infinity"]),
        ([b"\x00\xff", uuid.UUID(int=7)], ["\\x00ff", "00000000-0000-0000-0000-000000000007"]),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_what_json_has_no_word_for_is_shown_as_text(said: Any, shown: Any) -> None:
    assert payload_json(b"\x00", PayloadForm("odd", lambda _: said))["value"] == shown


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (refused, "no schema has that fingerprint"),
        (lambda payload: payload[7], "IndexError: index out of range"),
        (lambda _: "x" * MAX_JSON_BYTES, f"what it says has {MAX_JSON_BYTES + 2:,} bytes"),
        (lambda _: {b"a": 1}, "TypeError: keys must be"),
        (deep, "RecursionError"),
    ],
)
def test_whatever_a_decoder_does_the_payload_is_shown(read: Callable[[bytes], Any], reason: str) -> None:
    found = payload_json(b"\x00\xff", PayloadForm("odd", read))
    assert (found["as"], base64.b64decode(found["value"])) == ("bytes", b"\x00\xff")
    assert found["reason"].startswith(reason)
