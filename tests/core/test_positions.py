from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import InvalidPosition
from tidings.positions import START, Position, Positions

positions = st.builds(Position, st.integers(-1, 2**63 - 1), st.integers(-1, 2**31 - 1))


@given(st.lists(positions))
def test_positions_are_ordered_by_seq_and_then_by_index(some: list[Position]) -> None:
    assert sorted(some) == sorted(some, key=lambda at: (at.seq, at.index))


@given(positions.filter(lambda at: at.index >= 0), positions)
def test_no_position_lies_between_one_and_the_place_before_it(at: Position, other: Position) -> None:
    assert at.before < at
    assert not at.before < other < at


@given(st.dictionaries(st.integers(0, 4095), positions))
def test_positions_survive_their_text_form(by_shard: dict[int, Position]) -> None:
    assert Positions.parse(str(Positions(by_shard))) == Positions(by_shard)


def test_a_shard_that_is_not_named_stands_at_the_start() -> None:
    assert Positions({1: Position(5)})[0] == START


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "5",
        '{"a": 1}',
        '{"-1": 1}',
        '{"0": "1"}',
        '{"0": true}',
        '{"0": [1]}',
        '{"0": -2}',
        '{"0": 9223372036854775808}',
        '{"0": 1, "0": 2}',
        '{"' + "9" * 5000 + '": 1}',
        "[" * 100_000,
        '{"٣": 1}',
    ],
)
def test_a_text_that_is_no_positions_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(InvalidPosition, match="is no"):
        Positions.parse(text)
