"""The one form that all benchmarks report in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """One figure of ours beside a reference; a ratio above 1 means that ours is better."""

    metric: str
    ours: float
    unit: str
    reference: str | None = None
    reference_value: float | None = None
    ratio: float | None = None


def more_is_better(metric: str, ours: float, unit: str, reference: str, value: float) -> Row:
    return Row(metric, ours, unit, reference, value, ours / value)


def less_is_better(metric: str, ours: float, unit: str, reference: str, value: float) -> Row:
    return Row(metric, ours, unit, reference, value, value / ours)


def milliseconds(seconds: Sequence[float] | np.ndarray[Any, Any], percentile: float) -> float:
    return float(np.percentile(seconds, percentile)) * 1000
