"""The changes of the map are all that a page needs to follow it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidings.console.cluster_nodes import ClusterNodes
from tidings.console.cluster_view import STATES, ClusterView
from tidings.console.flow_map import COLOURS, MAX_GONE, NO_MAP, FlowMap, next_colours, next_map
from tidings.flow_status import FlowStatus
from tidings.flows import Flow

PUBLISHERS = [f"p{number}" for number in range(4)]
CELLS = st.lists(st.tuples(st.sampled_from([None, *PUBLISHERS]), st.sampled_from(STATES)), min_size=1, max_size=4)
VIEWS = st.lists(st.tuples(st.sets(st.sampled_from(PUBLISHERS)), st.lists(CELLS, max_size=2)), min_size=1, max_size=8)


def view(version: int, running: set[str], rows: list[list[tuple[str | None, str]]]) -> ClusterView:
    flows = tuple(
        FlowStatus(Flow(f"a{number}", "s", shard), state, owner=owner)  # type: ignore[arg-type] # a state, as text
        for number, row in enumerate(rows)
        for shard, (owner, state) in enumerate(row)
    )
    nodes = ClusterNodes(0.0, publishers={name: {} for name in running})
    return ClusterView(version, nodes, {}, flows, {}, None)


class Page:
    """Follows the map as the pages do."""

    def __init__(self, first: FlowMap) -> None:
        self.known = first.to_json()
        self.fetched = 0

    def hear(self, event: dict[str, object], now: FlowMap) -> None:
        if event["layout"] != self.known["layout"] or self.known["version"] < event["since"]:
            self.known = now.to_json()
            self.fetched += 1
            return
        self.known |= {"version": event["version"], "publishers": event["publishers"]}
        for row, shard, owner, letter in event["changes"]:  # type: ignore[attr-defined] # a list, as JSON has it
            states = self.known["rows"][row]["states"]
            self.known["rows"][row]["owners"][shard] = owner
            self.known["rows"][row]["states"] = states[:shard] + letter + states[shard + 1 :]


@given(VIEWS)
def test_a_page_that_hears_of_every_change_has_the_map(
    steps: list[tuple[set[str], list[list[tuple[str | None, str]]]]],
) -> None:
    seen = next_map(view(1, *steps[0]), NO_MAP)
    page = Page(seen)
    for version, step in enumerate(steps[1:], 2):
        now = next_map(view(version, *step), seen)
        page.hear(now.changes(seen), now)
        assert page.known == now.to_json()
        seen = now


def test_a_publisher_that_goes_keeps_its_place() -> None:
    row = [("p0", "running"), ("p1", "running")]
    first = next_map(view(1, {"p0", "p1"}, [row]), NO_MAP)  # type: ignore[list-item] # as above
    second = next_map(view(2, {"p1"}, [[("p1", "running"), ("p1", "running")]]), first)
    assert second.changes(first)["changes"] == [[0, 0, 1, "r"]]
    assert second.publishers == ("p0", "p1")
    assert second.states == ("gone", "running")
    assert second.layout == first.layout


def test_publishers_that_are_gone_are_forgotten_in_the_end() -> None:
    known = NO_MAP
    for number in range(2 * MAX_GONE):
        known = next_map(view(number, {f"p{number}"}, [[(f"p{number}", "running")]]), known)
    assert len(known.publishers) <= MAX_GONE + 1


def test_colours_of_publishers_do_not_change_while_others_come_and_go() -> None:
    known, seen = NO_MAP, set[int | None]()
    for number in range(2 * MAX_GONE):
        known = next_map(view(number, {"east", "west", f"p{number}"}, []), known)
        colours = dict(zip(known.publishers, known.colours, strict=True))
        seen.add(colours["east"])
        assert len({colours[name] for name in ("east", "west", f"p{number}")} & set(range(COLOURS))) == 3
    assert len(seen) == 1


def test_a_publisher_that_comes_back_has_its_colour_if_nobody_has_got_it() -> None:
    known = next_map(view(1, {"east", "west"}, []), NO_MAP)
    alone = next_map(view(2, {"west"}, []), known)
    assert alone.colours == known.colours
    assert next_map(view(3, {"east", "west"}, []), alone).colours == known.colours


@given(st.sets(st.text("abc-", min_size=1), max_size=3 * COLOURS))
def test_no_two_publishers_that_run_have_the_same_colour_and_round(names: set[str]) -> None:
    given = next_colours(dict.fromkeys(names), names)
    assert len(set(given.values())) == len(names)
    rounds = [sum(number // COLOURS == turn for number in given.values() if number is not None) for turn in range(3)]
    assert rounds == [max(0, min(COLOURS, len(names) - turn * COLOURS)) for turn in range(3)]
    assert next_colours(dict.fromkeys(sorted(names, reverse=True)), names) == given
