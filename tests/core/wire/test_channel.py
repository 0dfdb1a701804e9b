"""What operators are told of an exchange that failed."""

from __future__ import annotations

import grpc
import pytest

from tidings.wire.channel import explain


class Failure(grpc.RpcError, grpc.Call):  # type: ignore[misc]  # grpc has no hints
    def __init__(self, details: str) -> None:
        self._details = details

    def details(self) -> str:
        return self._details


Failure.__abstractmethods__ = frozenset()


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ("\x1b[31mred\x1b]0;title\x07 fine", r"\x1b[31mred\x1b]0;title\x07 fine"),
        ("turned \u202e round \x9b", r"turned \u202e round \x9b"),
        ("caf\udce9", r"caf\udce9"),
        ("certificate verify failed: \x1b[2J. more", r"its certificate is not signed by whom we trust (\x1b[2J)"),
        ("failed to connect: Connection refused (111)", "nothing listens at its address"),
        ("", "the connection broke"),
    ],
)
def test_what_a_peer_says_of_a_failure_is_shown_and_not_obeyed(details: str, reason: str) -> None:
    assert explain(Failure(details), "10.0.0.7:7400") == reason


def test_a_long_reason_is_cut() -> None:
    assert explain(Failure("x" * 10_000), "10.0.0.7:7400") == "x" * 500


def test_who_listens_on_its_own_machine_alone_is_told_how_to_be_reached() -> None:
    told = explain(Failure("Connection refused (111)"), "127.0.0.1:7400")
    assert told.startswith("nothing listens at its address; that is this very machine")
    assert told.endswith("needs --listen")
