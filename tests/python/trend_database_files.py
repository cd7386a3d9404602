"""Writes trend databases for the viewer's tests straight from docs/format.md, without any of TrendProbe's own code.

The arrays that go in are the truth that the tests compare with.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

MISSING = np.array([0x7FF809AAC0000000], dtype="<u8").view("<f8")[0]
MISSING_FLOAT32 = np.uint32(0x7FC04D56)


def is_missing(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype="<f8").view("<u8") == np.uint64(0x7FF809AAC0000000)


@dataclass
class MetricValues:
    """One metric. `values[statistic]` is float64 [steps, ranks, targets], missing ones as MISSING.

    `targets` are indices into TrendContents.targets, in the order of the tiles' columns.
    """

    targets: Sequence[int]
    values: dict[str, np.ndarray]


@dataclass
class TrendContents:
    """A whole database. Target ids are 1 + the index in `targets`; `positions` is the network order of each."""

    targets: Sequence[tuple[str, int, int]]
    positions: Sequence[int]
    steps: Sequence[tuple[int, int, int]]
    ranks: Sequence[tuple[int, str]]
    metrics: dict[str, MetricValues]
    kind: str = "dump"
    tags: dict[str, list[tuple[str, str, Sequence[int]]]] = field(default_factory=dict)


def write_msprobe(path: Path, contents: TrendContents) -> None:
    """A database as msProbe's data2db makes it: rows alone."""
    with sqlite3.connect(path) as connection:
        _write_common(connection, contents, with_rows=True)
    connection.close()


