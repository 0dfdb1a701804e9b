"""Regular expressions as trees: reads what all engines treat alike, and says of anything else why it is refused.

Counted repetitions are written out while reading. What is left are characters out of sets, sequences, choices, copies
of which some may be missing, and `*`; an engine's own ideas of classes, anchors and flags have no place in a tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from tidings.filters.text import ESCAPES, MAX_DEPTH

MAX_PATTERN_SIZE = 512
"""How many characters and classes an expression may have once its counted repetitions are written out."""

MAX_REPEAT = 256
"""The highest count in a regular expression: `{256}`."""


class PatternRefused(Exception):
    """Why an expression is not let through."""


Ranges = tuple[tuple[int, int], ...]
"""Ranges of code points: sorted, apart, ends included."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several; at most one of them can be empty."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Upto:
    """None of the copies, the first, the first two … or all: `x?` is one copy, `x{0,3}` three."""

    copies: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Star:
    """Any number of times; what is repeated is never empty."""

    body: Node


Node = Chars | Sequence | Choice | Upto | Star


def _union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: Ranges) -> Ranges:
    edges = [-1, *(edge for low, high in ranges for edge in (low, high)), 0x110000]
    return tuple((low + 1, high - 1) for low, high in zip(edges[::2], edges[1::2], strict=True) if high - low > 1)


def _of(*spans: str) -> Ranges:
    return _union([(ord(span[0]), ord(span[-1])) for span in spans])


ANY = Chars(((0, 0x10FFFF),))
"""What `.` stands for: any character, a line's end too."""

# Spelled out, and ASCII only: each engine has a notion of its own of what a digit, a letter and a space is.
_SHORTHANDS = {"d": _of("09"), "w": _of("09", "AZ", "az", "_"), "s": _of(" ", "\t\r")}
_SHORTHANDS |= {letter.upper(): _complement(ranges) for letter, ranges in tuple(_SHORTHANDS.items())}
_PUNCTUATION = frozenset(r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~ """)


def sequence_of(items: list[Node]) -> Node:
    """The items one after the other, sequences among them dissolved."""
    flat = [part for item in items for part in (item.items if isinstance(item, Sequence) else (item,))]
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def nullable(node: Node) -> bool:
    """Whether the empty text matches."""
    match node:
        case Chars():
            return False
        case Sequence(items):
            return all(map(nullable, items))
        case Choice(branches):
            return any(map(nullable, branches))
    return True


def _size(node: Node) -> int:
    match node:
        case Chars():
            return 1
        case Sequence(parts) | Choice(parts) | Upto(parts):
            return sum(map(_size, parts))
        case Star(body):
            return _size(body)


def read(text: str) -> Node:
    """The tree of an expression, or `PatternRefused`.

    >>> read("a?")
    Upto(copies=(Chars(ranges=((97, 97),)),))
    """
    return _PatternReader(text).whole()


class _PatternReader:
    """Reads an expression, and writes out its repetitions: what is left are `*` and copies."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def whole(self) -> Node:
        tree = self.choice(0)
        if self.at < len(self.text):
            self.fail(r"')' without '('; write \) for the character")
        if _size(tree) > MAX_PATTERN_SIZE:
            raise PatternRefused(self.too_large)
        return tree

    too_large = f"it is too large: more than {MAX_PATTERN_SIZE} characters and classes, repetitions written out"

    def choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.fail(f"nested more than {MAX_DEPTH} deep")
        branches: list[Node] = []
        while not branches or self.eat("|"):
            branch = self.sequence(depth)
            branches += branch.branches if isinstance(branch, Choice) else (branch,)
        # With two empty ways through, the engine would try all that follows twice.
        if sum(map(nullable, branches)) > 1:
            self.fail("more than one side of '|' can be empty")
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            items.append(self.repeated(self.atom(depth)))
        if not items:
            self.fail("nothing stands here; write `?` after what may be missing")
        return sequence_of(items)

    def repeated(self, body: Node) -> Node:
        start = self.at
        counts = self.counts()
        if counts is None:
            return body
        if self.at < len(self.text) and self.text[self.at] in "?*+{":
            self.fail("a second quantifier: `*?`, `*+` and the like are not supported")
        low, high = counts
        if max(low, high or 0) > MAX_REPEAT or high == 0 or (high is not None and low > high):
            self.fail(f"a repetition is {{m,n}} with m <= n, 1 <= n <= {MAX_REPEAT}", start)
        if nullable(body):
            self.fail("what is repeated can be empty", start)
        if _size(body) * max(low, high or 0, 1) > MAX_PATTERN_SIZE:
            raise PatternRefused(self.too_large)
        more: list[Node] = [Star(body)] if high is None else [Upto((body,) * (high - low))] if high > low else []
        return sequence_of([body] * low + more)

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

    def atom(self, depth: int) -> Node:
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
                return ANY
            case "\\":
                return Chars(self.escape(start))
            case "^" | "$":
                self.fail(rf"the whole value must match, so leave {character} out; write \{character} for it", start)
            case "*" | "+" | "?" | "{":
                self.fail(rf"nothing to repeat before '{character}'; write \{character} for the character", start)
            case "]" | "}":
                self.fail(rf"'{character}' without its partner; write \{character} for the character", start)
        return Chars(_of(character))

    def chars(self, start: int) -> Chars:
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
        return Chars(found)

    def member(self, start: int) -> Ranges:
        at = self.at
        if at == len(self.text):
            self.fail("'[' is never closed", start)
        character = self.character()
        if character == "\\":
            return self.escape(at)
        if character == "[" or self.text.startswith("&&", at):
            self.fail(rf"write \{character} for the character in a class", at)
        return _of(character)

    def escape(self, start: int) -> Ranges:
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
        raise PatternRefused(f"at character {(self.at if at is None else at) + 1}: {problem}")
