"""What types say of keywords that are passed on is what those take who get them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from typing import Any

import pytest

from tidings.applications import Application, ApplicationChanges, ApplicationKeywords
from tidings.pipelines.definition import PipelineDefinition, PipelineKeywords
from tidings.producers import ProducerKeywords, ProducerOptions
from tidings.publisher.publisher import Publisher, PublisherKeywords
from tidings.subscriber.subscriber import Subscriber, SubscriberKeywords


def parameters(taken: Callable[..., Any], *left_out: str) -> dict[str, Any]:
    """The keywords of a function, with what is said of their types."""
    found = inspect.signature(taken).parameters.values()
    keywords = [one for one in found if one.kind is inspect.Parameter.KEYWORD_ONLY and one.name not in left_out]
    return {one.name: one.annotation for one in keywords}


def plain(annotations: dict[str, Any]) -> dict[str, str]:
    texts = {name: getattr(value, "__forward_arg__", value) for name, value in annotations.items()}
    return {
        name: text.removeprefix("NotRequired[").removesuffix("]") if text.startswith("Not") else text
        for name, text in texts.items()
    }


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (SubscriberKeywords, parameters(Subscriber.__init__)),
        (PublisherKeywords, parameters(Publisher.__init__, "spark")),
        (PipelineKeywords, parameters(PipelineDefinition.__init__)),
        (ProducerKeywords, {one.name: one.type for one in fields(ProducerOptions)}),
    ],
)
def test_each_keyword_is_named_with_its_type(said: type, taken: dict[str, Any]) -> None:
    assert plain(said.__annotations__) == taken


def names(some: Iterable[Any]) -> set[str]:
    return {one.name for one in some}


def test_the_keywords_of_an_application_are_its_fields() -> None:
    optional = names(one for one in fields(Application) if one.default is not MISSING)
    assert ApplicationKeywords.__annotations__.keys() | {"filter"} == optional
    assert ApplicationChanges.__annotations__.keys() - {"streams"} <= optional
