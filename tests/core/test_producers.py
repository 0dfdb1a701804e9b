from __future__ import annotations

import asyncio
import datetime as dt
import threading
from concurrent.futures import Future

import pyarrow as pa
import pytest

from tidings.errors import BufferFull, InvalidOption, InvalidUpdate, LogUnavailable, ProducerClosed
from tidings.logs import Appended, Transaction
from tidings.positions import Position, Positions
from tidings.producers import AsyncProducer, Producer
from tidings.testing import check_log, eventually, held, make_updates
from tidings.updates import shard_of, to_updates
from tidings_connectors.delta.log import DeltaLog


class Gate:
    """A real log whose appends wait until the test opens the gate, and fail when the test says so."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self.open = threading.Event()
        self.entered = threading.Event()
        self.fail = False
        self.stop_after: int | None = None
        self.sizes: list[int] = []

    def append(self, updates: pa.Table, transaction: Transaction | None = None) -> Appended | None:
        self.entered.set()
        assert self.open.wait(30)
        if self.fail:
            raise LogUnavailable("the disk is on fire")
        self.sizes.append(len(updates))
        if len(self.sizes) == self.stop_after:
            self.open.clear()
        return self._log.append(updates, transaction)

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)


@pytest.fixture
def gate(log: DeltaLog) -> Gate:
    return Gate(log)


def test_a_future_resolves_to_the_position_at_which_the_update_is_held(log: DeltaLog) -> None:
    when = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    with Producer(log) as producer:
        future = producer.publish("alice", 7, "app-1", b"hello", {"table": "contacts"}, when)
        position = future.result(10)
    (update,) = to_updates(held(log))
    assert (update.position, update.shard) == (position, shard_of("alice", 4))
    assert (update.version, update.source, update.payload) == (7, "app-1", b"hello")
    assert (update.attributes, update.time, update.kind) == ({"table": "contacts"}, when, "data")


def test_what_a_caller_does_with_its_buffers_after_publish_is_not_in_the_log(gate: Gate) -> None:
    buffer, attributes, row = bytearray(b"first"), {"n": "1"}, {"object": "many", "payload": bytearray(b"first")}
    with Producer(gate, linger=0) as producer:  # type: ignore[arg-type]  # a log all the same
        producer.publish("before")
        assert gate.entered.wait(10)  # what comes now waits
        producer.publish("whole", payload=buffer, attributes=attributes)  # type: ignore[arg-type]  # not declared
        producer.publish("view", payload=memoryview(buffer)[::-1])  # type: ignore[arg-type]  # not declared
        producer.publish_many([row])
        buffer[:] = row["payload"][:] = b"other"  # type: ignore[index]  # the test's own
        attributes["n"] = "2"
        gate.open.set()
    found = {update.object: update for update in to_updates(held(gate._log))}
    assert [found[name].payload for name in ("whole", "view", "many")] == [b"first", b"tsrif", b"first"]
    assert found["whole"].attributes == {"n": "1"}


def test_an_update_without_a_version_or_a_time_has_an_unknown_version_and_the_time_of_now(log: DeltaLog) -> None:
    before = dt.datetime.now(dt.UTC)
    with Producer(log) as producer:
        producer.publish("alice").result(10)
        producer.publish_many([{"object": "bob"}]).result(10)
    for update in to_updates(held(log)):
        assert update.version is None
        assert update.time is not None
        assert before <= update.time <= dt.datetime.now(dt.UTC)


def test_updates_of_one_object_keep_the_order_in_which_they_were_published(log: DeltaLog) -> None:
    with Producer(log, linger=0, max_rows=7) as producer:
        for version in range(200):
            producer.publish("alice", version)
            if version % 50 == 0:
                producer.publish_many([{"object": "alice", "version": version}] * 20)
    versions = held(log)["version"].to_pylist()
    assert versions == sorted(versions)
    assert len(versions) == 280


def test_calls_that_come_while_a_commit_is_under_way_share_the_next_one(gate: Gate) -> None:
    with Producer(gate, linger=0) as producer:  # type: ignore[arg-type]  # a log all the same
        first = producer.publish("first")
        assert gate.entered.wait(10)
        others = [producer.publish(f"other-{number}") for number in range(99)]
        gate.open.set()
        for future in [first, *others]:
            future.result(10)
    assert gate.sizes == [1, 99]


def test_rows_and_bytes_bound_a_commit(gate: Gate) -> None:
    with Producer(gate, max_rows=10) as producer:  # type: ignore[arg-type]  # a log all the same
        gate.open.set()
        producer.publish_many(make_updates(95)).result(10)
        assert max(gate.sizes) <= 10
    with Producer(gate, max_bytes=10_000) as producer:  # type: ignore[arg-type]  # a log all the same
        gate.sizes.clear()
        producer.publish_many(make_updates(20, payload_bytes=3_000)).result(10)
    assert max(gate.sizes) <= 4


def test_a_full_buffer_makes_callers_wait_until_there_is_room(gate: Gate) -> None:
    with Producer(gate, linger=0, buffer_bytes=2_000) as producer:  # type: ignore[arg-type]  # a log all the same
        accepted = [producer.publish(f"object-{number}", payload=b"x" * 300) for number in range(4)]
        with pytest.raises(BufferFull, match="2,000 bytes stayed full"):
            producer.publish("one too many", payload=b"x" * 300, timeout=0.05)
        blocked: list[Future[Position]] = []
        thread = threading.Thread(target=lambda: blocked.append(producer.publish("patient", payload=b"x" * 300)))
        thread.start()
        gate.open.set()
        thread.join(10)
        for future in [*accepted, *blocked]:
            future.result(10)
    assert sorted(gate._log.tail(Positions(), 100)["object"].to_pylist()) == [
        "object-0",
        "object-1",
        "object-2",
        "object-3",
        "patient",
    ]


def test_an_update_larger_than_the_buffer_is_let_in_alone(log: DeltaLog) -> None:
    with Producer(log, buffer_bytes=100) as producer:
        producer.publish("large", payload=b"x" * 5_000).result(10)
    assert held(log).num_rows == 1


def test_an_append_that_fails_fails_its_futures_and_no_others(gate: Gate) -> None:
    with Producer(gate, linger=0) as producer:  # type: ignore[arg-type]  # a log all the same
        gate.fail = True
        gate.open.set()
        doomed = producer.publish("doomed")
        with pytest.raises(LogUnavailable, match="on fire"):
            doomed.result(10)
        gate.fail = False
        producer.publish("fine").result(10)
    assert held(gate._log)["object"].to_pylist() == ["fine"]


def test_a_bad_update_is_refused_at_the_call_and_nothing_of_its_table_is_written(log: DeltaLog) -> None:
    with Producer(log) as producer:
        with pytest.raises(InvalidUpdate, match="negative"):
            producer.publish("alice", version=-1)
        with pytest.raises(InvalidUpdate, match="limit is 1,048,576"):
            producer.publish("alice", payload=b"x" * (2**20 + 1))
        with pytest.raises(InvalidUpdate, match="negative"):
            producer.publish_many([{"object": "alice"}, {"object": "bob", "version": -5}])
        late = dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(dt.timedelta(hours=-5)))
        with pytest.raises(InvalidUpdate, match="object 'alice' is not in the years 1 to 9999"):
            producer.publish("alice", time=late)
        with pytest.raises(InvalidUpdate, match="object 'bob' is not in the years 1 to 9999"):
            producer.publish_many([{"object": "alice"}, {"object": "bob", "time": late}])
        times = pa.array([0, 2**60], pa.int64()).cast(pa.timestamp("us", "UTC"))
        with pytest.raises(InvalidUpdate, match="object 'bob' is not in the years 1 to 9999"):
            producer.publish_many(pa.table({"object": ["alice", "bob"], "time": times}))
    assert held(log).num_rows == 0


def test_closing_makes_durable_what_was_accepted_and_refuses_the_rest(log: DeltaLog) -> None:
    producer = Producer(log, linger=5)
    future = producer.publish("alice")
    producer.close()
    assert future.result(0) == Position(0)
    with pytest.raises(ProducerClosed):
        producer.publish("bob")
    producer.close()


def test_flush_does_not_wait_for_the_linger(log: DeltaLog) -> None:
    with Producer(log, linger=60) as producer:
        future = producer.publish("alice")
        producer.flush(timeout=30)
        assert future.done()


def test_flush_waits_for_what_was_published_before_it_and_for_no_more(gate: Gate) -> None:
    with Producer(gate, linger=0, max_rows=1) as producer:  # type: ignore[arg-type]  # a log all the same
        before = producer.publish("before")
        assert gate.entered.wait(10)
        flushed = threading.Thread(target=producer.flush)
        flushed.start()
        eventually(lambda: producer._flushed_rows)
        gate.stop_after = 1
        after = producer.publish("after")
        gate.open.set()
        flushed.join(10)
        assert not flushed.is_alive()
        assert before.done()
        assert not after.done()
        with pytest.raises(BufferFull, match=r"1 updates were still not durable after 0\.05 s"):
            producer.flush(timeout=0.05)
        gate.open.set()


def test_two_flushes_at_once_both_forgo_the_linger(log: DeltaLog) -> None:
    with Producer(log, linger=60) as producer:
        for _ in range(5):
            producer.publish("alice")
            flushes = [threading.Thread(target=producer.flush, args=(30,)) for _ in range(3)]
            for flush in flushes:
                flush.start()
            for flush in flushes:
                flush.join(10)
                assert not flush.is_alive()


def test_publish_many_of_nothing_is_done_at_once(log: DeltaLog) -> None:
    with Producer(log) as producer:
        assert producer.publish_many([]).result(0) == Positions()


def test_an_option_that_makes_no_sense_is_refused(log: DeltaLog) -> None:
    with pytest.raises(InvalidOption, match="linger"):
        Producer(log, linger=-1)
    with pytest.raises(InvalidOption, match="max_rows"):
        Producer(log, max_rows=0)
    with pytest.raises(InvalidOption, match="lingre"):
        Producer(log, lingre=1)  # type: ignore[call-arg]  # as one who does not check types


def test_the_asynchronous_twin_awaits_positions_without_a_thread_a_call(log: DeltaLog) -> None:
    async def publish() -> list[Position]:
        async with AsyncProducer(log, buffer_bytes=20_000) as producer:
            before = threading.active_count()
            tasks = [asyncio.create_task(producer.publish(f"object-{n}", n, payload=b"x" * 100)) for n in range(1_000)]
            await asyncio.sleep(0)
            assert threading.active_count() == before
            await producer.publish_many(make_updates(10))
            return await asyncio.gather(*tasks)

    positions = asyncio.run(publish())
    assert len(positions) == 1_000
    assert held(log).num_rows == 1_010
    check_log(log, 4)


def test_a_task_that_is_cancelled_leaves_the_others_alone(gate: Gate) -> None:
    async def publish() -> Position:
        async with AsyncProducer(gate) as producer:  # type: ignore[arg-type]  # a log all the same
            given_up = asyncio.create_task(producer.publish("given up"))
            patient = asyncio.create_task(producer.publish("patient"))
            await asyncio.to_thread(gate.entered.wait, 10)
            given_up.cancel()
            gate.open.set()
            return await patient

    asyncio.run(publish())
    assert sorted(held(gate._log)["object"].to_pylist()) == ["given up", "patient"]


def test_a_payload_that_no_message_could_carry_is_not_accepted(log: DeltaLog) -> None:
    with pytest.raises(InvalidOption, match="max_payload_bytes is at most 33,554,432"):
        Producer(log, max_payload_bytes=64 * 2**20)


def test_an_event_loop_that_is_closed_leaves_the_producer_to_others(gate: Gate) -> None:
    producer = AsyncProducer(gate, linger=0, buffer_bytes=1_000)  # type: ignore[arg-type]  # a log all the same
    left = asyncio.new_event_loop()
    accepted = left.create_task(producer.publish("accepted", payload=b"x" * 700))
    waiting = left.create_task(producer.publish("waits for room", payload=b"x" * 700))
    left.run_until_complete(asyncio.sleep(0.05))
    left.close()
    gate.open.set()

    async def publish() -> None:
        async with asyncio.timeout(10):
            await producer.publish("later")
        await producer.close()

    asyncio.run(publish())
    assert not accepted.done()
    assert not waiting.done()
    for task in (accepted, waiting):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # pending for ever is the point
    assert sorted(held(gate._log)["object"].to_pylist()) == ["accepted", "later"]


def test_nothing_that_a_caller_does_with_its_future_ends_the_producer(log: DeltaLog) -> None:
    def leave(future: Future[Position]) -> None:
        raise SystemExit

    with Producer(log, linger=0.5) as producer:
        producer.publish("leaves").add_done_callback(leave)
        producer.publish_many([{"object": "leaves too"}]).add_done_callback(leave)  # type: ignore[arg-type]
        producer.publish("taken over").set_result(Position(7))
        producer.publish("beside").result(10)
        producer.publish("later").result(10)
    assert held(log).num_rows == 5


def test_a_callback_cannot_wait_for_the_thread_that_it_is_called_in(gate: Gate) -> None:
    refused: list[BaseException] = []

    def publish_more(future: Future[Position]) -> None:
        for call in (lambda: producer.publish("more", payload=b"x" * 700), producer.flush):
            try:
                call()
            except BufferFull as error:
                refused.append(error)

    with Producer(gate, linger=0, buffer_bytes=1_000) as producer:  # type: ignore[arg-type]  # a log all the same
        first = producer.publish("first", payload=b"x" * 700)
        first.add_done_callback(publish_more)
        gate.open.set()
        first.result(10)
        producer.publish("later", payload=b"x" * 700, timeout=10).result(10)
    assert len(refused) == 2


def test_a_producer_whose_thread_dies_fails_what_waits_and_refuses_the_rest(gate: Gate) -> None:
    def die(updates: pa.Table, transaction: Transaction | None = None) -> None:
        gate.entered.set()
        assert gate.open.wait(30)
        raise SystemExit

    gate.append = die  # type: ignore[method-assign]
    producer = Producer(gate, linger=0, buffer_bytes=1_000)  # type: ignore[arg-type]  # a log all the same
    under_way = producer.publish("under way", payload=b"x" * 300)
    assert gate.entered.wait(10)
    gathered = producer.publish("gathered", payload=b"x" * 300)
    refused: list[BaseException] = []

    def wait_for_room() -> None:
        try:
            producer.publish("waits for room", payload=b"x" * 700)
        except ProducerClosed as error:
            refused.append(error)

    thread = threading.Thread(target=wait_for_room)
    thread.start()
    gate.open.set()
    for future in (under_way, gathered):
        with pytest.raises(ProducerClosed, match=r"ended before its time, by SystemExit\(\): make another one"):
            future.result(10)
    thread.join(10)
    assert len(refused) == 1
    with pytest.raises(ProducerClosed, match="ended before its time"):
        producer.publish("later", timeout=10)
    with pytest.raises(ProducerClosed, match="ended before its time"):
        producer.flush(timeout=10)
    producer.close()
