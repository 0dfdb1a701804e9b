"""What is said of keys that a model does not have."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from tidings.config.validation import explain


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Ink(_Strict):
    """The innermost model."""

    red: int = 0


class Poster(_Strict):
    """A model that others are in, in each way that a key can lead to one."""

    columns: int = 0
    fill: Ink | None = None
    layers: list[Ink] = []
    by_name: dict[str, Ink] = {}
    either: Ink | dict[str, int] = {}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"column": 3}, "unknown key; did you mean columns?"),
        ({"fill": {"rd": 1}}, "unknown key; did you mean red?"),
        ({"layers": [{}, {"rd": 1}]}, "unknown key; did you mean red?"),
        ({"by_name": {"columns": {"rd": 1}}}, "unknown key; did you mean red?"),
        ({"by_name": {"columns": {"blue": 1}}}, "unknown key; the keys are red"),
        ({"either": {"column": "x"}}, "unknown key"),
    ],
)
def test_the_keys_that_are_told_are_those_of_the_place_where_the_mistake_is(
    value: dict[str, object], said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Poster.model_validate(value)
    assert explain(dict(caught.value.errors()[0]), Poster) == said
