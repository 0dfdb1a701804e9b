"""Traces by OpenTelemetry, in processes that have it set up; in all others, nothing.

An update names the span in which it was published, as W3C's Trace Context has it, and the span in which it is processed
links to that one. It is a link and no parent: one batch has updates of many spans, and updates come from strangers, who
shall not decide which traces are kept here.

Only the API is used, and not imported before somebody else has: where nobody did, nobody records.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.flows import Flow
from tidings.updates import BYTES_PER_ATTRIBUTE, MAX_ATTRIBUTES_BYTES, numbers

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Tracer, TracerProvider

MAX_LINKS = 128  # of one span, which is what OpenTelemetry keeps of them by default
MAX_TRACESTATE_LENGTH = 8192

# The conventions for messaging are not stable yet: names that may move with their next release are here, and only here.
SYSTEM = "messaging.system"
OPERATION_NAME, OPERATION_TYPE = "messaging.operation.name", "messaging.operation.type"
DESTINATION, PARTITION = "messaging.destination.name", "messaging.destination.partition.id"
CONSUMER_GROUP, CLIENT = "messaging.consumer.group.name", "messaging.client.id"
BATCH_COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"
PUBLISH, PROCESS = ("publish", "send"), ("process", "process")  # an operation's name and its type

# What updates say is read here and not by the API, which would log what strangers write.
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_PARENT = re.compile(r"(?!ff|00.{54})[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_KEY = r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_ENTRY = rf"{_KEY}=[ -+\--<>-~]{{0,255}}[!-+\--<>-~]"
_STATE = re.compile(rf"{_ENTRY}(?:[ \t]*,[ \t]*{_ENTRY}){{0,31}}")

logger = logging.getLogger(__name__)


class PublishSpan:
    """The span of one update, until it is durable."""

    def __init__(self, api: Any, span: Span) -> None:
        self._api = api
        self._span = span

    def named_in(self, attributes: list[tuple[str, str]] | None) -> list[tuple[str, str]] | None:
        """An update's attributes and what names the span; alone if they name one already, or would be too many."""
        own = attributes or []
        context = self._span.get_span_context()
        named = [(TRACEPARENT, f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}")]
        if context.trace_state:
            named.append((TRACESTATE, context.trace_state.to_header()))
        size = sum(BYTES_PER_ATTRIBUTE + len(name.encode()) + len(value.encode()) for name, value in own + named)
        if size > MAX_ATTRIBUTES_BYTES or any(name in (TRACEPARENT, TRACESTATE) for name, _ in own):
            return attributes
        return own + named

    def end(self, error: BaseException | None) -> None:
        """The update is durable; or this came between."""
        if error is not None:
            self._span.set_attribute(ERROR_TYPE, _kind_of(error))
            self._span.set_status(self._api.StatusCode.ERROR, str(error))
        self._span.end()


def publishing(stream: str | None) -> PublishSpan | None:
    """A span for an update that is published now, if that happens within one that is recorded."""
    api = _api()
    if api is None or not api.get_current_span().is_recording():
        return None
    span = _begun(api, api.SpanKind.PRODUCER, PUBLISH, stream, {})
    return None if span is None else PublishSpan(api, span)


class ProcessSpans:
    """The spans in which the updates of a subscriber are processed."""

    def __init__(self, subscriber: str) -> None:
        self._subscriber = subscriber

    def around(
        self, flow: Flow, callback: str, given: tuple[Any, ...]
    ) -> contextlib.AbstractContextManager[None] | None:
        """The span of one call of the handler, or None if there shall be none.

        A batch has one in any case. An update has one if it names a span, or if its handler is called within one:
        whoever processes a hundred thousand a second has not asked for as many spans.
        """
        api = _api()
        if api is None:
            return None
        named_in: Iterable[Mapping[str, str]]
        if callback == "on_batch":
            named_in, count = _with_traceparent(given[0]), {BATCH_COUNT: given[0].num_rows}
        elif callback == "on_update" and (TRACEPARENT in (given[0].attributes or ()) or _within_span(api)):
            named_in, count = [given[0].attributes or {}], {}
        else:
            return None
        about = {PARTITION: str(flow.shard), CONSUMER_GROUP: flow.application, CLIENT: self._subscriber, **count}
        span = _begun(api, api.SpanKind.CONSUMER, PROCESS, flow.stream, about, named_in)
        return None if span is None else _current(api, span)


def _api() -> Any:
    """OpenTelemetry's API, if somebody in this process uses it."""
    if sys.modules.get("opentelemetry.trace") is None:
        return None
    try:
        return _imported()
    except ImportError:  # another thread has begun to import it, and failed
        return None


@functools.cache
def _imported() -> Any:
    from opentelemetry import trace  # waits for the thread that is importing it, if one is

    return trace


def _within_span(api: Any) -> bool:
    within: bool = api.get_current_span().get_span_context().is_valid
    return within


@functools.lru_cache(maxsize=1)
def _tracer(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("tidings", version("tidings"))


def _begun(
    api: Any,
    kind: SpanKind,
    operation: tuple[str, str],
    stream: str | None,
    about: Mapping[str, str | int],
    named_in: Iterable[Mapping[str, str]] = (),
) -> Span | None:
    """A span that has begun; None if nobody has set up a provider, or if it failed: nothing else shall fail by that."""
    name = operation[0] if stream is None else f"{operation[0]} {stream}"
    attributes = {SYSTEM: "tidings", OPERATION_NAME: operation[0], OPERATION_TYPE: operation[1], **about}
    if stream is not None:
        attributes[DESTINATION] = stream
    try:
        provider = api.get_tracer_provider()
        if isinstance(provider, api.ProxyTracerProvider):  # it stands for one that may be set up yet
            return None
        return _tracer(provider).start_span(name, kind=kind, attributes=attributes, links=_links(api, named_in))
    except Exception:
        logger.exception("there is no span %r, since it could not be begun", name)
        return None


@contextlib.contextmanager
def _current(api: Any, span: Span) -> Iterator[None]:
    """Within the span, which ends then; what is raised is recorded, and is its status."""
    with api.use_span(span, end_on_exit=True):
        try:
            yield
        except Exception as error:
            span.set_attribute(ERROR_TYPE, _kind_of(error))
            raise


def _links(api: Any, named_in: Iterable[Mapping[str, str]]) -> list[Link]:
    named = (_named(api, attributes) for attributes in named_in)
    found = (context for context in named if context is not None)
    return [api.Link(context) for context in itertools.islice(found, MAX_LINKS)]


def _named(api: Any, attributes: Mapping[str, str]) -> SpanContext | None:
    """The span that an update names; None if what it says is no name of one."""
    parent = _PARENT.fullmatch(attributes.get(TRACEPARENT) or "")
    if parent is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in parent.groups())
    state = attributes.get(TRACESTATE) or ""
    well_formed = len(state) <= MAX_TRACESTATE_LENGTH and _STATE.fullmatch(state)
    trace_state = api.TraceState.from_header([state]) if well_formed else None
    context: SpanContext = api.SpanContext(trace_id, span_id, True, api.TraceFlags(flags), trace_state)
    return context if context.is_valid else None


def _with_traceparent(rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
    """The attributes of those rows that name a span; the others do not become objects of Python's."""
    attributes = rows["attributes"]
    offsets = numbers(attributes.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    names = attributes.keys.slice(first, last - first)
    places = numbers(pc.indices_nonzero(pc.match_like(names, TRACEPARENT))).astype(np.int64) + first
    for row in np.unique(np.searchsorted(offsets, places, "right") - 1).tolist():
        yield dict(attributes[row].as_py() or ())


def _kind_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
