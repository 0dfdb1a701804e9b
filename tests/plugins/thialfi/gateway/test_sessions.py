"""The logic of sessions, without a socket: whatever order things come in."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidings_thialfi.gateway.client_outbox import Budget, ClientOutbox
from tidings_thialfi.gateway.notification_rows import NotificationRow, take_in
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.sessions import Session, Sessions
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import Ack, FromClient, Notice, Status, SyncPart
from tidings_thialfi.protocol.rate_limit import Bucket

OPTIONS = GatewayOptions()
names = st.sampled_from(["alice", "bob", "carol"])


def session(client: int = 7) -> Session:
    return Session(client, "web-1", "", object(), 0.0, Sessions().outbox())


def ops(made: tuple[dict[str, Any], ...]) -> list[tuple[str, str | None, int | None]]:
    return [(row["attributes"]["op"], row["attributes"].get("object"), row["version"]) for row in made]


@given(st.lists(st.tuples(st.booleans(), names, st.integers(0, 9))))
def test_what_is_kept_is_the_newest_that_is_not_acknowledged(
    steps: list[tuple[bool, str, int]],
) -> None:
    one, model = session(), dict[str, int]()
    for acknowledged, name, version in steps:
        if acknowledged:
            one.settle(FromClient("t", acknowledge=(Ack(name, version),)))
            if name in model and model[name] <= version:
                del model[name]
        else:
            one.outbox.notify(Notice(name, version))
            model[name] = max(version, model.get(name, 0))
        assert {key[0]: kept.notice.version for key, kept in one.outbox.pending.items()} == model


@given(st.permutations(range(4)), st.integers(0, 3))
def test_the_parts_of_a_sync_make_one_in_any_order_with_repeats(order: list[int], repeated: int) -> None:
    one = session()
    parts = [SyncPart(20, part, 4, (f"o{part}",)) for part in range(4)]
    made: list[tuple[str, str | None, int | None]] = []
    for part in [*order[:repeated], *order]:
        made += ops(one.take(FromClient("t", sync=parts[part]), 0.0, OPTIONS).rows)
    assert made == [*(("register", f"o{part}", 20) for part in range(4)), ("sync", None, 20)]


def test_a_late_part_of_an_earlier_sync_changes_nothing() -> None:
    one = session()
    for part in (SyncPart(30, 0, 2, ("new",)), SyncPart(20, 1, 2, ("old",))):
        assert one.take(FromClient("t", sync=part), 0.0, OPTIONS).rows == ()
    made = one.take(FromClient("t", sync=SyncPart(30, 1, 2, ("newer",))), 0.0, OPTIONS).rows
    assert [name for _, name, _ in ops(made)] == ["new", "newer", None]


def test_a_sync_is_asked_for_only_when_nothing_is_under_way() -> None:
    one, mine = session(), Digest.of(7, ["alice"])
    beat = FromClient("t", mine, heartbeat=True)

    def asked(now: float, message: FromClient = beat) -> bool:
        answer = one.take(message, now, OPTIONS).answer
        return answer is not None and answer.sync

    assert not asked(0.0)  # the service's digest is not known
    one.take_digest(Digest(), 5)
    assert asked(1.0)
    assert not asked(2.0)  # it may be on its way
    assert asked(20.0)
    one.take(FromClient("t", mine, register=(("alice", 9),)), 21.0, OPTIONS)
    assert not asked(40.0)  # the stage has not seen number 9
    one.take_digest(mine, 9)
    assert not asked(60.0)
    one.take_digest(Digest(), 10)
    assert asked(80.0)


def test_an_older_digest_does_not_replace_a_newer_one() -> None:
    one = session()
    one.take_digest(Digest(2, 2), 9)
    one.take_digest(Digest(1, 1), 8)
    assert (one.digest, one.seen) == (Digest(2, 2), 9)


def test_acknowledgements_become_rows_of_their_kind() -> None:
    acks = (Ack("alice", 3), Ack("bob", 4, unknown=True))
    made = session().take(FromClient("t", acknowledge=acks), 0.0, OPTIONS).rows
    assert ops(made) == [("acknowledge", "alice", 3), ("acknowledge-unknown", "bob", 4)]


def test_refused_objects_fail_and_are_not_written() -> None:
    effects = session().take(FromClient("t", register=(("alice", 1), ("bob", 2))), 0.0, OPTIONS, {"bob"})
    assert ops(effects.rows) == [("register", "alice", 1)]
    assert [one.name for one in effects.failed] == ["bob"]


@given(st.lists(st.tuples(st.sampled_from("rus"), st.sampled_from("abcdefg"), st.booleans()), max_size=40))
def test_a_client_within_the_limit_is_never_refused_however_often_it_repeats(
    steps: list[tuple[str, str, bool]],
) -> None:
    """It tells its digest, comes on other channels, and hears the stage's digest now and then."""
    one, intended = session(), set[str]()
    options = GatewayOptions(max_registrations=4)
    for number, (step, name, told) in enumerate(steps, 1):
        if step == "s":
            one = session()  # another channel, on which it sends all again
            one.take_digest(Digest.of(7, intended), number)
        elif step == "r" and (name in intended or len(intended) < 4):
            intended.add(name)
        elif step == "u":
            intended.discard(name)
            one.take(FromClient("t", Digest.of(7, intended), unregister=((name, number),)), 0.0, options)
        every = tuple((wanted, number) for wanted in sorted(intended))
        outcome = one.take(FromClient("t", Digest.of(7, intended), register=every), 0.0, options)
        assert outcome.failed == ()
        if told:
            one.take_digest(Digest.of(7, intended), number)


