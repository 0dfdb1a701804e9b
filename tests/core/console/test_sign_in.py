"""Nobody sees or does anything who is not signed in, and may."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.console_client import PATIENCE, Browser, ConsoleThread
from tests.support.console_scene import OPERATOR, PASSWORD, VIEWER, make_users
from tidings.cluster import Cluster
from tidings.console.sign_in import FailureLimit, SignIns
from tidings.console.users import Users, add_user, remove_user
from tidings.testing import eventually

ANSWERS = [
    f"/api/{name}"
    for name in (
        *("me", "overview", "map", "flows", "flows/cache/contacts/0", "streams", "streams/contacts"),
        *("streams/contacts/records", "applications", "publishers", "subscribers", "caravans", "pipelines"),
        *("thialfi", "gc", "audit", "events"),
    )
]


@pytest.mark.parametrize("path", ANSWERS)
def test_who_is_not_signed_in_is_told_nothing(served: ConsoleThread, path: str) -> None:
    stranger = served.browser()
    assert stranger.get(path).status == 401
    assert stranger.get(path).json == {"error": "sign in first"}
    stranger.cookies = {f"tidings-console-{served.url.rpartition(':')[2]}": "x" * 43}
    assert stranger.get(path).status == 401


def test_a_cookie_is_for_this_console_alone(served: ConsoleThread) -> None:
    browser = served.browser()
    cookie = browser.sign_in().headers["Set-Cookie"]
    assert {part.strip().partition("=")[0] for part in cookie.split(";")[1:]} == {
        "HttpOnly",
        "Max-Age",
        "Path",
        "SameSite",
    }
    assert "SameSite=Strict" in cookie
    assert "Path=/" in cookie
    assert len(next(iter(browser.cookies.values()))) == 43  # 256 bits


def test_a_cookie_is_secure_behind_a_proxy_that_speaks_tls(served: ConsoleThread) -> None:
    browser = served.browser()
    assert "Secure" in browser.sign_in(Origin=f"https://{browser.place}").headers["Set-Cookie"]


def test_a_wrong_password_and_an_unknown_user_are_told_alike(served: ConsoleThread) -> None:
    browser = served.browser()
    wrong, unknown = browser.sign_in(password="not this one"), browser.sign_in(user="nobody")
    assert (wrong.status, unknown.status) == (401, 401)
    assert wrong.body == unknown.body
    assert "Set-Cookie" not in wrong.headers
    assert browser.sign_in().status == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"user": 7, "password": "x"}', b'{"user": "admin"}', b"\xff"])
def test_nonsense_signs_nobody_in(served: ConsoleThread, body: bytes) -> None:
    assert served.browser().request("POST", "/api/sign-in", body).status == 400


def test_signing_out_ends_the_session(served: ConsoleThread) -> None:
    browser = served.browser(VIEWER)
    kept = dict(browser.cookies)
    assert browser.post("/api/sign-out").status == 204
    browser.cookies = kept
    refused = browser.get("/api/me")
    assert (refused.status, refused.json["ended"]) == (401, True)


POSTS = ["/api/sign-out", "/api/actions/preview", "/api/actions/execute"]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "headers",
    [
        {"X_Tidings_CSRF": None},
        {"X_Tidings_CSRF": "x"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/x-www-form-urlencoded"},
    ],
    ids=str,
)
def test_what_a_page_of_others_sends_changes_nothing(
    operator: Browser, path: str, headers: dict[str, str | None]
) -> None:
    assert operator.post(path, {}, **headers).status == 403
    assert operator.get("/api/me").status == 200


def test_a_page_of_others_signs_nobody_in(served: ConsoleThread) -> None:
    assert served.browser().sign_in(Origin="https://evil.example").status == 403


def test_the_token_of_another_session_is_worth_nothing(operator: Browser, viewer: Browser) -> None:
    assert operator.post("/api/actions/preview", {}, X_Tidings_CSRF=viewer.csrf).status == 403


def test_a_viewer_looks_and_does_not_act(viewer: Browser) -> None:
    assert viewer.get("/api/me").json["role"] == "viewer"
    assert viewer.get("/api/flows").status == 200
    refused = viewer.act("stop", ["cache/contacts/0"])
    assert (refused.status, refused.error) == (403, "that is for operators; you are a viewer")
    assert viewer.post("/api/actions/execute", {"plan": "x"}).status == 403


def test_nobody_acts_at_a_console_that_is_read_only(scene: Cluster, users: Path) -> None:
    with ConsoleThread(scene, users, read_only=True) as console:
        browser = console.browser(OPERATOR)
        me = browser.get("/api/me").json
        assert (me["role"], me["read_only_reason"]) == ("viewer", "it runs with --read-only")
        assert console.browser(VIEWER).get("/api/me").json["read_only_reason"] is None
        assert browser.act("stop", ["cache/contacts/0"]).error == "this console is read-only"


def test_too_many_failures_are_not_even_looked_at(scene: Cluster, users: Path) -> None:
    with ConsoleThread(scene, users) as console:
        console.console._by_address = FailureLimit(3, 60.0)
        browser = console.browser()
        assert [browser.sign_in(password="wrong one").status for _ in range(4)] == [401, 401, 401, 429]
        refused = browser.sign_in()
        assert refused.status == 429
        assert 0 < int(refused.headers["Retry-After"]) <= 60


def test_a_session_ends_when_it_is_not_used(scene: Cluster, users: Path) -> None:
    with ConsoleThread(scene, users, idle_s=0.5) as console:
        browser = console.browser()
        assert browser.post("/api/sign-in", {"user": VIEWER, "password": PASSWORD}).status == 200
        held = console.console.sign_ins
        eventually(lambda: not any(map(held.good, list(held._sessions.values()))))
        assert browser.get("/api/me").status == 401


def test_a_page_is_told_that_its_sign_in_has_ended(scene: Cluster, users: Path) -> None:
    with ConsoleThread(scene, users, absolute_s=1.0) as console, console.browser(VIEWER).events() as events:
        assert next(kind for kind, _ in events if kind not in ("overview", "map", "rights")) == "expired"


def test_a_page_that_is_open_looks_when_its_sign_in_ends_and_does_not_idle(
    sign_ins: SignIns, users: Path, clock: Clock
) -> None:
    session = sign_ins.begin(Users(users).all()[VIEWER])
    while (left := sign_ins.left_open_s(session)) > 0:
        assert sign_ins.find(session.key) is session
        clock.now += left
    assert clock.now == 600.0
    assert sign_ins.find(session.key) is None


def test_a_connection_ends_with_the_sign_in_of_its_page(scene: Cluster, users: Path) -> None:
    with ConsoleThread(scene, users, absolute_s=1.0, request_s=3600.0) as console:
        browser = console.browser(VIEWER)
        connection = http.client.HTTPConnection(browser.place, timeout=PATIENCE)
        with contextlib.closing(connection):
            cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
            connection.request("GET", "/api/events", headers={"Cookie": cookie})
            assert connection.getresponse().read().endswith(b"event: expired\ndata: {}\n\n")
            assert connection.sock.recv(1) == b""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sign_ins(users: Path, clock: Clock) -> SignIns:
    return SignIns(Users(users), idle_s=60.0, absolute_s=600.0, most=5, most_per_user=3, clock=clock)


def test_every_session_ends(sign_ins: SignIns, users: Path, clock: Clock) -> None:
    user = Users(users).all()[VIEWER]
    session = sign_ins.begin(user)
    for _ in range(11):
        clock.now += 50.0
        assert sign_ins.find(session.key) is session
    clock.now += 50.0
    assert sign_ins.find(session.key) is None
    assert sign_ins.count() == 0


def test_sessions_are_so_many_and_no_more(sign_ins: SignIns, users: Path) -> None:
    found = Users(users).all()
    mine = [sign_ins.begin(found[VIEWER]) for _ in range(4)]
    assert [sign_ins.good(one) for one in mine] == [False, True, True, True]
    for _ in range(3):
        sign_ins.begin(found[OPERATOR])
    assert sign_ins.count() == 5


CHANGES: dict[str, Callable[[Path], None]] = {
    "removed": lambda path: remove_user(path, VIEWER),
    "given another password": lambda path: add_user(path, VIEWER, "viewer", "another password"),
    "given another role": lambda path: add_user(path, VIEWER, "operator", PASSWORD),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_user_is_signed_out_when_it_is(tmp_path: Path, clock: Clock, change: str) -> None:
    path = make_users(tmp_path / "users.json")
    users = Users(path)
    sign_ins = SignIns(users, idle_s=60.0, absolute_s=600.0, most=5, most_per_user=3, clock=clock)
    viewer, operator = sign_ins.begin(users.all()[VIEWER]), sign_ins.begin(users.all()[OPERATOR])
    CHANGES[change](path)
    assert sign_ins.find(viewer.key) is None
    assert sign_ins.find(operator.key) is operator
