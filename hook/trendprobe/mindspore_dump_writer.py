"""PrecisionDebugger's writer on MindSpore: the statistics are msProbe's own."""

from __future__ import annotations

import math
from typing import Any

from trendprobe.dump_writer import TrendDataWriter

# In the order in which msProbe hands them over.
_STATISTICS = ("max", "min", "mean", "norm")


class MindsporeDataWriter(TrendDataWriter):
    """As TrendDataWriter. Statistics that msProbe does not compute (std, nans, infs, zeros) are not there."""

    def take_measurement(self, stat_vector: list[Any]) -> list[Any]:
        """Numbers, and tensors of one element that may still be on their way: they are read when the step ends."""
        return list(stat_vector)

    def values_of(self, measurement: list[Any]) -> tuple[float | None, ...]:
        """The chosen statistics, None where msProbe has none."""
        numbers = dict(zip(_STATISTICS, map(_number, measurement)))
        return tuple(numbers.get(name) for name in self._statistics)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value.item() if hasattr(value, "item") else value)
    return math.nan if math.isnan(number) else number
