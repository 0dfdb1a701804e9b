"""The text form of filters.

This module reads text and says where it is wrong; what a filter means is in `tidings.filters`.

A filter is written as in `topic = aq or (assoc = a1 and shard in 1..5000)`:

    filter    = all ("or" all)*
    all       = part ("and" part)*
    part      = "not" part | "(" filter ")" | "everything" | "nothing" | key condition
    condition = ["not"] "exists" | ["not"] "in" set | ["not"] "between" text "and" text | ["not"] "matches" text
              | ("=" | "!=" | "<" | "<=" | ">" | ">=") text
    set       = "(" text ("," text)* ")" | [text] ".." [text]
    key, text = bare word | "quoted" | 'quoted'

A bare word is made of letters, digits and `_ - . / : @ +`, and is no keyword; `between` is one only after a key.
Between quotes a backslash escapes a backslash, a quote, and the n, t and r of a line's end, a tab and a return; any
other backslash stands for itself, so that `"\\d+"` is the expression that it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NoReturn

from tidings.errors import InvalidFilter

MAX_CHARACTERS = 65_536
"""The longest text of a filter, in characters."""

MAX_DEPTH = 32
"""How deep parentheses and `not` may be nested; parentheses in a regular expression, too."""

KEYWORDS = frozenset({"and", "or", "not", "in", "exists", "matches", "everything", "nothing"})

_BARE = r"(?:[\w\-/:@+]|\.(?!\.))+"
_BARE_WORD = re.compile(_BARE)
_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_LEXEME = re.compile(
    rf"\s*(?:(?P<quoted>{_QUOTED})|(?P<symbol>\.\.|[!<>]=|[=<>(),])|(?P<word>{_BARE})|(?P<end>\Z)|(?P<bad>.))",
    re.DOTALL,
)
_COMPARISONS: tuple[Literal["<", "<=", ">", ">="], ...] = ("<", "<=", ">", ">=")
_MEANT = {"==": "=", "<>": "!=", "=<": "<=", "=>": ">=", "&": "and", "|": "or", "!": "not", "~": "matches"}
"""What other languages write, and a filter writes otherwise."""
ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_SHOWN_CHARACTERS = 100  # of a long line, this much around the error
_NAMED_CHARACTERS = 40  # and this much of a long word


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A piece of a filter's text, and where it begins."""

    kind: Literal["word", "quoted", "symbol", "end"]
    text: str
    at: int
    end: int

    @property
    def keyword(self) -> str:
        """The keyword that this is, or nothing."""
        lower = self.text.lower()
        return lower if self.kind == "word" and lower in KEYWORDS else ""

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end"
        if self.keyword:
            return f"the keyword '{self.text}' (in quotes it would be text)"
        return f"'{self.text[:_NAMED_CHARACTERS]}…'" if len(self.text) > _NAMED_CHARACTERS else f"'{self.text}'"


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition as it was written. The operands of `..` may be missing."""

    key: Lexeme
    operator: Literal["exists", "=", "<", "<=", ">", ">=", "in", "..", "matches"]
    operands: tuple[Lexeme | None, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Parts that must all hold, or of which any must."""

    every: bool
    parts: tuple[Group | Clause, ...]


