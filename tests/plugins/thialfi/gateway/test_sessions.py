"""The logic of sessions, without a socket: whatever order things come in."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidings_thialfi.gateway.notification_rows import NotificationRow, message_of
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.sessions import Session, Sessions
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import Ack, FromClient, Notice, SyncPart
from tidings_thialfi.protocol.rate_limit import Bucket

OPTIONS = GatewayOptions()
names = st.sampled_from(["alice", "bob", "carol"])


def session(client: int = 7) -> Session:
    return Session(client, "web-1", "", object(), 0.0)


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
            one.notify(Notice(name, version), 0.0, 100)
            model[name] = max(version, model.get(name, 0))
        assert {key[0]: kept.notice.version for key, kept in one.pending.items()} == model


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
    assert effects.answer is not None
    assert [one.name for one in effects.answer.failed] == ["bob"]


def test_what_is_due_is_sent_again_until_acknowledged() -> None:
    sessions, one = Sessions(), session()
    sessions.begin(one)
    one.notify(Notice("alice", 1), 0.0, 10)
    sessions.track(one, 0.0)
    assert list(sessions.due(59.0, 60.0)) == []
    assert list(sessions.due(60.0, 60.0)) == [(one, [Notice("alice", 1)])]
    assert list(sessions.due(61.0, 60.0)) == []
    one.settle(FromClient("t", acknowledge=(Ack("alice", 1),)))
    sessions.track(one, 70.0)
    assert list(sessions.due(999.0, 60.0)) == []


def test_more_than_may_be_kept_is_asked_for_when_the_rest_is_acknowledged() -> None:
    one = session()
    assert all(one.notify(Notice(name, 1), 0.0, 1) for name in ("alice", "bob"))
    assert list(one.pending) == [("alice", False)]
    assert one.settle(FromClient("t", acknowledge=(Ack("alice", 1),)))
    assert not one.settle(FromClient("t", acknowledge=(Ack("bob", 1),)))


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
    made = message_of(session(), rows, 0.0, 100)
    assert made.notify == (Notice("alice", 2), Notice("alice", 9, unknown=True))
    assert (made.digest, made.seen) == (Digest(1, 77), 5)
    assert [one.name for one in made.status] == ["alice"]


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
