"""Traces go from who publishes to who processes, where OpenTelemetry is set up; elsewhere nothing is different."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceState

from tests.support.places import ROOT
from tidings.cluster import Cluster
from tidings.errors import BufferFull, LogUnavailable, ProducerClosed
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.logs import Appended, Transaction
from tidings.producers import AsyncProducer, Producer
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings.testing import eventually, held
from tidings.tracing import MAX_LINKS, ProcessSpans, PublishSpan, publishing
from tidings.updates import MAX_ATTRIBUTES_BYTES, SCHEMA, Update, check_row, to_updates
from tidings_connectors.delta.log import DeltaLog

FLOW = Flow("cache", "contacts", 0)
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
WELL_FORMED = f"00-{TRACE}-{SPAN}-01"
MALFORMED = [
    "",
    "no",
    WELL_FORMED.upper(),
    f" {WELL_FORMED}",
    f"{WELL_FORMED}\n",
    f"{WELL_FORMED}-more",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE[:-1]}\N{ARABIC-INDIC DIGIT FIVE}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}",
    "00-" + "-" * 100_000,
]


class Recorded:
    """The spans that have ended in this process."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def await_named(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """They end after the futures are resolved and the handler has returned."""
        return eventually(lambda: found if len(found := self.named(name)) == count else [])


def set_up(patch: pytest.MonkeyPatch, recorded: Recorded, sampler: Sampler = ALWAYS_ON) -> None:
    """A provider until the test ends; the API itself would keep it for as long as the process lives."""
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(recorded.exporter))
    patch.setattr(trace, "get_tracer_provider", lambda: provider)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    set_up(monkeypatch, recorded)
    return recorded


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    stream = cluster.create_stream("contacts", shards=1)
    cluster.create_application("cache", ["contacts"], start="earliest")
    return stream


class Seen(Handler):
    """Keeps updates, and the span in which each came."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.within: list[SpanContext] = []

    def on_update(self, update: Update) -> None:
        self.within.append(trace.get_current_span().get_span_context())
        self.updates.append(update)


