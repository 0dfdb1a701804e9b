"""Which metrics and labels an expression of Prometheus's query language names."""

from __future__ import annotations

import re
from typing import NamedTuple

_NOISE = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]')
_MATCHERS = re.compile(r"\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_WORD = re.compile(r"[a-zA-Z_:][\w:]*")
_CALL = re.compile(r"\b[a-z_]+\s*(?=\()")
_OPERATORS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "inf", "nan"}


class Named(NamedTuple):
    """What an expression names."""

    metrics: set[str]
    labels: set[str]


def named(expression: str) -> Named:
    """What it names.

    >>> found = named('sum by (stream) (rate(a_total{state="up", job=~"x.*"}[5m])) > 2 * b')
    >>> sorted(found.metrics), sorted(found.labels)
    (['a_total', 'b'], ['job', 'state', 'stream'])
    """
    text = _NOISE.sub(" ", expression)
    labels = {word for part in _MATCHERS.findall(text) for word in _WORD.findall(part)}
    text = _MATCHERS.sub(" ", text)
    labels |= {word for part in _GROUPING.findall(text) for word in _WORD.findall(part)}
    text = _CALL.sub(" ", _GROUPING.sub(" ", text))
    return Named(set(_WORD.findall(text)) - _OPERATORS, labels)
