"""Whatever is asked for, the console answers, and in its own words."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.console_client import Browser

ODD = [
    *("", "0", "-1", "7", "99999999999999999999", "1e9", "NaN", "null", "[]", "{}", "[7, 2]", '{"0": 7}', '{"x": []}'),
    *("earliest", "contacts", "cache", "<script>", "a/b/c", "../..", "%00", "\0", "\N{SNOWMAN}", "x" * 2000, "(" * 300),
    *("object = x", "version > 1 and", "not not object exists", "payload ~ '.*'", "running,failed"),
]
TEXTS = st.one_of(st.sampled_from(ODD), st.text(max_size=20))
PLACES = st.sampled_from(["flows", "map", "overview", "streams/contacts/records", "subscribers", "audit", "streams"])
NAMES = st.sampled_from(
    ["shard", "after", "filter", "limit", "page", "size", "sort", "state", "q", "application", "stream", "publisher"]
)
VALUES = st.recursive(
    st.one_of(TEXTS, st.none(), st.booleans(), st.integers(), st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
ACTIONS = st.sampled_from(["move", "unpin", "pause", "resume", "stop", "reset", "skip", "drain", "undrain", "x"])
FLOWS = st.one_of(VALUES, st.lists(st.sampled_from(["cache/contacts/0", "idle/contacts/3", "cache/contacts/9"])))
# Threads of the console, which know nothing of it, draw numbers while it draws examples.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")
UNHURRIED = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(status: int, body: bytes) -> None:
    assert status in (200, 400, 404, 409), body
    found = json.loads(body)
    assert status == 200 or list(found) == ["error"]


@UNHURRIED
@given(place=PLACES, query=st.dictionaries(NAMES, TEXTS, max_size=4))
def test_odd_queries_are_answered(operator: Browser, place: str, query: dict[str, str]) -> None:
    asked = "&".join(f"{name}={quote(value, safe='', errors='replace')}" for name, value in query.items())
    reply = operator.get(f"/api/{place}?{asked}")
    check(reply.status, reply.body)


@UNHURRIED
@given(parts=st.lists(TEXTS, min_size=1, max_size=4))
def test_odd_paths_are_answered(operator: Browser, parts: list[str]) -> None:
    path = "/".join(quote(part, safe="", errors="replace") for part in parts)
    for place in ("flows", "streams"):
        reply = operator.get(f"/api/{place}/{path}")
        check(reply.status, reply.body)


@UNHURRIED
@given(
    action=ACTIONS,
    flows=FLOWS,
    parameters=st.one_of(
        VALUES, st.dictionaries(st.sampled_from(["to", "value", "position", "publisher", "application"]), VALUES)
    ),
)
def test_odd_actions_are_refused_or_previewed(operator: Browser, action: str, flows: Any, parameters: Any) -> None:
    body = {"action": action, "flows": flows, "parameters": parameters}
    raw = json.dumps(body).encode("utf-8", errors="surrogatepass")
    reply = operator.request("POST", "/api/actions/preview", raw)
    check(reply.status, reply.body)
