"""Reads values of one statistic: a box of (steps, ranks, targets), of which slices, lines and cells are cases.

Two readers answer the same question: TileReader from TrendProbe's packed tiles, RowReader from msProbe's rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from trendprobe_tb.request_error import RequestError
from trendprobe_tb.trend_database import Dataset, Metric, TileShape, quoted
from trendprobe_tb.value_encoding import decode_row_values, fits_float32, missing_array

__all__ = ["Box", "RowReader", "TileReader", "ValueReader", "value_reader"]

# 2^25 float32 cells are 128 MB: about what a page can hold.
MAX_CELLS: Final = 1 << 25
NONFINITE: Final = {"NaN": np.nan, "+inf": np.inf, "-inf": -np.inf}


@dataclass(frozen=True)
class Box:
    """What to read. Each field is an index into its axis (targets: network order of the metric), or None for all."""

    step: int | None = None
    rank: int | None = None
    target: int | None = None


class ValueReader(Protocol):
    """Reads values of one open database."""

    def read(self, metric: Metric, statistic: str, box: Box) -> np.ndarray:
        """Read the values as float32 or float64, missing ones encoded (docs/format.md), shaped [steps, ranks, targets].

        An index that the box gives makes its axis 1 long.
        """


def value_reader(connection: sqlite3.Connection, dataset: Dataset) -> ValueReader:
    """Choose the reader for a database."""
    if dataset.tiles is not None:
        return TileReader(connection, dataset, dataset.tiles)
    return RowReader(connection, dataset)


def _check_size(steps: int, ranks: int, targets: int) -> None:
    if steps * ranks * targets > MAX_CELLS:
        raise RequestError(
            422,
            "too_large",
            f"{steps} steps × {ranks} ranks × {targets} targets are more than {MAX_CELLS} values, the most that one "
            "request may ask for. Choose another dimension.",
        )


def _bounds(index: int | None, length: int) -> tuple[int, int]:
    return (0, length) if index is None else (index, index + 1)


class TileReader:
    """Reads TrendProbe's tiles: docs/format.md, "Tiles"."""

    def __init__(self, connection: sqlite3.Connection, dataset: Dataset, shape: TileShape) -> None:
        self._connection = connection
        self._shape = shape
        self._steps = len(dataset.steps.values)
        self._ranks = len(dataset.ranks.values)

    def read(self, metric: Metric, statistic: str, box: Box) -> np.ndarray:
        """See ValueReader."""
        assert metric.columns is not None
        columns = metric.columns
        steps = _bounds(box.step, self._steps)
        ranks = _bounds(box.rank, self._ranks)
        targets = (0, len(columns))
        if box.target is not None:
            column = int(columns[box.target])
            targets = (column, column + 1)
        _check_size(steps[1] - steps[0], ranks[1] - ranks[0], targets[1] - targets[0])
        values = self._read_columns(metric, metric.planes[statistic], steps, ranks, targets)
        if box.target is None and not np.array_equal(columns, np.arange(len(columns))):
            values = values[:, :, columns]
        return values

    def _read_columns(
        self, metric: Metric, plane: int, steps: tuple[int, int], ranks: tuple[int, int], targets: tuple[int, int]
    ) -> np.ndarray:
        assert metric.columns is not None
        size = self._shape
        result = missing_array((steps[1] - steps[0], ranks[1] - ranks[0], targets[1] - targets[0]), "<f4")
        rank_blocks = -(-self._ranks // size.ranks)
        step_blocks = -(-self._steps // size.steps)
        for tb in range(targets[0] // size.targets, -(-targets[1] // size.targets)):
            t0 = tb * size.targets
            nt = min(size.targets, len(metric.columns) - t0)
            ta, te = max(targets[0], t0), min(targets[1], t0 + nt)
            for rb in range(ranks[0] // size.ranks, -(-ranks[1] // size.ranks)):
                r0 = rb * size.ranks
                nr = min(size.ranks, self._ranks - r0)
                ra, re = max(ranks[0], r0), min(ranks[1], r0 + nr)
                for sb in range(steps[0] // size.steps, -(-steps[1] // size.steps)):
                    s0 = sb * size.steps
                    ns = min(size.steps, self._steps - s0)
                    sa, se = max(steps[0], s0), min(steps[1], s0 + ns)
                    tile_id = (plane << 40) + (tb * rank_blocks + rb) * step_blocks + sb
                    part = self._read_steps(tile_id, (ns, nr, nt), sa - s0, se - s0)
                    if part is None:
                        continue
                    if part.dtype.itemsize > result.dtype.itemsize:
                        result = result.astype("<f8")
                    result[
                        sa - steps[0] : se - steps[0], ra - ranks[0] : re - ranks[0], ta - targets[0] : te - targets[0]
                    ] = part[:, ra - r0 : re - r0, ta - t0 : te - t0]
        return result

    def _read_steps(self, tile_id: int, shape: tuple[int, int, int], first: int, last: int) -> np.ndarray | None:
        """Read steps [first, last) of a tile of this shape (steps, ranks, targets); None if the tile was left out."""
        ns, nr, nt = shape
        count = ns * nr * nt
        row = self._connection.execute("SELECT data FROM trendprobe_tiles WHERE tile_id = ?", (tile_id,)).fetchone()
        if row is None:
            return None
        data = row[0]
        if not isinstance(data, bytes) or len(data) not in (4 * count, 8 * count):
            length = len(data) if isinstance(data, bytes) else "no"
            raise RequestError(
                422,
                "unreadable_database",
                f"Tile {tile_id} has {length} bytes instead of {4 * count} or {8 * count}: the database is damaged. "
                "Make it again with `trendprobe merge`.",
            )
        dtype = "<f4" if len(data) == 4 * count else "<f8"
        return np.frombuffer(data, dtype, (last - first) * nr * nt, first * nr * nt * np.dtype(dtype).itemsize).reshape(
            last - first, nr, nt
        )


class RowReader:
    """Reads `trend_data`, the rows that msProbe's own viewer reads.

    The key is (rank, step, target_id, metric_id); the queries below look it up instead of leaving the plan to SQLite,
    which without ANALYZE scans the table.
    """

    def __init__(self, connection: sqlite3.Connection, dataset: Dataset) -> None:
        self._connection = connection
        self._dataset = dataset

    def read(self, metric: Metric, statistic: str, box: Box) -> np.ndarray:
        """See ValueReader."""
        steps = _pick(self._dataset.steps.values, box.step)
        ranks = _pick(self._dataset.ranks.values, box.rank)
        targets = _pick(metric.targets, box.target)
        _check_size(len(steps), len(ranks), len(targets))
        values = missing_array((len(steps), len(ranks), len(targets)), "<f8")
        # Ids ascending, for searchsorted; the rows of the result are in network order.
        order = np.argsort(targets)
        sorted_targets = targets[order]
        for step, rank, target, column in self._rows(metric, statistic, box):
            if not column:
                continue
            s = np.searchsorted(steps, step)
            r = np.searchsorted(ranks, rank)
            t = np.minimum(np.searchsorted(sorted_targets, target), len(sorted_targets) - 1)
            known = sorted_targets[t] == target
            decoded = decode_row_values(column, null_is_missing=self._dataset.nonfinite_known)
            values[s[known], r[known], order[t[known]]] = decoded[known]
        if self._dataset.nonfinite_known:
            self._add_nonfinite(values, metric, statistic, box)
        return values.astype("<f4") if fits_float32(values) else values

    def _rows(
        self, metric: Metric, statistic: str, box: Box
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, list[object]]]:
        """Yield batches of (steps, ranks, target ids, values), one a rank."""
        select = f"SELECT step, target_id, {quoted(statistic)} FROM trend_data"
        for rank in _pick(self._dataset.ranks.values, box.rank).tolist():
            if box.target is not None:
                steps = _pick(self._dataset.steps.values, box.step).tolist()
                target = int(metric.targets[box.target])
                query = f"{select} WHERE rank = ? AND step = ? AND target_id = ? AND metric_id = ?"
                rows = []
                for step in steps:
                    rows += self._connection.execute(query, (rank, step, target, metric.metric_id)).fetchall()
            elif box.step is not None:
                step = int(self._dataset.steps.values[box.step])
                rows = self._connection.execute(
                    f"{select} WHERE rank = ? AND step = ? AND metric_id = ?", (rank, step, metric.metric_id)
                ).fetchall()
            else:
                rows = self._connection.execute(
                    f"{select} WHERE rank = ? AND metric_id = ?", (rank, metric.metric_id)
                ).fetchall()
            if rows:
                step_column, target_column, column = zip(*rows)
                yield (
                    np.array(step_column, dtype=np.int64),
                    np.full(len(rows), rank, dtype=np.int64),
                    np.array(target_column, dtype=np.int64),
                    list(column),
                )

    def _add_nonfinite(self, values: np.ndarray, metric: Metric, statistic: str, box: Box) -> None:
        """Put NaN and infinities in the place of the NULLs and stand-ins that the rows hold."""
        dataset = self._dataset
        conditions = ["metric_id = ?", "statistic = ?"]
        parameters: list[object] = [metric.metric_id, statistic]
        for name, axis, index in (
            ("step", dataset.steps.values, box.step),
            ("rank", dataset.ranks.values, box.rank),
            ("target_id", metric.targets, box.target),
        ):
            if index is not None:
                conditions.append(f"{name} = ?")
                parameters.append(int(axis[index]))
        places = {int(target): place for place, target in enumerate(_pick(metric.targets, box.target))}
        step_places = {int(step): place for place, step in enumerate(_pick(dataset.steps.values, box.step))}
        rank_places = {int(rank): place for place, rank in enumerate(_pick(dataset.ranks.values, box.rank))}
        for step, rank, target, value in self._connection.execute(
            f"SELECT step, rank, target_id, value FROM trendprobe_nonfinite WHERE {' AND '.join(conditions)}",
            parameters,
        ):
            if step in step_places and rank in rank_places and target in places and value in NONFINITE:
                values[step_places[step], rank_places[rank], places[target]] = NONFINITE[value]


def _pick(axis: np.ndarray, index: int | None) -> np.ndarray:
    return axis if index is None else axis[index : index + 1]
