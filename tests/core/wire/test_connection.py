"""What operators are told of an exchange that failed."""

from __future__ import annotations

import pytest
from pyarrow import flight

from tidings.wire.connection import explain


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (flight.FlightServerError("\x1b[31mred\x1b]0;title\x07 fine"), r"\x1b[31mred\x1b]0;title\x07 fine"),
        (ValueError("turned \u202e round \x9b"), r"turned \u202e round \x9b"),
        (ValueError("caf\udce9"), r"caf\udce9"),
        (
            OSError("certificate verify failed: \x1b[2J. more"),
            r"its certificate is not signed by whom we trust (\x1b[2J)",
        ),
        (OSError("Connection refused"), "nothing listens at its address"),
        (KeyError(), "KeyError"),
    ],
)
def test_what_a_peer_says_of_a_failure_is_shown_and_not_obeyed(error: Exception, reason: str) -> None:
    assert explain(error) == reason


def test_a_long_reason_is_cut() -> None:
    assert explain(ValueError("x" * 10_000)) == "x" * 500
