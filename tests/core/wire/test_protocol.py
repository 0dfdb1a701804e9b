"""What a peer says, taken at its word or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.wire.protocol import Era, era_of


@pytest.mark.parametrize("epoch", ["1", 1.0, 1.9, True, None, [1]])
def test_an_epoch_that_is_almost_one_is_none(epoch: Any) -> None:
    for wrong in ({"epoch": epoch, "turn": 1}, {"epoch": 1, "turn": epoch}):
        with pytest.raises(ValueError, match="no whole number"):
            era_of(wrong)
    assert era_of({"epoch": 1, "turn": 2}) == Era(1, 2)