class SeenBatches(Handler):
    """Keeps the number of rows of each batch."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def on_batch(self, rows: pa.RecordBatch) -> None:
        self.sizes.append(rows.num_rows)


def shop() -> trace.Tracer:
    return trace.get_tracer("shop")


def context_of(span: ReadableSpan) -> SpanContext:
    context: SpanContext | None = span.context
    assert context is not None
    return context


def linked(span: ReadableSpan) -> list[str]:
    return [f"{link.context.trace_id:032x}-{link.context.span_id:016x}" for link in span.links]


def name_of(span: ReadableSpan) -> str:
    return f"{context_of(span).trace_id:032x}-{context_of(span).span_id:016x}"


def traceparent_of(span: ReadableSpan) -> str:
    return f"00-{name_of(span)}-{context_of(span).trace_flags:02x}"


def batch(attributes: list[dict[str, str] | None]) -> pa.RecordBatch:
    rows = [
        {"shard": 0, "seq": seq, "index": 0, "object": "alice", "kind": "data", "range": 1, "attributes": each}
        for seq, each in enumerate(attributes)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def test_an_update_is_processed_in_a_span_that_links_to_the_one_in_which_it_was_published(
    cluster: Cluster, stream: Stream, recorded: Recorded
) -> None:
    seen = Seen()
    with cluster.publisher(), cluster.subscribe("cache", seen, id="one"), stream.producer() as producer:
        with shop().start_as_current_span("save contact") as saving:
            producer.publish("alice", version=1, attributes={"country": "se"}).result(10)
        eventually(lambda: seen.updates)
        (published,), (processed,) = recorded.await_named("publish contacts"), recorded.await_named("process contacts")

    assert published.kind is SpanKind.PRODUCER
    assert published.parent is not None
    assert published.parent.span_id == saving.get_span_context().span_id
    assert published.attributes == {
        "messaging.system": "tidings",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "contacts",
    }
    assert seen.updates[0].attributes == {"country": "se", "traceparent": traceparent_of(published)}

    assert processed.kind is SpanKind.CONSUMER
    assert processed.parent is None
    assert linked(processed) == [name_of(published)]
    assert seen.within == [context_of(processed)]
    assert processed.attributes == {
        "messaging.system": "tidings",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "contacts",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "cache",
        "messaging.client.id": "one",
    }
    assert {published.status.status_code, processed.status.status_code} == {StatusCode.UNSET}


def test_a_batch_is_processed_in_one_span_that_links_to_those_of_its_updates(
    cluster: Cluster, stream: Stream, recorded: Recorded
) -> None:
    handler = SeenBatches()
    with stream.producer() as producer:
        producer.publish("nobody traces this")
        with shop().start_as_current_span("save contacts"):
            for name in ("alice", "bob"):
                producer.publish(name)
    with cluster.publisher(), cluster.subscribe("cache", handler):
        eventually(lambda: sum(handler.sizes) == 3)
        processed = recorded.await_named("process contacts", len(handler.sizes))
    counts = [span.attributes["messaging.batch.message_count"] for span in processed if span.attributes is not None]
    assert counts == handler.sizes
    published = [name_of(span) for span in recorded.await_named("publish contacts", 2)]
    assert [name for span in processed for name in linked(span)] == published


def test_outside_of_a_span_nothing_is_added_to_an_update_and_its_handler_has_no_span(
    cluster: Cluster, stream: Stream, recorded: Recorded
) -> None:
    seen = Seen()
    with cluster.publisher(), cluster.subscribe("cache", seen), stream.producer() as producer:
        producer.publish("alice")
        producer.publish("bob", attributes={"country": "se"})
        eventually(lambda: len(seen.updates) == 2)
    assert [update.attributes for update in seen.updates] == [None, {"country": "se"}]
    assert not any(context.is_valid for context in seen.within)
    assert recorded.exporter.get_finished_spans() == ()


def test_within_a_span_that_is_not_recorded_nothing_is_added(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(monkeypatch, Recorded(), ALWAYS_OFF)
    with Producer(log) as producer, shop().start_as_current_span("save contact"):
        producer.publish("alice").result(10)
    assert to_updates(held(log))[0].attributes is None


def test_without_a_provider_nothing_is_added_and_handlers_have_no_span(log: DeltaLog) -> None:
    own = TracerProvider(shutdown_on_exit=False).get_tracer("shop")  # which nobody was told of
    with Producer(log) as producer, own.start_as_current_span("save contact"):
        producer.publish("alice").result(10)
    assert to_updates(held(log))[0].attributes is None
    assert ProcessSpans("one").around(FLOW, "on_batch", (batch([{"traceparent": WELL_FORMED}]),)) is None


def test_a_traceparent_of_the_callers_own_stays_as_it_is(log: DeltaLog, recorded: Recorded) -> None:
    with Producer(log) as producer, shop().start_as_current_span("relay"):
        producer.publish("alice", attributes={"traceparent": WELL_FORMED}).result(10)
    assert to_updates(held(log))[0].attributes == {"traceparent": WELL_FORMED}


def test_a_tracestate_goes_with_the_update_and_is_in_the_link(log: DeltaLog, recorded: Recorded) -> None:
    state = TraceState([("vendor", "a b"), ("1@other", "!")])
    far = SpanContext(int(TRACE, 16), int(SPAN, 16), True, trace.TraceFlags(1), state)
    within = trace.set_span_in_context(trace.NonRecordingSpan(far))
    with Producer(log) as producer, shop().start_as_current_span("save contact", within):
        producer.publish("alice").result(10)
    (update,) = to_updates(held(log))
    assert update.attributes is not None
    assert update.attributes["tracestate"] == "vendor=a b,1@other=!"
    process(update)
    (link,) = recorded.named("process contacts")[0].links
    assert link.context.trace_state == state
    assert link.context.is_remote


def process(update: Update) -> None:
    span = ProcessSpans("one").around(FLOW, "on_update", (update,))
    assert span is not None
    with span:
        pass


@pytest.mark.parametrize("room", [73, 74])
def test_an_update_that_is_as_large_as_it_may_be_is_accepted_and_names_no_span(recorded: Recorded, room: int) -> None:
    own = [("a", "x" * (MAX_ATTRIBUTES_BYTES - room - 9))]
    check_row("alice", attributes=dict(own))
    with shop().start_as_current_span("save contact"):
        span = publishing("contacts")
    assert span is not None
    named = span.named_in(own)
    assert named is not None
    check_row("alice", attributes=dict(named))
    assert len(named) == (1 if room < 74 else 2)


def test_what_is_no_traceparent_is_left_out_and_its_update_processed_all_the_same(
    cluster: Cluster, stream: Stream, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "opentelemetry")
    given = [*({"traceparent": one} for one in MALFORMED), {"traceparent": WELL_FORMED, "tracestate": "= ,\nno"}]
    seen, batches = Seen(), SeenBatches()
    cluster.create_application("index", ["contacts"], start="earliest")
    with stream.producer() as producer:
        producer.publish_many([{"object": "alice", "attributes": one} for one in given])
    with cluster.publisher(), cluster.subscribe("cache", seen), cluster.subscribe("index", batches):
        eventually(lambda: len(seen.updates) == sum(batches.sizes) == len(given))
        spans = recorded.await_named("process contacts", len(given) + len(batches.sizes))
    assert [name for span in spans for name in linked(span)] == [f"{TRACE}-{SPAN}"] * 2
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}
    assert [one.getMessage() for one in caplog.records if one.name.startswith("opentelemetry")] == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parent=st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", fullmatch=True),
    state=st.text() | st.from_regex(r"([a-z@*]{1,4}=[ -~]{0,4},?){0,40}", fullmatch=True),
)
def test_nothing_that_an_update_says_is_an_error_or_is_logged(
    parent: str, state: str, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    attributes = {"traceparent": parent, "tracestate": state}
    process(Update(shard=0, seq=1, object="alice", attributes=attributes))
    assert caplog.records == []


def test_a_later_version_of_traceparent_is_read_as_far_as_it_is_known(recorded: Recorded) -> None:
    process(Update(shard=0, seq=1, object="alice", attributes={"traceparent": f"01-{TRACE}-{SPAN}-01-new"}))
    assert linked(recorded.named("process contacts")[0]) == [f"{TRACE}-{SPAN}"]


def test_a_span_has_so_many_links_at_the_most_and_those_of_its_own_rows(recorded: Recorded) -> None:
    def parent(number: int) -> str:
        return f"{TRACE}-{number:016x}"

    named = [{"a": "b", "traceparent": f"00-{parent(number)}-01"} for number in range(1, 301)]
    spans = ProcessSpans("one")
    whole = batch([None, {}, *named, None])
    for rows in (whole, whole.slice(250), whole.slice(1, 1), whole.slice(0, 4)):
        span = spans.around(FLOW, "on_batch", (rows,))
        assert span is not None
        with span:
            pass
    assert [linked(span) for span in recorded.named("process contacts")] == [
        [parent(number) for number in range(1, 1 + MAX_LINKS)],
        [parent(number) for number in range(249, 301)],
        [],
        [parent(1), parent(2)],
    ]


def test_an_update_that_is_processed_within_a_span_has_one_too(recorded: Recorded) -> None:
    with shop().start_as_current_span("replay") as replay:
        process(Update(shard=0, seq=1, object="alice"))
    (processed,) = recorded.named("process contacts")
    assert processed.parent == replay.get_span_context()


class FailingLog(DeltaLog):
    """A log on a disk that does not answer before the test says so, and fails then."""

    answer: threading.Event

    def append(self, updates: pa.Table, transaction: Transaction | None = None) -> Appended | None:
        assert self.answer.wait(30)
        raise LogUnavailable("the disk is on fire")


@pytest.fixture
def failing(definition: StreamDefinition) -> FailingLog:
    log = FailingLog.create(definition.log.removeprefix("delta:"), definition)
    assert isinstance(log, FailingLog)
    log.answer = threading.Event()
    return log


def test_the_span_of_an_update_that_does_not_become_durable_says_why(
    failing: FailingLog, definition: StreamDefinition, recorded: Recorded
) -> None:
    with Producer(failing, definition) as producer:
        with shop().start_as_current_span("save contact"):
            future = producer.publish("alice")
        assert recorded.named("publish contacts") == []
        failing.answer.set()
        with pytest.raises(LogUnavailable):
            future.result(10)
        (published,) = recorded.await_named("publish contacts")
    assert (published.status.status_code, published.status.description) == (StatusCode.ERROR, "the disk is on fire")
    assert published.attributes is not None
    assert published.attributes["error.type"] == "tidings.errors.LogUnavailable"


def test_the_span_of_a_task_that_is_cancelled_before_there_was_room_ends_with_it(
    failing: FailingLog, recorded: Recorded
) -> None:
    async def main() -> None:
        async with AsyncProducer(failing, buffer_bytes=1) as producer:
            first = asyncio.create_task(producer.publish("untraced"))
            with shop().start_as_current_span("save contact"):
                patient = asyncio.create_task(producer.publish("alice"))
                await asyncio.sleep(0)  # both of them come to where they wait
            patient.cancel()
            with pytest.raises(asyncio.CancelledError):
                await patient
            assert [span.status.status_code for span in recorded.named("publish")] == [StatusCode.ERROR]
            failing.answer.set()
            with pytest.raises(LogUnavailable):
                await first

    asyncio.run(main())


def test_the_span_of_an_update_that_is_not_accepted_ends_at_once(log: DeltaLog, recorded: Recorded) -> None:
    producer = Producer(log)
    producer.close()
    with shop().start_as_current_span("save contact"), pytest.raises(ProducerClosed):
        producer.publish("alice")
    (published,) = recorded.named("publish")
    assert published.status.status_code is StatusCode.ERROR
    assert published.attributes is not None
    assert published.attributes["error.type"] == "tidings.errors.ProducerClosed"


def test_an_asynchronous_producer_has_the_same_spans(log: DeltaLog, recorded: Recorded) -> None:
    async def save(producer: AsyncProducer, name: str) -> None:
        with shop().start_as_current_span(name):
            await producer.publish(name)

    async def main() -> None:
        async with AsyncProducer(log) as producer:
            await asyncio.gather(save(producer, "alice"), save(producer, "bob"))

    asyncio.run(main())
    parents = {span.parent.span_id for span in recorded.await_named("publish", 2) if span.parent is not None}
    assert parents == {context_of(recorded.named(name)[0]).span_id for name in ("alice", "bob")}
    named = {(update.attributes or {})["traceparent"] for update in to_updates(held(log))}
    assert named == {traceparent_of(span) for span in recorded.named("publish")}


def test_every_call_of_a_handler_that_raises_has_a_span_with_what_it_raised(
    cluster: Cluster, stream: Stream, recorded: Recorded
) -> None:
    class Moody(Handler):
        def __init__(self) -> None:
            self.calls = 0

        def on_update(self, update: Update) -> None:
            self.calls += 1
            if self.calls < 3:
                raise BufferFull("not now")

    with cluster.publisher(), cluster.subscribe("cache", Moody(), backoff=0.01), stream.producer() as producer:
        with shop().start_as_current_span("save contact"):
            producer.publish("alice").result(10)
        spans = recorded.await_named("process contacts", 3)
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert [len(span.links) for span in spans] == [1, 1, 1]
    for span in spans[:2]:
        assert span.attributes is not None
        assert span.attributes["error.type"] == "tidings.errors.BufferFull"
        (event,) = span.events
        assert event.attributes is not None
        assert event.attributes["exception.message"] == "not now"


def test_an_asynchronous_handler_runs_within_the_span_on_its_event_loop(
    cluster: Cluster, stream: Stream, recorded: Recorded
) -> None:
    ran: list[tuple[threading.Thread, SpanContext]] = []

    class Later(Handler):
        async def on_update(self, update: Update) -> None:
            await asyncio.sleep(0)
            with shop().start_as_current_span("look up"):
                await asyncio.sleep(0)
            ran.append((threading.current_thread(), trace.get_current_span().get_span_context()))
            if len(ran) == 1:
                raise BufferFull("not now")

    def publish() -> None:
        with stream.producer() as producer, shop().start_as_current_span("save contact"):
            producer.publish("alice").result(10)

    async def main() -> None:
        async with cluster.subscribe("cache", Later(), backoff=0.01):
            publisher = await asyncio.to_thread(cluster.publisher)
            await asyncio.to_thread(publish)
            await asyncio.to_thread(recorded.await_named, "process contacts", 2)
            await asyncio.to_thread(publisher.close)

    asyncio.run(main())
    spans = recorded.named("process contacts")
    assert ran == [(threading.main_thread(), context_of(span)) for span in spans]
    assert [span.parent for span in recorded.named("look up")] == [context_of(span) for span in spans]
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR, StatusCode.UNSET]


def test_a_sampler_that_fails_stops_neither_producers_nor_handlers(
    log: DeltaLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Sampler):
        def should_sample(self, *arguments: Any, **options: Any) -> SamplingResult:
            raise RuntimeError("out of dice")

        def get_description(self) -> str:
            return "failing"

    saving = TracerProvider(shutdown_on_exit=False).get_tracer("shop")
    set_up(monkeypatch, Recorded(), Failing())
    with Producer(log) as producer, saving.start_as_current_span("save contact"):
        producer.publish("alice").result(10)
    assert to_updates(held(log))[0].attributes is None
    assert ProcessSpans("one").around(FLOW, "on_batch", (batch([None]),)) is None
    assert [(one.name, str((one.exc_info or (0, 0))[1])) for one in caplog.records] == [
        ("tidings.tracing", "out of dice"),
        ("tidings.tracing", "out of dice"),
    ]


SERVICE = """
import queue, sys
if "blocked" in sys.argv:
    sys.modules["opentelemetry"] = None
