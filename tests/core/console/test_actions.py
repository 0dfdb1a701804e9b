"""Operators act on what they saw: nothing happens that was not shown, and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.console_client import Browser, ConsoleThread
from tests.support.console_scene import PASSWORD
from tidings.cluster import Cluster
from tidings.console.users import add_user, remove_user
from tidings.flow_status import read_records
from tidings.flows import Flow
from tidings.testing import eventually

FLOW = "cache/contacts/0"


def state(operator: Browser, flow: str = FLOW) -> str:
    found: str = operator.get(f"/api/flows/{flow}").json["state"]
    return found


def test_a_flow_is_stopped_and_goes_on(operator: Browser) -> None:
    preview = operator.act("stop", [FLOW])
    (change,) = preview.json["changes"]
    assert (change["flow"], change["before"]["state"], change["after"]["state"]) == (FLOW, "running", "stopped")
    assert preview.json["destructive"]
    assert state(operator) == "running"  # nothing has happened yet
    done = operator.execute(preview)
    assert (done.status, done.json["failed"]) == (200, [])
    assert done.json["done"][0]["after"]["state"] == "stopped"
    eventually(lambda: state(operator) == "stopped")
    assert operator.execute(operator.act("resume", [FLOW])).status == 200
    eventually(lambda: state(operator) == "running")


def test_a_flow_is_paused_and_goes_on(operator: Browser) -> None:
    assert operator.execute(operator.act("pause", [FLOW])).status == 200
    eventually(lambda: state(operator) == "paused")
    preview = operator.act("resume", [FLOW])
    assert preview.json["changes"][0]["after"]["state"] == "running"
    assert operator.execute(preview).status == 200
    eventually(lambda: state(operator) == "running")


def test_what_is_done_is_in_the_audit_with_who_did_it(operator: Browser) -> None:
    operator.execute(operator.act("stop", ["idle/contacts/3"]))
    operator.execute(operator.act("resume", ["idle/contacts/3"]))
    last, before = operator.get("/api/audit?size=2").json["items"]
    assert (last["action"], before["action"]) == ("flows resume", "flows stop")
    assert last["subject"] == ["idle/contacts/3"]
    assert last["who"].startswith("admin at 127.0.0.1")
    assert last["from"].startswith("tidings console on ")
    assert last["outcome"] == "done"
    assert operator.get("/api/audit?q=FLOWS%20STOP").json["items"][0]["number"] == before["number"]
    assert operator.get("/api/audit?q=nothing-of-that-kind").json["total"] == 0
    assert operator.get("/api/audit?size=0").status == 400


def test_a_flow_is_moved_and_let_go(operator: Browser, scene: Cluster) -> None:
    assert operator.execute(operator.act("move", [FLOW], to="east-1")).status == 200
    eventually(lambda: operator.get(f"/api/flows/{FLOW}").json["pinned_to"] == "east-1")
    assert operator.execute(operator.act("unpin", [FLOW])).status == 200
    eventually(lambda: operator.get(f"/api/flows/{FLOW}").json["pinned_to"] is None)


def test_a_flow_is_reset_once_it_is_stopped(operator: Browser) -> None:
    flow = "idle/contacts/1"
    owned = operator.act("reset", [flow], to="latest")
    assert "is owned by publisher 'east-1'" in owned.json["changes"][0]["warning"]
    refused = operator.execute(owned)
    assert (refused.status, "stop it first" in refused.error) == (409, True)
    operator.execute(operator.act("stop", [flow]))
    eventually(lambda: operator.get(f"/api/flows/{flow}").json["owner"] is None)
    preview = operator.act("reset", [flow], to="latest")
    head = operator.get(f"/api/flows/{flow}").json["head"]
    assert preview.json["destructive"]
    assert preview.json["changes"][0]["after"] == {"datamarker": head}
    done = operator.execute(preview).json
    assert (done["done"][0]["after"], done["failed"]) == ({"datamarker": head}, [])
    eventually(lambda: operator.get(f"/api/flows/{flow}").json["lag"] == 0)
    assert operator.get("/api/audit?size=1").json["items"][0]["action"] == "flows reset"
    back = operator.act("reset", [flow], to="earliest")
    operator.execute(operator.act("reset", [flow], to="shift-by", value="-1"))
    assert operator.execute(back).status == 409  # it was made from what was there before
    operator.execute(operator.act("resume", [flow]))


def test_an_update_is_shown_before_it_is_skipped(operator: Browser) -> None:
    flow = "idle/contacts/2"
    preview = operator.act("skip", [flow], position="1").json
    assert preview["title"] == f"Skip 1 of {flow}"
    assert preview["changes"][0]["update"]["seq"] == 1
    assert preview["changes"][0]["update"]["object"]
    done = operator.post("/api/actions/execute", {"plan": preview["plan"]}).json
    assert (done["done"][0]["flow"], done["failed"]) == (flow, [])
    assert operator.get("/api/audit?size=1").json["items"][0]["action"] == "flows skip"


def test_a_flow_tells_who_owned_it(operator: Browser) -> None:
    events = operator.get(f"/api/flows/{FLOW}").json["history"]
    assert {one["kind"] for one in events} >= {"owned", "assigned"}
    times = [one["time"] for one in events]
    assert times == sorted(times, reverse=True)
    assert {one["publisher"] for one in events if one["kind"] == "owned"} <= {"east-1", "west-1"}


def test_all_flows_of_an_application_are_chosen_at_once(operator: Browser) -> None:
    preview = operator.act("stop", [], application="idle", stream="contacts").json
    assert [change["flow"] for change in preview["changes"]] == [f"idle/contacts/{shard}" for shard in range(4)]


def test_a_plan_is_good_once(operator: Browser) -> None:
    preview = operator.act("move", [FLOW], to="east-1")
    assert operator.execute(preview).status == 200
    again = operator.execute(preview)
    assert (again.status, "preview it again" in again.error) == (409, True)
    operator.execute(operator.act("unpin", [FLOW]))


def test_a_plan_is_not_executed_on_what_was_changed_meanwhile(operator: Browser, scene: Cluster) -> None:
    preview = operator.act("stop", [FLOW, "cache/contacts/1"])
    operator.execute(operator.act("move", ["cache/contacts/1"], to="east-1"))
    refused = operator.execute(preview)
    assert refused.status == 409
    assert "cache/contacts/1" in refused.error
    assert state(operator) == "running"
    operator.execute(operator.act("unpin", ["cache/contacts/1"]))


def test_a_plan_is_its_makers(operator: Browser, served: object, viewer: Browser) -> None:
    preview = operator.act("stop", [FLOW])
    assert viewer.execute(preview).status == 403
    assert operator.post("/api/actions/execute", {"plan": 7}).status == 409


def test_a_plan_ends_with_the_sign_in_in_which_it_was_made(
    operator: Browser, served: ConsoleThread, users: Path
) -> None:
    add_user(users, "mallory", "operator", PASSWORD)
    first = served.browser("mallory")
    preview = first.act("stop", [FLOW])
    assert served.browser("mallory").execute(preview).status == 409
    add_user(users, "mallory", "viewer", PASSWORD)
    assert first.execute(preview).status == 401
    add_user(users, "mallory", "operator", PASSWORD)
    assert first.execute(preview).status == 401
    assert served.browser("mallory").execute(preview).status == 409
    remove_user(users, "mallory")
    assert state(operator) == "running"


def test_a_publisher_is_drained_if_another_can_take_its_flows(operator: Browser, scene: Cluster) -> None:
    preview = operator.act("drain", [], publisher="east-1")
    assert "no other publisher runs" in preview.json["warnings"][0]
    assert "start one first" in operator.execute(preview).error
    with scene.publisher(name="west-1"):
        eventually(lambda: len(operator.get("/api/publishers").json["items"]) == 2)
        assert operator.execute(operator.act("drain", [], publisher="east-1")).status == 200
        eventually(lambda: operator.get("/api/flows?publisher=west-1").json["total"] == 8)
        assert {one["state"] for one in operator.get("/api/map").json["publishers"]} == {"draining", "running"}
        assert operator.act("stop", [FLOW]).json["changes"][0]["before"]["owner"] == "west-1"
        assert operator.execute(operator.act("undrain", [], publisher="east-1")).status == 200
    eventually(lambda: operator.get("/api/flows?publisher=east-1").json["total"] == 8)


@pytest.mark.parametrize(
    ("action", "flows", "parameters", "told"),
    [
        ("explode", [FLOW], {}, "is no action"),
        ("stop", ["nobody/contacts/0"], {}, "there is no flow"),
        ("stop", ["cache/contacts"], {}, "is no flow"),
        ("stop", [7], {}, "is no flow"),
        ("stop", [], {}, "needs flows"),
        ("stop", [], {"application": "nobody"}, "for 1 to 10,000 flows"),
        ("move", [FLOW], {}, "needs 'to'"),
        ("move", [FLOW], {"to": "nobody"}, "no publisher 'nobody' runs"),
        ("move", [FLOW], {"to": 7}, "needs 'to'"),
        ("reset", [FLOW], {}, "needs 'to'"),
        ("reset", [FLOW], {"to": "nowhere"}, "nothing that a flow can be reset to"),
        ("reset", [FLOW], {"to": "datetime"}, "needs a value"),
        ("reset", [FLOW], {"to": "datetime", "value": "soon"}, "is no time"),
        ("reset", [FLOW], {"to": "position", "value": "999999"}, "the log ends at"),
        ("skip", [FLOW], {"position": "999999"}, "no update at"),
        ("skip", [FLOW], {"position": {}}, "is no position"),
        ("skip", [FLOW, "cache/contacts/1"], {"position": "1"}, "in one flow"),
        ("drain", [], {"publisher": "nobody"}, "no publisher 'nobody' runs"),
        ("undrain", [], {"publisher": "east-1"}, "does not drain"),
        ("drain", [], {}, "needs 'publisher'"),
    ],
)
def test_an_action_that_cannot_be_is_refused_in_a_sentence(
    operator: Browser, action: str, flows: list[str], parameters: dict[str, object], told: str
) -> None:
    refused = operator.act(action, flows, **parameters)
    assert refused.status == 400
    assert told in refused.error


def test_what_the_console_does_is_what_the_commands_see(operator: Browser, scene: Cluster) -> None:
    operator.execute(operator.act("move", [FLOW], to="east-1"))
    flow = Flow("cache", "contacts", 0)
    assert read_records(scene, application="cache")[flow].control.pin == "east-1"
    operator.execute(operator.act("unpin", [FLOW]))
