"""The regular expressions of filters: those that two engines treat alike, and that neither can be made to choke on.

What this is for: a filter comes from a user, runs on every update of a stream, and must give the same answer wherever
it runs. An expression runs in two engines: Java's, in Spark, and RE2, in Arrow. They differ in many small ways, and
Java's backtracks: `(a+)+` can keep it busy for years, and a loop over a group can overflow its stack. So an expression
is read (`expressions`), only what both treat alike is let through, and each engine gets its own spelling of it. What
backtracking could do is bounded beforehand (`paths`): of all ways to match a text, no more than `MAX_PATHS` may be open
at any character, so that the time is linear in the text.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tidings.errors import InvalidFilter
from tidings.filters.expressions import (
    ANY,
    Chars,
    Choice,
    Node,
    PatternRefused,
    Sequence,
    Star,
    Upto,
    nullable,
    read,
    sequence_of,
)
from tidings.filters.paths import MAX_PATHS, TOO_MANY_WAYS, Paths

MAX_PATTERN_CHARACTERS = 1_024
"""The longest regular expression, in characters."""

_GAP = Star(ANY)


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
    if len(text) > MAX_PATTERN_CHARACTERS:
        raise InvalidFilter(
            f"the regular expression has {len(text):,} characters; the limit is {MAX_PATTERN_CHARACTERS:,}"
        )
    try:
        tree = read(text)
        branches = tree.branches if isinstance(tree, Choice) else (tree,)
        java = [spelling for branch in branches for spelling in _java(branch)]
    except PatternRefused as refused:
        raise InvalidFilter(f"regular expression {text!r}: {refused}") from None
    re2 = _spelled(tree, star="*")
    # \A comes first, outside of any group: so Java knows that there is nothing to search for further on.
    return Pattern(rf"\A{java[0]}" if len(java) == 1 else rf"\A(?:{'|'.join(java)})", rf"\A(?:{re2})\z")


def _spelled(node: Node, star: str) -> str:
    """The expression again, with nothing left to an engine's own ideas: code points, classes, plain groups."""
    match node:
        case Chars(((low, high),)) if low == high:
            return _character(low, plain="/_:-@ ")
        case Chars(ranges):
            spans = (f"{_character(low)}-{_character(high)}" if low < high else _character(low) for low, high in ranges)
            return f"[{''.join(spans)}]"
        case Sequence(items):
            return "".join(f"(?:{_spelled(i, star)})" if isinstance(i, Choice) else _spelled(i, star) for i in items)
        case Choice(branches):
            # What can be empty comes last: a loop that never goes back must first try what is there.
            return "|".join(_spelled(branch, star) for branch in sorted(branches, key=nullable))
        case Upto(copies):
            return "".join("(?:" + _group(copy, star) for copy in copies) + ")?" * len(copies)
        case Star(body):
            return _group(body, star) + star


def _group(node: Node, star: str) -> str:
    return _spelled(node, star) if isinstance(node, Chars) else f"(?:{_spelled(node, star)})"


def _character(code: int, plain: str = "") -> str:
    character = chr(code)
    return character if character.isascii() and (character.isalnum() or character in plain) else f"\\x{{{code:x}}}"


# How Java matches, and why it stays linear.
#
# A branch is cut at its gaps, the `.*` that stand outside of parentheses. A piece between two gaps is found by
# `(?>.*?piece)`: the first place where it fits, never reconsidered. That is exact if the piece has one length (nothing
# is lost by taking the first end there is, since a gap follows), or if only a last gap follows. A piece of several
# lengths is written out as several branches. All else is matched by plain backtracking, over as many open paths as
# `Paths` allows.
#
# A loop over more than one character would recurse in Java once for each round, and overflow the stack on a long text.
# Only a possessive loop does not. It is exact if the next character alone always decides what to do; so a branch
# with such a loop must have that property throughout.


def _java(branch: Node) -> list[str]:
    """The branch in Java's spelling, anchored at its end; or several, of which one must match."""
    if _loops(branch):
        if not Paths(branch).deterministic():
            raise PatternRefused(
                "a group may be repeated without end only if the next character alone decides what to do, as in "
                "`(?:/[a-z]+)*`"
            )
        return [_spelled(branch, star="*+") + r"\z"]
    pieces: list[list[Node]] = [[]]
    for item in branch.items if isinstance(branch, Sequence) else (branch,):
        if item == _GAP:
            pieces.append([])
        else:
            pieces[-1].append(item)
    head, middle, tail = pieces[0], [piece for piece in pieces[1:-1] if piece], pieces[-1] if len(pieces) > 1 else []
    gap = _spelled(_GAP, star="*")
    if len(pieces) == 1:
        Paths(branch).bound()
        return [_spelled(branch, star="*") + r"\z"]
    Paths(Sequence((*head, _GAP))).bound()
    for piece in (*middle, tail):
        Paths(Sequence((_GAP, *piece))).bound()
    spellings = [_spelled(Sequence(tuple(head)), star="*")]
    for number, piece in enumerate(middle, 1):
        last = number == len(middle) and not tail
        ways = [sequence_of(piece)] if last else _of_one_length(sequence_of(piece))
        if len(spellings) * len(ways) > MAX_PATHS:
            raise PatternRefused(TOO_MANY_WAYS)
        spellings = [f"{before}(?>{gap}?{_group(way, '*')})" for before in spellings for way in ways]
    # After a last gap anything may follow, even nothing: there is no need to look.
    end = rf"{gap}{_spelled(Sequence(tuple(tail)), star='*')}\z" if tail else ""
    return [spelling + end for spelling in spellings]


def _loops(node: Node) -> bool:
    """Whether a group is repeated without end."""
    match node:
        case Chars():
            return False
        case Sequence(parts) | Choice(parts) | Upto(parts):
            return any(map(_loops, parts))
        case Star(body):
            return not isinstance(body, Chars)


def _length(node: Node) -> int | None:
    """How many characters match, if that is always the same number."""
    match node:
        case Chars():
            return 1
        case Sequence(items):
            lengths = [_length(item) for item in items]
            return None if None in lengths else sum(length or 0 for length in lengths)
        case Choice(branches):
            found = {_length(branch) for branch in branches}
            return found.pop() if len(found) == 1 else None
    return None


def _of_one_length(node: Node) -> list[Node]:
    """Nodes that match together what this one does, each of them texts of one length."""
    if _length(node) is not None:
        return [node]
    ways: list[Node] = []
    match node:
        case Choice(branches):
            ways = [way for branch in branches for way in _of_one_length(branch)]
        case Upto(copies):
            ways = [way for n in range(len(copies) + 1) for way in _of_one_length(Sequence(copies[:n]))]
        case Sequence(items):
            ways = [Sequence(())]
            for item in items:
                ways = [sequence_of([before, way]) for before in ways for way in _of_one_length(item)][: MAX_PATHS + 1]
    if not 0 < len(ways) <= MAX_PATHS:
        raise PatternRefused(TOO_MANY_WAYS)
    return ways