def read(text: str) -> Group | Clause:
    """The structure of a filter's text. A `not` before parentheses is carried inwards (De Morgan).

    >>> read("topic = aq").key.text
    'topic'
    >>> read("mcd_key =")
    Traceback (most recent call last):
    tidings.errors.InvalidFilter: column 10: expected a value, not the end
      mcd_key =
               ^
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidFilter(f"the filter has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
    return _FilterReader(text).whole()


def error_at(text: str, at: int, problem: str) -> InvalidFilter:
    """The error for a problem at this place of the text: it shows the line, and points at the column."""
    start = text.rfind("\n", 0, at) + 1
    line, column = text[start:].split("\n", 1)[0], at - start
    number = text.count("\n", 0, at) + 1
    where = f"line {number}, column {column + 1}" if "\n" in text else f"column {column + 1}"
    if len(line) > _SHOWN_CHARACTERS:
        left = max(0, column - _SHOWN_CHARACTERS // 2)
        line, column = f"…{line[left : left + _SHOWN_CHARACTERS]}…", column - left + 1
    # A tab stays a tab, so that the caret stands right below its character.
    caret = "".join("\t" if character == "\t" else " " for character in line[:column]) + "^"
    return InvalidFilter(f"{where}: {problem}\n  {line}\n  {caret}")


def quote(text: str) -> str:
    r"""The text as a filter spells it: bare if it can be, else in double quotes.

    >>> print(quote("eu-west"), quote("odd key"), quote("and"), quote(r"a\d"))
    eu-west "odd key" "and" "a\d"
    """
    if _BARE_WORD.fullmatch(text) and text.lower() not in KEYWORDS:
        return text
    # A backslash is doubled only where it would begin an escape: expressions stay readable.
    text = re.sub(r"""\\(?=[\\"'ntr\n\t\r]|\Z)|\"""", lambda found: "\\" + found[0], text)
    for letter, character in ESCAPES.items():
        text = text.replace(character, "\\" + letter)
    return f'"{text}"'


def _unquote(quoted: str) -> str:
    return re.sub(r"""\\([\\"'ntr])""", lambda found: ESCAPES.get(found[1], found[1]), quoted[1:-1])


class _FilterReader:
    """Recursive descent with one lexeme of lookahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.next = self._lexeme(0)

    def whole(self) -> Group | Clause:
        if self.ended():
            self.fail("the filter is empty: write `everything` for no filter")
        tree = self.any(negated=False, depth=0)
        if not self.ended():
            self.fail(f"expected 'and', 'or' or the end, not {self.next}")
        return tree

    def any(self, *, negated: bool, depth: int) -> Group | Clause:
        return self.joined("or", every=negated, negated=negated, depth=depth)

    def joined(self, word: str, *, every: bool, negated: bool, depth: int) -> Group | Clause:
        def part() -> Group | Clause:
            if word == "and":
                return self.part(negated=negated, depth=depth)
            return self.joined("and", every=not negated, negated=negated, depth=depth)

        parts = [part()]
        while self.next.keyword == word:
            self.take()
            parts.append(part())
        return Group(every, tuple(parts)) if len(parts) > 1 else parts[0]

    def part(self, *, negated: bool, depth: int) -> Group | Clause:
        if depth > MAX_DEPTH:
            self.fail(f"nested more than {MAX_DEPTH} deep")
        if self.next.keyword == "not":
            self.take()
            return self.part(negated=not negated, depth=depth + 1)
        if self.next.keyword in ("everything", "nothing"):
            return Group((self.take().keyword == "everything") is not negated, ())
        if self.symbol("("):
            self.take()
            inner = self.any(negated=negated, depth=depth + 1)
            self.expect(")", "'and', 'or' or ')'")
            return inner
        return self.clause(negated=negated)

    def clause(self, *, negated: bool) -> Clause:
        key = self.value("a key, 'not' or '('")
        if key.kind == "word" and key.text == "attributes." and self.next.kind == "quoted" and self.next.at == key.end:
            name = self.take()
            key = Lexeme("word", key.text + name.text, key.at, name.end)
        if self.symbol("=") or self.symbol("!="):
            unequal = self.compared().text == "!="
            return Clause(key, "=", (self.value("a value"),), negated is not unequal)
        for comparison in _COMPARISONS:
            if self.symbol(comparison):
                self.compared()
                return Clause(key, comparison, (self.value("a value"),), negated)
        word, expected = self.operator(), "'exists', 'in', 'between', 'matches' or a comparison such as '='"
        if word == "not":
            self.take()
            negated, word = not negated, self.operator()
            expected = "'exists', 'in', 'between' or 'matches' after 'not'"
        if word == "exists":
            self.take()
            return Clause(key, "exists", (), negated)
        if word == "matches":
            self.take()
            return Clause(key, "matches", (self.value("a regular expression"),), negated)
        if word == "between":
            self.take()
            low = self.value("the lower end, as in between 1 and 5")
            if self.next.keyword != "and":
                self.fail(f"expected 'and' and the upper end, as in between 1 and 5, not {self.next}")
            self.take()
            return Clause(key, "..", (low, self.value("the upper end")), negated)
        if word == "in":
            self.take()
            if self.symbol("("):
                return Clause(key, "in", tuple(self.values()), negated)
            return Clause(key, "..", self.bounds(), negated)
        return self.fail(f"expected {expected}, not {self.next}")

    def operator(self) -> str:
        """The word that may come after a key: `between` is a keyword here alone, since keys and values may have it."""
        between = self.next.kind == "word" and self.next.text.lower() == "between"
        return "between" if between else self.next.keyword

    def compared(self) -> Lexeme:
        """The sign of a comparison, if it is one by itself."""
        sign = self.take()
        if (
            self.next.kind == "symbol"
            and self.next.at == sign.end
            and (meant := _MEANT.get(sign.text + self.next.text))
        ):
            self.fail(f"'{sign.text}{self.next.text}' is no comparison: write {meant}", sign)
        return sign

    def values(self) -> Iterator[Lexeme]:
        self.take()
        yield self.value("a value")
        while self.symbol(","):
            self.take()
            yield self.value("a value")
        self.expect(")", "',' or ')'")

    def bounds(self) -> tuple[Lexeme | None, Lexeme | None]:
        start = self.next
        low = None if self.symbol("..") else self.value("'(' or an interval such as 1..5000")
        if not self.symbol(".."):
            self.fail("expected values in parentheses, or an interval such as 1..5000", start)
        self.take()
        high = self.take() if self.next.kind in ("word", "quoted") and not self.next.keyword else None
        if low is None and high is None:
            self.fail("an interval needs an end; for any value write `exists`", start)
        return low, high

    def value(self, expected: str) -> Lexeme:
        if self.next.kind not in ("word", "quoted") or self.next.keyword:
            self.fail(f"expected {expected}, not {self.next}")
        return self.take()

    def ended(self) -> bool:
        return self.next.kind == "end"

    def symbol(self, text: str) -> bool:
        return self.next.kind == "symbol" and self.next.text == text

    def expect(self, symbol: str, expected: str) -> None:
        if not self.symbol(symbol):
            self.fail(f"expected {expected}, not {self.next}")
        self.take()

    def take(self) -> Lexeme:
        taken, self.next = self.next, self._lexeme(self.next.end)
        return taken

    def fail(self, problem: str, lexeme: Lexeme | None = None) -> NoReturn:
        raise error_at(self.text, (lexeme or self.next).at, problem)

    def _lexeme(self, at: int) -> Lexeme:
        found = _LEXEME.match(self.text, at)
        assert found is not None, "whatever is left begins with a lexeme, or with a bad character"
        kind = found.lastgroup or "bad"
        text, at = found[kind], found.start(kind)
        match kind:
            case "quoted":
                return Lexeme("quoted", _unquote(text), at, found.end())
            case "word" | "symbol" | "end":
                return Lexeme(kind, text, at, found.end())
        if text in "\"'":
            raise error_at(self.text, at, "this quote is never closed")
        hint = (
            f"write '{_MEANT[text]}', or quote the text that has it" if text in _MEANT else "quote the text that has it"
        )
        raise error_at(self.text, at, f"'{text}' is no operator: {hint}")