def test_who_intends_more_than_it_may_is_refused_what_is_beyond_on_whichever_channel() -> None:
    options = GatewayOptions(max_registrations=4)
    one = session()
    one.take_digest(Digest(3, 0), 9)  # of an earlier channel
    outcome = one.take(FromClient("t", Digest(6, 0), register=(("d", 10), ("e", 11), ("f", 12))), 0.0, options)
    assert [failure.name for failure in outcome.failed] == ["e", "f"]


def test_who_says_that_it_intends_less_than_it_does_is_refused_once_the_stage_has_counted() -> None:
    options = GatewayOptions(max_registrations=4)
    one = session()
    one.take_digest(Digest(4, 0), 0)
    outcome = one.take(FromClient("t", Digest(1, 0), register=(("a", 1), ("b", 2))), 0.0, options)
    assert outcome.failed == ()
    one.take_digest(Digest(6, 0), 2)
    outcome = one.take(FromClient("t", Digest(1, 0), register=(("c", 3),)), 0.0, options)
    assert [failure.transient for failure in outcome.failed] == [True]


def sent(outbox: ClientOutbox, now: float = 0.0) -> list[str]:
    piece = outbox.next(now)
    return [] if piece is None else [one.name for one in piece.message.notify]


def test_what_is_due_is_sent_again_until_acknowledged() -> None:
    sessions, one = Sessions(), session()
    sessions.begin(one)
    one.outbox.notify(Notice("alice", 1))
    assert sent(one.outbox) == ["alice"]
    sessions.track(one, 0.0)
    assert sessions.due(59.0, 60.0) == []
    assert sessions.due(60.0, 60.0) == [one]
    sessions.repeat(one, 60.0, 60.0)
    assert sent(one.outbox, 60.0) == ["alice"]
    assert sessions.due(61.0, 60.0) == []
    one.settle(FromClient("t", acknowledge=(Ack("alice", 1),)))
    sessions.track(one, 70.0)
    assert sessions.due(999.0, 60.0) == []


def test_more_than_may_be_kept_is_asked_for_when_the_rest_is_acknowledged() -> None:
    one = session()
    one.outbox = ClientOutbox(300, 300, Budget(1000))
    for name in ("alice", "bob"):
        one.outbox.notify(Notice(name, 1))
    assert list(one.outbox.pending) == [("alice", False)]
    assert one.settle(FromClient("t", acknowledge=(Ack("alice", 1),)))
    assert not one.settle(FromClient("t", acknowledge=(Ack("bob", 1),)))


outbox_steps = st.one_of(
    st.tuples(st.just("notify"), names, st.integers(0, 9)),
    st.tuples(st.just("acknowledge"), names, st.integers(0, 9)),
    st.tuples(st.sampled_from(["register", "unregister", "next", "repeat", "withhold", "clear"]), names, st.just(0)),
)


