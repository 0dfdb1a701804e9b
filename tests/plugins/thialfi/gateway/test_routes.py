"""The logic of routes, without a socket: what follows from clients, flows and other gateways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tidings_thialfi.gateway.effects import CloseLink, Effect, MarkOffline, MarkOnline, OpenLink, SessionDisplaced
from tidings_thialfi.gateway.relay import Link, RelayAnswer, Watchers
from tidings_thialfi.gateway.routes import ANNOUNCEMENT_INTERVAL_S, Routes
from tidings_thialfi.gateway.sessions import Session, Sessions

URLS = {"g2": "http://g2", "g3": "http://g3"}


class Pipe:
    """Keeps what would be sent to another gateway."""

    def __init__(self, peer: str = "") -> None:
        self.peer = peer
        self.sent: list[str] = []

    def send(self, text: str) -> bool:
        self.sent.append(text)
        return True


class Stand:
    """Routes of a gateway `g1`, of which the tests know the sessions and the clock."""

    def __init__(self, secret: str | None = "secret") -> None:
        self.now = 0.0
        self.sessions = Sessions()
        self.watchers = Watchers()
        self.routes = Routes("g1", 4, self.sessions, self.watchers, secret=secret, clock=lambda: self.now)

    def come(self, client: int = 7) -> tuple[Session, Sequence[Effect]]:
        session = Session(client, "web-1", "", object(), self.now, self.sessions.outbox())
        self.sessions.begin(session)
        return session, self.routes.session_began(session)

    def held_by(self, name: str, client: int = 7) -> Sequence[Effect]:
        return self.routes.flows_placed({self.routes.shard(client): name}, URLS)

    def linked(self) -> tuple[Session, Link]:
        """A client whose flow is with g2, which has confirmed it."""
        self.held_by("g2")
        session, (opened,) = self.come()
        assert isinstance(opened, OpenLink)
        self.routes.relay_answered(opened.link, RelayAnswer("have", [7]))
        return session, opened.link


def test_a_client_is_marked_online_when_its_flow_is_here() -> None:
    stand = Stand()
    session, effects = stand.come()
    assert (effects, session.routed) == ((), False)
    assert list(stand.routes.flow_opened(stand.routes.shard(7))) == [MarkOnline(session)]
    newer, effects = stand.come()
    assert list(effects) == [MarkOnline(newer)]


def test_a_client_whose_flow_is_elsewhere_is_marked_online_once_the_holder_has_confirmed_it() -> None:
    stand = Stand()
    session, _ = stand.come()
    (opened,) = stand.held_by("g2")
    assert isinstance(opened, OpenLink)
    assert (opened.link.url, opened.link.wanted, session.routed) == ("http://g2", {7}, False)
    assert list(stand.routes.relay_answered(opened.link, RelayAnswer("have", [7]))) == [MarkOnline(session)]


def test_without_a_secret_there_is_no_route_to_another_gateway() -> None:
    stand = Stand(secret=None)
    stand.come()
    assert (list(stand.held_by("g2")), stand.routes.unrouted, stand.routes.elsewhere) == ([], 1, True)


def test_a_flow_that_moves_takes_its_clients_to_another_link_and_the_first_is_closed() -> None:
    stand = Stand()
    session, link = stand.linked()
    opened, closed = stand.held_by("g3")
    assert isinstance(opened, OpenLink)
    assert (opened.link.url, opened.link.wanted, session.routed) == ("http://g3", {7}, False)
    assert closed == CloseLink(link)


def test_a_flow_that_comes_here_needs_no_link() -> None:
    stand = Stand()
    session, link = stand.linked()
    assert list(stand.routes.flow_opened(stand.routes.shard(7))) == [MarkOnline(session)]
    assert list(stand.routes.retry()) == [CloseLink(link)]


def test_a_client_that_has_come_elsewhere_is_displaced_here() -> None:
    stand = Stand()
    session, link = stand.linked()
    assert list(stand.routes.relay_answered(link, RelayAnswer("lost", [7]))) == [SessionDisplaced(session)]
    assert link.wanted == set()


def test_a_client_that_another_gateway_wants_is_displaced_here_and_confirmed_there() -> None:
    stand, pipe = Stand(), Pipe()
    session, _ = stand.come()
    stand.routes.flow_opened(stand.routes.shard(7))
    other: Any = pipe
    assert list(stand.routes.relay_frame(other, "want", [7])) == [SessionDisplaced(session)]
    assert (pipe.sent, 7 in stand.watchers) == (['["have", ["7"]]'], True)
    stand.come()
    assert (pipe.sent[1:], 7 in stand.watchers) == (['["lost", ["7"]]'], False)


def test_a_client_that_leaves_is_marked_offline_and_wanted_no_more() -> None:
    stand = Stand()
    session, link = stand.linked()
    stand.sessions.end(session)
    assert list(stand.routes.session_ended(session)) == [MarkOffline(session)]
    assert list(stand.routes.retry()) == [CloseLink(link)]


def test_a_client_that_stays_is_announced_again_and_one_without_a_route_is_not() -> None:
    stand = Stand()
    session, link = stand.linked()
    assert list(stand.routes.announce_again(ANNOUNCEMENT_INTERVAL_S - 1)) == []
    stand.now = ANNOUNCEMENT_INTERVAL_S
    assert list(stand.routes.announce_again(stand.now)) == [MarkOnline(session)]
    assert list(stand.routes.announce(session)) == [MarkOnline(session)]
    stand.routes.relay_answered(link, RelayAnswer("not", [7]))
    assert list(stand.routes.announce(session)) == []


def test_a_late_refusal_does_not_take_the_route_of_a_client_that_has_come_again() -> None:
    stand = Stand()
    _, link = stand.linked()
    again, _ = stand.come()  # its older channel is open still: the holder is asked anew
    assert list(stand.routes.relay_answered(link, RelayAnswer("not", [7]))) == []
    assert list(stand.routes.relay_answered(link, RelayAnswer("have", [7]))) == []
    assert (list(stand.routes.retry()), link.wanted) == ([], {7})  # so it is asked once more
    assert list(stand.routes.relay_answered(link, RelayAnswer("have", [7]))) == [MarkOnline(again)]


def test_a_late_confirmation_is_none_once_the_holder_was_told_to_send_nothing_more() -> None:
    stand = Stand()
    stand.held_by("g2")
    session, (opened,) = stand.come()
    assert isinstance(opened, OpenLink)
    stand.held_by("g1")  # where it has not been opened yet
    assert list(stand.routes.relay_answered(opened.link, RelayAnswer("have", [7]))) == []
    assert not session.routed


def test_a_gateway_that_vanishes_and_comes_again_with_its_flows_is_asked_again() -> None:
    stand = Stand()
    session, link = stand.linked()
    held = {stand.routes.shard(7): "g2"}
    assert list(stand.routes.flows_placed(held, {})) == [CloseLink(link)]
    assert not session.routed
    (opened,) = stand.routes.flows_placed(held, URLS)
    assert isinstance(opened, OpenLink)
    assert opened.link.wanted == {7}
    assert list(stand.routes.relay_answered(opened.link, RelayAnswer("have", [7]))) == [MarkOnline(session)]


def test_a_gateway_that_is_elsewhere_now_is_asked_for_all_clients_again() -> None:
    stand = Stand()
    session, link = stand.linked()
    other = next(client for client in range(8, 100) if stand.routes.shard(client) == stand.routes.shard(7))
    stand.come(other)
    effects = list(stand.routes.flows_placed({stand.routes.shard(7): "g2"}, {"g2": "http://elsewhere"}))
    assert effects[0] == CloseLink(link)
    assert isinstance(effects[1], OpenLink)
    assert (effects[1].link.wanted, session.routed) == ({7, other}, False)


def pipe(peer: str) -> Any:
    return Pipe(peer)


def test_who_asks_again_does_not_take_a_client_from_who_came_since() -> None:
    for elsewhere in (True, False):
        stand = Stand()
        stand.routes.flow_opened(stand.routes.shard(7))
        old, newer = pipe("g2"), pipe("g3")
        stand.routes.relay_frame(old, "want", [7])
        stand.watchers.leave(old)  # the line is cut
        if elsewhere:
            stand.routes.relay_frame(newer, "want", [7])
        else:
            stand.come()
        again = pipe("g2")
        assert list(stand.routes.relay_frame(again, "again", [7])) == []
        assert again.sent == ['["lost", ["7"]]']
        assert newer.sent == (['["have", ["7"]]'] if elsewhere else [])


def test_who_asks_again_over_a_new_line_has_its_clients_still() -> None:
    stand = Stand()
    stand.routes.flow_opened(stand.routes.shard(7))
    old, again = pipe("g2"), pipe("g2")  # the old line is silent, and nobody knows
    stand.routes.relay_frame(old, "want", [7])
    stand.routes.relay_frame(again, "again", [7])
    assert again.sent == ['["have", ["7"]]']
    assert old.sent == ['["have", ["7"]]']


def test_a_client_whose_route_was_there_is_asked_for_again_and_a_new_one_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand = Stand()
    _, link = stand.linked()
    asked: list[list[str]] = []
    monkeypatch.setattr(link, "_put", asked.append)
    stand.routes.relay_answered(link, RelayAnswer("not", [7]))
    stand.routes.retry()
    assert asked == [['["again", ["7"]]']]
    stand.come()
    assert asked[1:] == [['["drop", ["7"]]'], ['["want", ["7"]]']]
