"""How many ways through a regular expression a text can leave open: what a backtracking engine would try."""

from __future__ import annotations

import itertools

from tidings.filters.expressions import Chars, Choice, Node, PatternRefused, Ranges, Sequence, Star, Upto

MAX_PATHS = 32
"""How many ways to match a text may be open at any of its characters."""

MAX_ANALYSIS_STEPS = 200_000
"""How many steps are spent on finding that out."""

TOO_MANY_WAYS = (
    "a text could match in too many ways: let what follows a repetition begin with a character that is not repeated, "
    "as in `[^/]*/`"
)


class Paths:
    """The ways through an expression, as Glushkov's automaton: a state for each of its characters and classes.

    `follow[p]` are the states that may come after p, as often as there are ways to get there; `follow[0]` are the
    first ones. Each path is one that a backtracking engine may try, and there are no others: nothing empty is repeated,
    and nothing is empty in two ways.
    """

    def __init__(self, node: Node) -> None:
        self.follow: list[list[int]] = [[]]
        self._ranges: list[Ranges] = [()]
        self.follow[0] = self._add(node)[0]
        # Characters that no class tells apart are one symbol.
        edges = sorted({edge for ranges in self._ranges for low, high in ranges for edge in (low, high + 1)})
        symbols: dict[tuple[int, ...], int] = {}
        for edge in edges:
            states = tuple(
                state for state, ranges in enumerate(self._ranges) if any(low <= edge <= high for low, high in ranges)
            )
            symbols.setdefault(states, len(symbols))
        self._symbols: list[list[int]] = [[] for _ in self._ranges]
        for states, symbol in symbols.items():
            for state in states:
                self._symbols[state].append(symbol)

    def deterministic(self) -> bool:
        """Whether the next character always decides alone."""
        for states in self.follow:
            symbols = [symbol for state in states for symbol in self._symbols[state]]
            if len(symbols) > len(set(symbols)):
                return False
        return True

    def bound(self) -> None:
        """Refuse the expression if more than `MAX_PATHS` paths can be open at once on some text.

        Follows all texts at a time: a vector says how many paths lead to each state, and there is a finite number of
        vectors as long as the paths are bounded.
        """
        start: tuple[tuple[int, int], ...] = ((0, 1),)
        seen, todo, steps = {start}, [start], 0
        while todo:
            reached: dict[int, dict[int, int]] = {}
            for state, paths in todo.pop():
                for after in self.follow[state]:
                    steps += len(self._symbols[after])
                    if steps > MAX_ANALYSIS_STEPS:
                        raise PatternRefused("it is too intricate to be sure that it is fast")
                    for symbol in self._symbols[after]:
                        vector = reached.setdefault(symbol, {})
                        vector[after] = vector.get(after, 0) + paths
            for vector in reached.values():
                if sum(vector.values()) > MAX_PATHS:
                    raise PatternRefused(TOO_MANY_WAYS)
                key = tuple(sorted(vector.items()))
                if key not in seen:
                    seen.add(key)
                    todo.append(key)

    def _add(self, node: Node) -> tuple[list[int], list[int], bool]:
        """Adds the node's states. The first ones of it, the last ones, and whether it can be empty."""
        match node:
            case Chars(ranges):
                self._ranges.append(ranges)
                self.follow.append([])
                state = len(self.follow) - 1
                return [state], [state], False
            case Star(body):
                first, last, _ = self._add(body)
                self._link(last, first)
                return first, last, True
            case Choice(branches):
                added = [self._add(branch) for branch in branches]
                return [s for a in added for s in a[0]], [s for a in added for s in a[1]], any(a[2] for a in added)
            case Upto(copies):
                added = [self._add(copy) for copy in copies]
                for (_, last, _), (first, _, _) in itertools.pairwise(added):
                    self._link(last, first)
                return added[0][0], [s for a in added for s in a[1]], True
            case Sequence(items):
                firsts: list[int] = []
                lasts: list[int] = []
                empty = True
                for item in items:
                    first, last, nullable = self._add(item)
                    self._link(lasts, first)
                    firsts += first if empty else []
                    lasts = lasts + last if nullable else last
                    empty = empty and nullable
                return firsts, lasts, empty

    def _link(self, last: list[int], first: list[int]) -> None:
        for state in last:
            self.follow[state] += first
