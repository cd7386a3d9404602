"""The rows of trend databases, for tests that compare two of the same run."""

import sqlite3
from pathlib import Path

import pytest

Row = dict[str, float | None]


def rows(path: Path) -> dict[tuple[object, ...], Row]:
    with sqlite3.connect(path) as database:
        statistics = [row[1] for row in database.execute("PRAGMA table_info(trend_data)")][4:]
        found = database.execute(
            f"SELECT rank, step, target_name, vpp_stage, micro_step, metric_name, {', '.join(statistics)} "
            "FROM trend_data JOIN monitoring_targets USING (target_id) JOIN monitoring_metrics USING (metric_id)"
        )
        return {row[:6]: dict(zip(statistics, row[6:], strict=True)) for row in found}


def assert_same(
    ours: dict[tuple[object, ...], Row], theirs: dict[tuple[object, ...], Row], accuracy: float = 1e-6
) -> None:
    """Equal but for a relative difference, by default that of float32; a mean relative to the largest element."""
    assert ours.keys() == theirs.keys()
    for key, expected in theirs.items():
        found = ours[key]
        scale = max((abs(expected[name] or 0) for name in ("max", "min")), default=0)
        for name, value in expected.items():
            if value is None:
                assert found[name] is None, (key, name)
            else:
                magnitude = scale if name == "mean" else abs(value)
                # The CSV has 12 digits behind the point.
                assert found[name] == pytest.approx(value, rel=0, abs=accuracy * magnitude + 1e-12), (key, name)