def write_trendprobe(
    path: Path, contents: TrendContents, layout: str = "both", tile: tuple[int, int, int] = (64, 16, 32)
) -> None:
    """A database as `trendprobe merge` makes it. `tile` is (targets, ranks, steps)."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA page_size=16384")
        connection.execute(f"PRAGMA application_id={0x54505442}")
        connection.execute("PRAGMA user_version=1")
        _write_common(connection, contents, with_rows=layout != "tiles")
        connection.executescript(
            """
            CREATE TABLE trendprobe_info(key TEXT PRIMARY KEY, value) WITHOUT ROWID;
            CREATE TABLE trendprobe_steps(step INTEGER PRIMARY KEY, training_step INTEGER, micro_step INTEGER);
            CREATE TABLE trendprobe_ranks(rank INTEGER PRIMARY KEY, host TEXT, directory TEXT);
            CREATE TABLE trendprobe_sources(source_id INTEGER PRIMARY KEY, format TEXT, rank INTEGER, path TEXT,
              first_step INTEGER, last_step INTEGER, records INTEGER, superseded INTEGER);
            CREATE TABLE trendprobe_issues(issue_id INTEGER PRIMARY KEY, severity TEXT, path TEXT, location TEXT,
              what TEXT, kept TEXT);
            CREATE TABLE trendprobe_target_order(target_id INTEGER PRIMARY KEY, position INTEGER);
            CREATE TABLE trendprobe_metric_targets(metric_id INTEGER, column_index INTEGER, target_id INTEGER,
              PRIMARY KEY(metric_id, column_index)) WITHOUT ROWID;
            CREATE TABLE trendprobe_nonfinite(step INTEGER, rank INTEGER, target_id INTEGER, metric_id INTEGER,
              statistic TEXT, value TEXT, PRIMARY KEY(step, rank, target_id, metric_id, statistic)) WITHOUT ROWID;
            CREATE TABLE trendprobe_planes(plane_id INTEGER PRIMARY KEY, metric_id INTEGER, statistic TEXT,
              UNIQUE(metric_id, statistic));
            CREATE TABLE trendprobe_tiles(tile_id INTEGER PRIMARY KEY, data BLOB);
            """
        )
        info = {
            "format_version": 1,
            "trendprobe_version": "0.1.0",
            "kind": contents.kind,
            "numbering": "trendprobe",
            "micro_step": "true",
            "layout": layout,
            "tile_targets": tile[0],
            "tile_ranks": tile[1],
            "tile_steps": tile[2],
        }
        connection.executemany("INSERT INTO trendprobe_info VALUES (?, ?)", info.items())
        connection.executemany("INSERT INTO trendprobe_steps VALUES (?, ?, ?)", contents.steps)
        connection.executemany("INSERT INTO trendprobe_ranks VALUES (?, ?, '/data')", contents.ranks)
        connection.executemany(
            "INSERT INTO trendprobe_target_order VALUES (?, ?)",
            [(index + 1, position) for index, position in enumerate(contents.positions)],
        )
        plane = 0
        for metric_id, (_, metric) in enumerate(contents.metrics.items(), 1):
            connection.executemany(
                "INSERT INTO trendprobe_metric_targets VALUES (?, ?, ?)",
                [(metric_id, column, target + 1) for column, target in enumerate(metric.targets)],
            )
            for statistic, values in metric.values.items():
                plane += 1
                connection.execute("INSERT INTO trendprobe_planes VALUES (?, ?, ?)", (plane, metric_id, statistic))
                _write_nonfinite(connection, contents, metric_id, statistic, metric.targets, values)
                if layout != "rows":
                    connection.executemany("INSERT INTO trendprobe_tiles VALUES (?, ?)", _tiles(plane, values, tile))
    connection.close()


def _tiles(plane: int, values: np.ndarray, tile: tuple[int, int, int]) -> list[tuple[int, bytes]]:
    tile_targets, tile_ranks, tile_steps = tile
    steps, ranks, targets = values.shape
    rank_blocks = -(-ranks // tile_ranks)
    step_blocks = -(-steps // tile_steps)
    result = []
    for tb in range(-(-targets // tile_targets)):
        for rb in range(rank_blocks):
            for sb in range(step_blocks):
                part = values[
                    sb * tile_steps : (sb + 1) * tile_steps,
                    rb * tile_ranks : (rb + 1) * tile_ranks,
                    tb * tile_targets : (tb + 1) * tile_targets,
                ]
                missing = is_missing(part)
                if missing.all():
                    continue
                packed = np.ascontiguousarray(part, dtype="<f8")
                finite = packed[np.isfinite(packed)]
                if (np.abs(finite) <= np.finfo(np.float32).max).all() and not (
                    (np.abs(finite) < np.finfo(np.float32).tiny) & (finite != 0)
                ).any():
                    with np.errstate(invalid="ignore"):
                        packed = packed.astype("<f4")
                    packed.view("<u4")[missing] = MISSING_FLOAT32
                result.append((plane * 2**40 + (tb * rank_blocks + rb) * step_blocks + sb, packed.tobytes()))
    return result


def _write_nonfinite(
    connection: sqlite3.Connection,
    contents: TrendContents,
    metric_id: int,
    statistic: str,
    targets: Sequence[int],
    values: np.ndarray,
) -> None:
    rows = []
    for s, r, t in zip(*np.nonzero(~np.isfinite(values) & ~is_missing(values))):
        value = values[s, r, t]
        word = "NaN" if np.isnan(value) else "+inf" if value > 0 else "-inf"
        rows.append((contents.steps[s][0], contents.ranks[r][0], targets[t] + 1, metric_id, statistic, word))
    connection.executemany("INSERT INTO trendprobe_nonfinite VALUES (?, ?, ?, ?, ?, ?)", rows)


def row_value(value: float) -> float | None:
    """What `trend_data` holds for a value."""
    if np.isnan(value):
        return None
    if np.isinf(value):
        return float(np.sign(value) * (1e9 + 1))
    return float(min(max(value, -1e9), 1e9))


def _write_common(connection: sqlite3.Connection, contents: TrendContents, with_rows: bool) -> None:
    statistics: list[str] = []
    for metric in contents.metrics.values():
        statistics += [statistic for statistic in metric.values if statistic not in statistics]
    columns = ", ".join(f'"{statistic}" REAL DEFAULT NULL' for statistic in statistics)
    listed = ", ".join(f'"{name}" TEXT DEFAULT NULL' for name in contents.metrics)
    connection.executescript(
        f"""
        CREATE TABLE monitoring_metrics(metric_id INTEGER PRIMARY KEY AUTOINCREMENT, metric_name TEXT UNIQUE NOT NULL);
        CREATE TABLE monitoring_targets(target_id INTEGER PRIMARY KEY AUTOINCREMENT, target_name TEXT NOT NULL,
          vpp_stage INTEGER NOT NULL, micro_step INTEGER NOT NULL DEFAULT 0,
          UNIQUE(target_name, vpp_stage, micro_step));
        CREATE TABLE monitoring_tags(tag_id INTEGER PRIMARY KEY AUTOINCREMENT, tag_name TEXT NOT NULL,
          category TEXT NOT NULL, metric_id INTEGER NOT NULL, UNIQUE(tag_name, category, metric_id));
        CREATE TABLE tag_target_mapping(tag_id INTEGER NOT NULL, target_id INTEGER NOT NULL,
          PRIMARY KEY(tag_id, target_id));
        CREATE TABLE trend_data(rank INTEGER NOT NULL, step INTEGER NOT NULL, target_id INTEGER NOT NULL,
          metric_id INTEGER NOT NULL, {columns}, PRIMARY KEY(rank, step, target_id, metric_id)) WITHOUT ROWID;
        CREATE TABLE global_stats(max_rank INTEGER DEFAULT 0, min_step INTEGER DEFAULT 0,
          max_step INTEGER DEFAULT 0, {listed});
        """
    )
    connection.executemany(
        "INSERT INTO monitoring_targets VALUES (?, ?, ?, ?)",
        [(index + 1, *target) for index, target in enumerate(contents.targets)],
    )
    connection.execute(
        f"INSERT INTO global_stats VALUES (?, ?, ?, {', '.join('?' * len(contents.metrics))})",
        (
            max(rank for rank, _ in contents.ranks),
            min(step for step, _, _ in contents.steps),
            max(step for step, _, _ in contents.steps),
            *(",".join(metric.values) for metric in contents.metrics.values()),
        ),
    )
    for metric_id, (name, metric) in enumerate(contents.metrics.items(), 1):
        connection.execute("INSERT INTO monitoring_metrics VALUES (?, ?)", (metric_id, name))
        for category, tag, members in contents.tags.get(name, []):
            cursor = connection.execute(
                "INSERT INTO monitoring_tags(tag_name, category, metric_id) VALUES (?, ?, ?)",
                (tag, category, metric_id),
            )
            connection.executemany(
                "INSERT INTO tag_target_mapping VALUES (?, ?)", [(cursor.lastrowid, target + 1) for target in members]
            )
        if with_rows:
            names = ", ".join(f'"{statistic}"' for statistic in metric.values)
            marks = ", ".join("?" * (4 + len(metric.values)))
            connection.executemany(
                f"INSERT INTO trend_data(rank, step, target_id, metric_id, {names}) VALUES ({marks})",
                _rows(contents, metric_id, metric),
            )


def _rows(contents: TrendContents, metric_id: int, metric: MetricValues):
    arrays = list(metric.values.values())
    measured = ~np.all([is_missing(values) for values in arrays], axis=0)
    order = np.argsort(metric.targets)
    for r, (rank, _) in enumerate(contents.ranks):
        for s, (step, _, _) in enumerate(contents.steps):
            for t in order:
                if measured[s, r, t]:
                    values = [row_value(values[s, r, t]) for values in arrays]
                    yield rank, step, metric.targets[t] + 1, metric_id, *values
