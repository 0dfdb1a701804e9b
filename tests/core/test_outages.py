"""How often an outage is told."""

from __future__ import annotations

from tidings.outages import MAX_REASONS, SETTLED_S, Outage


class Told:
    """An outage, a clock that is set, and what was logged."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.outage = Outage("it", self.lines.append, clock=lambda: self.now)

    def lasts(self, seconds: float, reason: str = "no answer", after: float = 0.0) -> None:
        """It is away for so long, after a while in which it was there, and is tried every second."""
        self.now += after
        end = self.now + seconds
        while self.now < end:
            self.outage.begin(reason)
            self.now += 1.0
        self.now = end
        self.outage.end()


def test_the_beginning_and_the_end_are_told_once_each() -> None:
    told = Told()
    told.lasts(60)
    told.outage.end()
    assert told.lines == ["it is away: no answer", "it is back after 60.0 s"]


def test_a_reason_that_differs_by_a_number_only_is_the_same_and_few_others_are_told() -> None:
    told = Told()
    for number in range(100):
        told.outage.begin(f"port {number} is closed")
    for letter in "abcdefgh":
        told.outage.begin(f"reason {letter}")
    assert len(told.lines) == MAX_REASONS


def test_what_comes_and_goes_for_the_same_reason_is_told_the_first_time_until_it_lasts() -> None:
    told = Told()
    for _ in range(100):
        told.lasts(1, after=1)
    assert told.lines == ["it is away: no answer", "it is back after 1.0 s"]
    told.lasts(SETTLED_S + 10, after=1)
    assert told.lines[2:] == ["it is away: no answer", "it is back after 15.0 s"], "a long one is never silent"


def test_an_outage_long_after_the_last_is_another() -> None:
    told = Told()
    told.lasts(1)
    told.lasts(1, after=SETTLED_S + 1)
    assert len(told.lines) == 4


def test_how_long_it_has_been_away_is_known() -> None:
    told = Told()
    assert told.outage.seconds == 0
    told.outage.begin("no answer")
    told.now += 7
    assert told.outage.seconds == 7
    told.outage.end()
    assert told.outage.seconds == 0
