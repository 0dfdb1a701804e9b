"""A YAML file as plain values that know their lines, and the mistakes in it, each told with its line.

The file may come from anywhere, so only plain YAML is taken: no tags, no anchors, and neither size nor depth without a
bound. Whole numbers are those of YAML 1.2, and 1:30 is a text. Keys stay as they are written; each is there once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tidings.config.files import read_bytes
from tidings.errors import InvalidConfig

MAX_DEPTH = 32
MAX_DIGITS = 100

Key = tuple[str | int, ...]
"""Where a value is: the keys and indices that lead to it."""


class Mistakes:
    """The mistakes in one file, gathered so that all are told at once. `lines` holds the line of each key."""

    def __init__(self, path: Path, lines: dict[Key, int]) -> None:
        self.path = path
        self.lines = lines
        self._found: list[tuple[int, str]] = []
        self._blamed: set[Key] = set()

    def blame(self, key: Key, message: str, line: int | None = None) -> None:
        """Note a mistake at a key; one that is not there is blamed on what it is missing from."""
        self._blamed.add(key)
        self.at(line or self._line(key), f"{'.'.join(map(str, key))}: {message}" if key else message)

    def at(self, line: int, message: str) -> None:
        """Note a mistake on a line."""
        self._found.append((line, f"{self.path}:{line}: {message}"))

    def place(self, key: Key) -> str:
        """Where a key is, for what is worth knowing and no mistake."""
        return f"{self.path}:{self._line(key)}: {'.'.join(map(str, key))}"

    def within(self, key: Key) -> set[Key]:
        """The keys at which there is a mistake: this one, and those further in."""
        return {one for one in self._blamed if one[: len(key)] == key}

    def _line(self, key: Key) -> int:
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key, 1)

    def copy(self) -> Mistakes:
        """The same, for somebody who looks for more."""
        copy = Mistakes(self.path, self.lines)
        copy._found, copy._blamed = [*self._found], {*self._blamed}
        return copy

    def check(self) -> None:
        """Raise `InvalidConfig` if there are mistakes."""
        if self._found:
            raise InvalidConfig("\n".join(dict.fromkeys(text for _, text in sorted(self._found))))


class _Loader(yaml.SafeLoader):
    """Composes the tree of a file that may come from anywhere: no tags, no anchors, and no depth that exhausts us."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call] # the stubs leave it out
        problem = None
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            problem = "anchors and aliases are not taken here: write the value out"
        elif getattr(event, "tag", None):
            problem = f"tags are not taken here: leave {event.tag} out"
        elif self.depth >= MAX_DEPTH:
            problem = f"more than {MAX_DEPTH} levels"
        if problem:
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > MAX_DIGITS:
        raise ValueError(f"more than {MAX_DIGITS} digits")
    return int(node.value, {"0o": 8, "0x": 16}.get(node.value[:2], 10))


# YAML 1.1, which PyYAML reads, has numbers to the base 60: those take the square of their length.
_NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "tag:yaml.org,2002:float": r"[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?|\.[0-9][0-9_]*([eE][-+][0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in _NUMBERS]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), list("-+.0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def read(mistakes: Mistakes) -> Any:
    """The file as plain values, None if it says nothing; the line of each key goes into the mistakes."""
    raw = read_bytes(mistakes.path)
    try:
        text = raw.decode("utf-8-sig")
        loader = _Loader(text)
        node = loader.get_single_node()
        value = None if node is None else _value(node, (), loader, mistakes)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidConfig(f"{mistakes.path}:{line}: broken YAML: byte {raw[error.start]:#04x} is not UTF-8") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidConfig(
            f"{mistakes.path}:{line}: broken YAML: character {error.character:#x} is not allowed"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{mark.line + 1}:{mark.column + 1}" if mark else "1"
        raise InvalidConfig(f"{mistakes.path}:{place}: broken YAML: {error.problem or error.context}") from None
    return value


def _value(node: yaml.Node, key: Key, loader: _Loader, mistakes: Mistakes) -> Any:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for at, item in enumerate(node.value):
            mistakes.lines[(*key, at)] = item.start_mark.line + 1
        return [_value(item, (*key, at), loader, mistakes) for at, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        try:
            return loader.construct_object(node)
        except (ValueError, OverflowError) as error:
            mistakes.blame(key, f"{node.value[:40]!r} cannot be read: {error}", line)
            return None
    values: dict[str, Any] = {}
    for name_node, value_node in node.value:
        line = name_node.start_mark.line + 1
        if not isinstance(name_node, yaml.ScalarNode):
            mistakes.at(line, "a key must be text, not a list or a mapping")
            continue
        name = name_node.value  # as it is written: a stream may be called 2026-01-01, or on
        if name in values:
            mistakes.blame((*key, name), f"is here twice, first on line {mistakes.lines[*key, name]}", line)
        mistakes.lines[*key, name] = line
        values[name] = _value(value_node, (*key, name), loader, mistakes)
    return values