@given(st.lists(outbox_steps, max_size=40), st.integers(260, 1200), st.integers(260, 1200))
def test_an_outbox_holds_no_more_than_it_may_and_gives_all_of_it_back(
    steps: list[tuple[str, str, int]], most: int, window: int
) -> None:
    shared = Budget(2_000)
    other, one = ClientOutbox(2_000, 2_000, shared), ClientOutbox(most, window, shared)
    other.notify(Notice("of another client", 1))
    taken = 2_000 - shared.left
    for now, (step, name, version) in enumerate(steps):
        match step:
            case "notify":
                one.notify(Notice(name, version, payload=b"x" * (10 * version)))
            case "acknowledge":
                one.acknowledge(Ack(name, version))
            case "register" | "unregister":
                one.report(Status(name, step == "register", now))
            case "next":
                one.next(float(now))
            case "repeat":
                one.repeat(float(now), 3.0)
            case "withhold" if (name, False) in one.pending:
                one.withhold(one.pending[name, False].notice)
            case "clear":
                one.clear()
        assert 0 <= 2_000 - taken - shared.left <= most
        under_way = [kept.cost for kept in one.pending.values() if kept.under_way]
        assert sum(under_way) <= window or len(under_way) == 1
    one.clear()
    assert shared.left == 2_000 - taken


@given(st.lists(st.integers(0, 900), max_size=30), st.integers(300, 3_000))
def test_whatever_the_window_all_that_is_kept_is_sent_as_it_is_acknowledged(sizes: list[int], window: int) -> None:
    outbox, heard = ClientOutbox(10**6, window, Budget(10**6)), set[str]()
    for number, size in enumerate(sizes):
        outbox.notify(Notice(f"o{number}", 1, payload=b"x" * size))
    for _ in range(len(sizes)):
        some = sent(outbox)
        assert sent(outbox) == []
        heard |= set(some)
        for name in some:
            outbox.acknowledge(Ack(name, 1))
    assert heard == {f"o{number}" for number in range(len(sizes))}


def test_the_newest_session_of_a_client_has_it_and_the_older_cannot_end_it() -> None:
    sessions, old, new = Sessions(), session(), session()
    assert sessions.begin(old) is None
    assert sessions.begin(new) is old
    assert not sessions.end(old)
    assert sessions.get(7) is new
    assert sessions.end(new)
    assert len(sessions) == 0


def test_silent_clients_are_found() -> None:
    sessions, one = Sessions(), session()
    sessions.begin(one)
    assert sessions.silent(4799.0, 4800.0) == []
    one.take(FromClient("t", heartbeat=True), 100.0, OPTIONS)
    assert sessions.silent(4800.0, 4800.0) == []
    assert sessions.silent(4900.0, 4800.0) == [one]


def test_rows_of_a_batch_become_one_message_with_the_newest_versions() -> None:
    rows = [
        NotificationRow(7, stream_schema.NOTIFY, 1, "alice"),
        NotificationRow(7, stream_schema.REGISTERED, 5, "alice"),
        NotificationRow(7, stream_schema.NOTIFY, 2, "alice"),
        NotificationRow(7, stream_schema.UNKNOWN, 9, "alice"),
        NotificationRow(7, stream_schema.DIGEST, 5, "", 1, 77),
        NotificationRow(7, "of a later version", 1),
    ]
    one = session()
    assert take_in(one, rows) is None
    piece = one.outbox.next(0.0)
    assert piece is not None
    made = piece.message
    assert made.notify == (Notice("alice", 2), Notice("alice", 9, unknown=True))
    assert (made.digest, made.seen) == (Digest(1, 77), 5)
    assert [status.name for status in made.status] == ["alice"]


@given(st.lists(st.floats(0, 10), min_size=1), st.integers(1, 5))
def test_a_bucket_never_lets_through_more_than_its_rate(pauses: list[float], burst: int) -> None:
    bucket, now, taken = Bucket(rate=2.0, burst=burst), 0.0, 0
    for pause in pauses:
        now += pause
        taken += bucket.take(now)
        assert taken <= burst + 2.0 * now + 1e-6


@given(st.integers(0, 2**63 - 1), st.text(max_size=20), st.none() | st.binary(max_size=20))
def test_rows_survive_the_way_between_gateways(client: int, name: str, payload: bytes | None) -> None:
    one = NotificationRow(client, stream_schema.NOTIFY, 2**63 - 1, name, 3, 2**64 - 1, payload)
    assert NotificationRow.from_json(one.to_json()) == one
