"""The regular expressions of filters: those that two engines treat alike, and that neither can be made to choke on.

An expression runs in two engines: Java's, in Spark, and RE2, in Arrow. They differ in many small ways, and
Java's backtracks: `(a+)+` can keep it busy for years, and a loop over a group can overflow its stack. So an expression
is read here, only what both treat alike is let through, and each engine gets its own spelling of it. What backtracking
could do is bounded beforehand: of all ways to match a text, no more than `MAX_PATHS` may be open at any character, so
that the time is linear in the text.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from tidings.errors import InvalidFilter
from tidings.filter_text import ESCAPES, MAX_DEPTH

MAX_PATTERN_LENGTH = 1_024
"""The longest regular expression, in characters."""

MAX_PATTERN_SIZE = 512
"""How many characters and classes an expression may have once its counted repetitions are written out."""

MAX_REPEAT = 256
"""The highest count in a regular expression: `{256}`."""

MAX_PATHS = 32
"""How many ways to match a text may be open at any of its characters."""

MAX_ANALYSIS = 200_000
"""How many steps are spent on finding that out."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression for the whole value, as each engine spells it."""

    java: str
    re2: str


@functools.lru_cache(1024)
def pattern(text: str) -> Pattern:
    r"""The expression for both engines, or `InvalidFilter` if it is not in the part that they share.

    >>> pattern("contacts/.*").java
    '\\Acontacts/'
    >>> pattern("a*a*b")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tidings.errors.InvalidFilter: regular expression 'a*a*b': a text could match in too many ways: ...
    """
    if len(text) > MAX_PATTERN_LENGTH:
        raise InvalidFilter(f"the regular expression has {len(text):,} characters; the limit is {MAX_PATTERN_LENGTH:,}")
    try:
        tree = _PatternReader(text).whole()
        branches = tree.branches if isinstance(tree, _Choice) else (tree,)
        java = [spelling for branch in branches for spelling in _java(branch)]
    except _Refused as refused:
        raise InvalidFilter(f"regular expression {text!r}: {refused}") from None
    re2 = _spelled(tree, star="*")
    # \A comes first, outside of any group: so Java knows that there is nothing to search for further on.
    return Pattern(rf"\A{java[0]}" if len(java) == 1 else rf"\A(?:{'|'.join(java)})", rf"\A(?:{re2})\z")


class _Refused(Exception):
    """Why an expression is not let through."""


_Ranges = tuple[tuple[int, int], ...]  # of code points: sorted, apart, ends included


@dataclass(frozen=True, slots=True)
class _Chars:
    """One character out of a set."""

    ranges: _Ranges


@dataclass(frozen=True, slots=True)
class _Sequence:
    items: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    branches: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Upto:
    """None of the copies, the first, the first two … or all: `x?` is one copy, `x{0,3}` three."""

    copies: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Star:
    body: _Node


_Node = _Chars | _Sequence | _Choice | _Upto | _Star


def _union(ranges: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> _Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: _Ranges) -> _Ranges:
    edges = [-1, *(edge for low, high in ranges for edge in (low, high)), 0x110000]
    return tuple((low + 1, high - 1) for low, high in zip(edges[::2], edges[1::2], strict=True) if high - low > 1)


def _of(*spans: str) -> _Ranges:
    return _union([(ord(span[0]), ord(span[-1])) for span in spans])