import tidings

came = queue.SimpleQueue()

class Handler(tidings.Handler):
    def on_update(self, update):
        came.put((update.object, update.attributes))

with tidings.connect(sys.argv[1]) as cluster, cluster.subscribe("cache", Handler()):
    with cluster.stream("contacts").producer() as producer:
        producer.publish("alice", attributes={"country": "se"}).result()
    print(sorted(came.get(timeout=30) for _ in range(2)))
    print([name for name in sys.modules if name.startswith("opentelemetry.")])
"""


@pytest.mark.parametrize("without", ["blocked", "unused"])
def test_a_service_without_opentelemetry_publishes_and_subscribes_and_does_not_import_it(
    cluster: Cluster, stream: Stream, without: str
) -> None:
    with cluster.publisher(), stream.producer() as producer:
        producer.publish("traced", attributes={"traceparent": WELL_FORMED}).result(10)
        command = [sys.executable, "-c", SERVICE, cluster.address, without]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert told.splitlines() == [
        f"[('alice', {{'country': 'se'}}), ('traced', {{'traceparent': '{WELL_FORMED}'}})]",
        "[]",
    ]


def printed_spans(text: str) -> Iterator[dict[str, Any]]:
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        span, at = decoder.raw_decode(text, at)
        yield span


@pytest.mark.slow
def test_the_example_in_the_page_on_metrics_prints_spans_that_are_linked() -> None:
    section = (ROOT / "docs" / "metrics.md").read_text().split("\n## Traces\n")[1].split("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    spans = {span["name"]: span for span in printed_spans(done.stdout)}
    assert set(spans) == {"save contact", "publish contacts", "process contacts", "invalidate"}
    (link,) = spans["process contacts"]["links"]
    assert link["context"]["span_id"] == spans["publish contacts"]["context"]["span_id"]
    assert spans["publish contacts"]["parent_id"] == spans["save contact"]["context"]["span_id"]
    assert spans["invalidate"]["parent_id"] == spans["process contacts"]["context"]["span_id"]


def test_the_page_on_metrics_names_every_attribute_of_a_span() -> None:
    section = (ROOT / "docs" / "metrics.md").read_text().split("\n## Traces\n")[1].split("\n## ")[0]
    source = Path(sys.modules[PublishSpan.__module__].__file__ or "").read_text()
    assert set(re.findall(r'"((?:messaging|error)\.[a-z_.]+)"', source)) == set(
        re.findall(r"`((?:messaging|error)\.[a-z_.]+)`", section)
    )