_ANY = _Chars(((0, 0x10FFFF),))
_GAP = _Star(_ANY)
# Spelled out, and ASCII only: each engine has a notion of its own of what a digit, a letter and a space is.
_SHORTHANDS = {"d": _of("09"), "w": _of("09", "AZ", "az", "_"), "s": _of(" ", "\t\r")}
_SHORTHANDS |= {letter.upper(): _complement(ranges) for letter, ranges in tuple(_SHORTHANDS.items())}
_PUNCTUATION = frozenset(r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~ """)


def _sequence(items: list[_Node]) -> _Node:
    flat = [part for item in items for part in (item.items if isinstance(item, _Sequence) else (item,))]
    return flat[0] if len(flat) == 1 else _Sequence(tuple(flat))


def _nullable(node: _Node) -> bool:
    """Whether the empty text matches."""
    match node:
        case _Chars():
            return False
        case _Sequence(items):
            return all(map(_nullable, items))
        case _Choice(branches):
            return any(map(_nullable, branches))
    return True


def _size(node: _Node) -> int:
    match node:
        case _Chars():
            return 1
        case _Sequence(parts) | _Choice(parts) | _Upto(parts):
            return sum(map(_size, parts))
        case _Star(body):
            return _size(body)


class _PatternReader:
    """Reads an expression, and writes out its repetitions: what is left are `*` and copies."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def whole(self) -> _Node:
        tree = self.choice(0)
        if self.at < len(self.text):
            self.fail(r"')' without '('; write \) for the character")
        if _size(tree) > MAX_PATTERN_SIZE:
            raise _Refused(self.too_large)
        return tree

    too_large = f"it is too large: more than {MAX_PATTERN_SIZE} characters and classes, repetitions written out"

    def choice(self, depth: int) -> _Node:
        if depth > MAX_DEPTH:
            self.fail(f"nested more than {MAX_DEPTH} deep")
        branches: list[_Node] = []
        while not branches or self.eat("|"):
            branch = self.sequence(depth)
            branches += branch.branches if isinstance(branch, _Choice) else (branch,)
        # With two empty ways through, the engine would try all that follows twice.
        if sum(map(_nullable, branches)) > 1:
            self.fail("more than one side of '|' can be empty")
        return branches[0] if len(branches) == 1 else _Choice(tuple(branches))

    def sequence(self, depth: int) -> _Node:
        items: list[_Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            items.append(self.repeated(self.atom(depth)))
        if not items:
            self.fail("nothing stands here; write `?` after what may be missing")
        return _sequence(items)

    def repeated(self, body: _Node) -> _Node:
        start = self.at
        counts = self.counts()
        if counts is None:
            return body
        if self.at < len(self.text) and self.text[self.at] in "?*+{":
            self.fail("a second quantifier: `*?`, `*+` and the like are not supported")
        low, high = counts
        if max(low, high or 0) > MAX_REPEAT or high == 0 or (high is not None and low > high):
            self.fail(f"a repetition is {{m,n}} with m <= n, 1 <= n <= {MAX_REPEAT}", start)
        if _nullable(body):
            self.fail("what is repeated can be empty", start)
        if _size(body) * max(low, high or 0, 1) > MAX_PATTERN_SIZE:
            raise _Refused(self.too_large)
        more: list[_Node] = [_Star(body)] if high is None else [_Upto((body,) * (high - low))] if high > low else []
        return _sequence([body] * low + more)

    def counts(self) -> tuple[int, int | None] | None:
        for symbol, counts in {"*": (0, None), "+": (1, None), "?": (0, 1)}.items():
            if self.eat(symbol):
                return counts
        if self.at == len(self.text) or self.text[self.at] != "{":
            return None
        found = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}").match(self.text, self.at)
        if not found:
            self.fail(r"'{' begins a repetition, {m}, {m,} or {m,n}; write \{ for the character")
        self.at = found.end()
        low = int(found[1])
        return low, int(found[3]) if found[3] else None if found[2] else low

    def atom(self, depth: int) -> _Node:
        start = self.at
        character = self.character()
        match character:
            case "(":
                if not self.eat("?:") and self.text.startswith("?", self.at):
                    self.fail("of all that begins with '(?' only (?:…) is supported", start)
                inner = self.choice(depth + 1)
                if not self.eat(")"):
                    self.fail("'(' is never closed", start)
                return inner
            case "[":
                return self.chars(start)
            case ".":
                return _ANY
            case "\\":
                return _Chars(self.escape(start))
            case "^" | "$":
                self.fail(rf"the whole value must match, so leave {character} out; write \{character} for it", start)
            case "*" | "+" | "?" | "{":
                self.fail(rf"nothing to repeat before '{character}'; write \{character} for the character", start)
            case "]" | "}":
                self.fail(rf"'{character}' without its partner; write \{character} for the character", start)
        return _Chars(_of(character))

    def chars(self, start: int) -> _Chars:
        negated = self.eat("^")
        ranges: list[tuple[int, int]] = []
        while not self.eat("]"):
            at = self.at
            low = self.member(start)
            # A hyphen that stands first or last is the character itself.
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self.member(start)
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or low[0][0] > high[0][0]:
                    self.fail("this range of characters has no order", at)
                if high[0][0] != high[0][1]:
                    self.fail("a range ends in one character", at)
                low = ((low[0][0], high[0][0]),)
            ranges += low
        found = _complement(_union(ranges)) if negated else _union(ranges)
        if not ranges or not found:
            self.fail("a class needs a character", start)
        return _Chars(found)

    def member(self, start: int) -> _Ranges:
        at = self.at
        if at == len(self.text):
            self.fail("'[' is never closed", start)
        character = self.character()
        if character == "\\":
            return self.escape(at)
        if character == "[" or self.text.startswith("&&", at):
            self.fail(rf"write \{character} for the character in a class", at)
        return _of(character)

    def escape(self, start: int) -> _Ranges:
        if self.at == len(self.text):
            self.fail("nothing after the backslash", start)
        character = self.character()
        if character in _SHORTHANDS:
            return _SHORTHANDS[character]
        if character in ESCAPES:
            return _of(ESCAPES[character])
        if character not in _PUNCTUATION:
            self.fail(rf"\{character} is not supported", start)
        return _of(character)

    def character(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def eat(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        raise _Refused(f"at character {(self.at if at is None else at) + 1}: {problem}")


def _spelled(node: _Node, star: str) -> str:
    """The expression again, with nothing left to an engine's own ideas: code points, classes, plain groups."""
    match node:
        case _Chars(((low, high),)) if low == high:
            return _character(low, plain="/_:-@ ")
        case _Chars(ranges):
            spans = (f"{_character(low)}-{_character(high)}" if low < high else _character(low) for low, high in ranges)
            return f"[{''.join(spans)}]"
        case _Sequence(items):
            return "".join(f"(?:{_spelled(i, star)})" if isinstance(i, _Choice) else _spelled(i, star) for i in items)
        case _Choice(branches):
            # What can be empty comes last: a loop that never goes back must first try what is there.
            return "|".join(_spelled(branch, star) for branch in sorted(branches, key=_nullable))
        case _Upto(copies):
            return "".join("(?:" + _group(copy, star) for copy in copies) + ")?" * len(copies)
        case _Star(body):
            return _group(body, star) + star


def _group(node: _Node, star: str) -> str:
    return _spelled(node, star) if isinstance(node, _Chars) else f"(?:{_spelled(node, star)})"


def _character(code: int, plain: str = "") -> str:
    character = chr(code)
    return character if character.isascii() and (character.isalnum() or character in plain) else f"\\x{{{code:x}}}"


# How Java matches, and why it stays linear.
#
# A branch is cut at its gaps, the `.*` that stand outside of parentheses. A piece between two gaps is found by
# `(?>.*?piece)`: the first place where it fits, never reconsidered. That is exact if the piece has one length (nothing
# is lost by taking the first end there is, since a gap follows), or if only a last gap follows. A piece of several
# lengths is written out as several branches. All else is matched by plain backtracking, over as many open paths as
# `_Paths` allows.
#
# A loop over more than one character would recurse in Java once for each round, and overflow the stack on a long text.
# Only a possessive loop does not. It is exact if the next character alone always decides what to do; so a branch
# with such a loop must have that property throughout.


def _java(branch: _Node) -> list[str]:
    """The branch in Java's spelling, anchored at its end; or several, of which one must match."""
    if _loops(branch):
        if not _Paths(branch).deterministic():
            raise _Refused(
                "a group may be repeated without end only if the next character alone decides what to do, as in "
                "`(?:/[a-z]+)*`"
            )
        return [_spelled(branch, star="*+") + r"\z"]
    pieces: list[list[_Node]] = [[]]
    for item in branch.items if isinstance(branch, _Sequence) else (branch,):
        if item == _GAP:
            pieces.append([])
        else:
            pieces[-1].append(item)
    head, middle, tail = pieces[0], [piece for piece in pieces[1:-1] if piece], pieces[-1] if len(pieces) > 1 else []
    gap = _spelled(_GAP, star="*")
    if len(pieces) == 1:
        _Paths(branch).bound()
        return [_spelled(branch, star="*") + r"\z"]
    _Paths(_Sequence((*head, _GAP))).bound()
    for piece in (*middle, tail):
        _Paths(_Sequence((_GAP, *piece))).bound()
    spellings = [_spelled(_Sequence(tuple(head)), star="*")]
    for number, piece in enumerate(middle, 1):
        last = number == len(middle) and not tail
        ways = [_sequence(piece)] if last else _of_one_length(_sequence(piece))
        if len(spellings) * len(ways) > MAX_PATHS:
            raise _Refused(_TOO_MANY)
        spellings = [f"{before}(?>{gap}?{_group(way, '*')})" for before in spellings for way in ways]
    # After a last gap anything may follow, even nothing: there is no need to look.
    end = rf"{gap}{_spelled(_Sequence(tuple(tail)), star='*')}\z" if tail else ""
    return [spelling + end for spelling in spellings]


_TOO_MANY = (
    "a text could match in too many ways: let what follows a repetition begin with a character that is not repeated, "
    "as in `[^/]*/`"
)


def _loops(node: _Node) -> bool:
    """Whether a group is repeated without end."""
    match node:
        case _Chars():
            return False
        case _Sequence(parts) | _Choice(parts) | _Upto(parts):
            return any(map(_loops, parts))
        case _Star(body):
            return not isinstance(body, _Chars)


def _length(node: _Node) -> int | None:
    """How many characters match, if that is always the same number."""
    match node:
        case _Chars():
            return 1
        case _Sequence(items):
            lengths = [_length(item) for item in items]
            return None if None in lengths else sum(length or 0 for length in lengths)
        case _Choice(branches):
            found = {_length(branch) for branch in branches}
            return found.pop() if len(found) == 1 else None
    return None


def _of_one_length(node: _Node) -> list[_Node]:
    """Nodes that match together what this one does, each of them texts of one length."""
    if _length(node) is not None:
        return [node]
    ways: list[_Node] = []
    match node:
        case _Choice(branches):
            ways = [way for branch in branches for way in _of_one_length(branch)]
        case _Upto(copies):
            ways = [way for n in range(len(copies) + 1) for way in _of_one_length(_Sequence(copies[:n]))]
        case _Sequence(items):
            ways = [_Sequence(())]
            for item in items:
                ways = [_sequence([before, way]) for before in ways for way in _of_one_length(item)][: MAX_PATHS + 1]
    if not 0 < len(ways) <= MAX_PATHS:
        raise _Refused(_TOO_MANY)
    return ways


class _Paths:
    """The ways through an expression, as Glushkov's automaton: a state for each of its characters and classes.

    `follow[p]` are the states that may come after p, as often as there are ways to get there; `follow[0]` are the
    first ones. Each path is one that a backtracking engine may try, and there are no others: nothing empty is repeated,
    and nothing is empty in two ways.
    """

    def __init__(self, node: _Node) -> None:
        self.follow: list[list[int]] = [[]]
        self._ranges: list[_Ranges] = [()]
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
                    if steps > MAX_ANALYSIS:
                        raise _Refused("it is too intricate to be sure that it is fast")
                    for symbol in self._symbols[after]:
                        vector = reached.setdefault(symbol, {})
                        vector[after] = vector.get(after, 0) + paths
            for vector in reached.values():
                if sum(vector.values()) > MAX_PATHS:
                    raise _Refused(_TOO_MANY)
                key = tuple(sorted(vector.items()))
                if key not in seen:
                    seen.add(key)
                    todo.append(key)

    def _add(self, node: _Node) -> tuple[list[int], list[int], bool]:
        """Adds the node's states. The first ones of it, the last ones, and whether it can be empty."""
        match node:
            case _Chars(ranges):
                self._ranges.append(ranges)
                self.follow.append([])
                state = len(self.follow) - 1
                return [state], [state], False
            case _Star(body):
                first, last, _ = self._add(body)
                self._link(last, first)
                return first, last, True
            case _Choice(branches):
                added = [self._add(branch) for branch in branches]
                return [s for a in added for s in a[0]], [s for a in added for s in a[1]], any(a[2] for a in added)
            case _Upto(copies):
                added = [self._add(copy) for copy in copies]
                for (_, last, _), (first, _, _) in itertools.pairwise(added):
                    self._link(last, first)
                return added[0][0], [s for a in added for s in a[1]], True
            case _Sequence(items):
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
