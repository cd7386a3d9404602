"""One trend database, opened read-only for one request, and what is in it apart from the values.

Two kinds of file are read (docs/format.md): TrendProbe's own, known by their application id, and those of
`msprobe data2db`, which have msProbe's tables alone. What a file holds (metrics, axes, targets) is a Dataset; it is
kept by file and version, since every slice needs it, and is immutable.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import urllib.parse
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trendprobe_tb.log_directory import DatabaseFile, file_version
from trendprobe_tb.request_error import RequestError

__all__ = ["Axis", "Dataset", "DatasetCache", "Metric", "TileShape", "open_database", "quoted"]

APPLICATION_ID: Final = 0x54505442  # "TPTB"
FORMAT_VERSION: Final = 1
# No request may keep one of TensorBoard's threads longer, whatever a foreign file holds.
QUERY_SECONDS: Final = 120.0
# Up to this size (a million rows) every row of an msProbe file is looked at to tell which metric has which target.
SCAN_BYTES: Final = 64 << 20
KEY_COLUMNS: Final = ("rank", "step", "target_id", "metric_id")


def quoted(identifier: str) -> str:
    """Quote an SQL identifier that was read from the schema."""
    return '"' + identifier.replace('"', '""') + '"'


@dataclass(frozen=True)
class Metric:
    """A metric that has values.

    Attributes:
        metric_id: Its id in the file.
        name: `forward`, `actv`, …
        statistics: In the file's order.
        targets: int64 ids in network order: the rows of its slices.
        columns: int64, one a target: its place in the metric's tiles. None without tiles.
        planes: Statistic → plane id. Empty without tiles.

    """

    metric_id: int
    name: str
    statistics: tuple[str, ...]
    targets: np.ndarray
    columns: np.ndarray | None = None
    planes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Axis:
    """The values of an axis, ascending int64, with what is known about each of them (equally long lists)."""

    values: np.ndarray
    details: dict[str, list[object]] = field(default_factory=dict)

    def index_of(self, value: int) -> int | None:
        """Find where a value is; None if it isn't on the axis."""
        index = int(np.searchsorted(self.values, value))
        return index if index < len(self.values) and int(self.values[index]) == value else None


@dataclass(frozen=True)
class TileShape:
    """Values of a tile along each axis."""

    targets: int
    ranks: int
    steps: int


@dataclass(frozen=True)
class Dataset:
    """Everything about a trend database but its values.

    Attributes:
        source: `trendprobe` or `msprobe`.
        info: trendprobe_info; empty for msProbe's files.
        metrics: By name, those with values only.
        steps: Global steps with data, and their training_step and micro_step where the file tells.
        ranks: Ranks with data, and their host where the file tells.
        tiles: None where values are read from msProbe's rows.
        nonfinite_known: True where trendprobe_nonfinite lists every NaN, so that NULL in a row means "missing".

    """

    source: str
    info: dict[str, object]
    metrics: dict[str, Metric]
    steps: Axis
    ranks: Axis
    tiles: TileShape | None
    nonfinite_known: bool


@contextlib.contextmanager
def open_database(file: DatabaseFile) -> Iterator[sqlite3.Connection]:
    """Open a read-only connection for one request.

    Nothing in the file is trusted: no function or virtual table runs because its schema says so, and a query that runs
    longer than QUERY_SECONDS is stopped.

    Raises:
        RequestError: 422 when the file is no SQLite database; 409 when it was replaced since it was looked at; within
            the block, for whatever SQLite can't do.

    """
    with _readable_errors(file):
        # TrendProbe never changes a finished file: it is replaced as a whole. Such a file is read without locks, which
        # network file systems may lack. Others may be written to while they are read.
        immutable = "&immutable=1" if _application_id(file.path) == APPLICATION_ID else ""
        uri = f"file:{urllib.parse.quote(file.path)}?mode=ro{immutable}"
        connection = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        with _readable_errors(file):
            # What is open now must be what the answer and the cache will call by this version.
            if file_version(os.stat(file.path)) != file.version:
                raise RequestError(409, "changed", f"{file.id} is being replaced or written to. Reload in a moment.")
            deadline = time.monotonic() + QUERY_SECONDS
            connection.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute("PRAGMA query_only=ON")
            yield connection
    finally:
        connection.close()


class DatasetCache:
    """The datasets of the files used last. Thread-safe; holds descriptions only, nothing that a user chose."""

    def __init__(self, capacity: int = 8) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._datasets: OrderedDict[tuple[str, str], Dataset] = OrderedDict()

    def get(self, file: DatabaseFile, connection: sqlite3.Connection) -> Dataset:
        """Return the dataset of an open file, reading it now if it isn't known."""
        key = (file.path, file.version)
        with self._lock:
            known = self._datasets.get(key)
            if known is not None:
                self._datasets.move_to_end(key)
                return known
        dataset = _read_dataset(file, connection)
        with self._lock:
            self._datasets[key] = dataset
            while len(self._datasets) > self._capacity:
                self._datasets.popitem(last=False)
        return dataset


def _application_id(path: str) -> int:
    """Read the id in an SQLite file's header, bytes 68–71; 0 if there is none."""
    with open(path, "rb") as header:
        start = header.read(72)
    return int.from_bytes(start[68:72], "big") if start.startswith(b"SQLite format 3\0") else 0


@contextlib.contextmanager
def _readable_errors(file: DatabaseFile) -> Iterator[None]:
    """Turn what SQLite and the file system raise into a RequestError that names the file by its id."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if text == "interrupted":
            raise RequestError(
                408,
                "too_slow",
                f"{file.id}: the query took more than {QUERY_SECONDS:.0f} s. `trendprobe merge` writes databases that "
                "answer in milliseconds; make this one again from the original data.",
            ) from error
        raise _unreadable(file, text) from error
    except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError) as error:
        raise _unreadable(file, str(error)) from error
    except OSError as error:
        raise _unreadable(file, error.strerror or type(error).__name__) from error


def _unreadable(file: DatabaseFile, reason: str) -> RequestError:
    return RequestError(
        422,
        "unreadable_database",
        f"{file.id} can't be read: {reason}. Is it complete? Make it again with `trendprobe merge`, or choose another.",
    )


def _read_dataset(file: DatabaseFile, connection: sqlite3.Connection) -> Dataset:
    if file.size == 0:
        raise _unreadable(file, "the file is empty")
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    page_size = connection.execute("PRAGMA page_size").fetchone()[0]
    # SQLite itself notices whole pages that are missing at the end.
    if file.size % page_size != 0:
        raise _unreadable(file, f"it is cut short: {file.size} bytes are no multiple of its page size, {page_size}")
    for table in ("monitoring_metrics", "monitoring_targets", "trend_data"):
        if table not in tables:
            raise _unreadable(file, f"it has no table {table}, so it is no trend database")
    row_columns = _column_names(connection, "trend_data")
    for column in KEY_COLUMNS:
        if column not in row_columns:
            raise _unreadable(file, f"its table trend_data has no column {column}")
    if connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT_VERSION:
            raise RequestError(
                422,
                "newer_format",
                f"{file.id} has format version {version}; this viewer reads up to {FORMAT_VERSION}. Update trendprobe.",
            )
        return _read_own(file, connection, row_columns)
    return _read_msprobe(file, connection, tables, row_columns)


def _column_names(connection: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in connection.execute(f"PRAGMA table_info({quoted(table)})")]


def _metric_statistics(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Read the lists of statistics in the last row of global_stats, by metric."""
    cursor = connection.execute("SELECT * FROM global_stats ORDER BY rowid DESC LIMIT 1")
    names = [column[0] for column in cursor.description]
    row = cursor.fetchone() or ()
    return {
        name: [statistic.strip() for statistic in value.split(",") if statistic.strip()]
        for name, value in zip(names, row)
        if isinstance(value, str)
    }


def _integers(cursor: sqlite3.Cursor) -> np.ndarray:
    return np.array([row[0] for row in cursor], dtype=np.int64)


def _read_own(file: DatabaseFile, connection: sqlite3.Connection, row_columns: list[str]) -> Dataset:
    info = dict(connection.execute("SELECT key, value FROM trendprobe_info"))
    steps = connection.execute("SELECT step, training_step, micro_step FROM trendprobe_steps ORDER BY step").fetchall()
    ranks = connection.execute("SELECT rank, host FROM trendprobe_ranks ORDER BY rank").fetchall()
    order = (
        "SELECT m.metric_id, m.target_id, m.column_index FROM trendprobe_metric_targets m "
        "LEFT JOIN trendprobe_target_order o USING (target_id) ORDER BY m.metric_id, o.position, m.column_index"
    )
    triples = np.array(connection.execute(order).fetchall(), dtype=np.int64).reshape(-1, 3)
    planes: dict[int, dict[str, int]] = {}
    for plane_id, metric_id, statistic in connection.execute(
        "SELECT plane_id, metric_id, statistic FROM trendprobe_planes"
    ):
        planes.setdefault(metric_id, {})[statistic] = plane_id
    has_tiles = info.get("layout", "both") != "rows"
    listed = _metric_statistics(connection)
    metrics: dict[str, Metric] = {}
    for metric_id, name in connection.execute(
        "SELECT metric_id, metric_name FROM monitoring_metrics ORDER BY metric_id"
    ):
        mine = triples[triples[:, 0] == metric_id]
        own_planes = planes.get(metric_id, {}) if has_tiles else {}
        readable = list(own_planes) if has_tiles else [column for column in row_columns if column not in KEY_COLUMNS]
        statistics = [statistic for statistic in listed.get(name, readable) if statistic in readable]
        statistics += [statistic for statistic in own_planes if statistic not in statistics]
        if len(mine) and statistics:
            metrics[name] = Metric(
                metric_id,
                name,
                tuple(statistics),
                mine[:, 1].copy(),
                mine[:, 2].copy() if has_tiles else None,
                own_planes,
            )
    tiles = None
    if has_tiles:
        try:
            sizes = [int(str(info[key])) for key in ("tile_targets", "tile_ranks", "tile_steps")]
        except (KeyError, ValueError) as error:
            raise _unreadable(file, f"trendprobe_info does not give the size of a tile ({error})") from error
        if min(sizes) < 1:
            raise _unreadable(file, "trendprobe_info gives a tile no size")
        tiles = TileShape(*sizes)
    return Dataset(
        source="trendprobe",
        info=info,
        metrics=metrics,
        steps=Axis(
            np.array([row[0] for row in steps], dtype=np.int64),
            {"training_step": [row[1] for row in steps], "micro_step": [row[2] for row in steps]},
        ),
        ranks=Axis(np.array([row[0] for row in ranks], dtype=np.int64), {"host": [row[1] for row in ranks]}),
        tiles=tiles,
        nonfinite_known=True,
    )


def _read_msprobe(
    file: DatabaseFile, connection: sqlite3.Connection, tables: set[str], row_columns: list[str]
) -> Dataset:
    available = [column for column in row_columns if column not in KEY_COLUMNS]
    listed = _metric_statistics(connection) if "global_stats" in tables else {}
    ranks = _distinct(connection, "rank", "", ())
    steps: set[int] = set()
    for rank in ranks:
        steps.update(_distinct(connection, "step", "rank = ?", (rank,)))
    targets = _msprobe_targets(file, connection, tables, ranks)
    metrics: dict[str, Metric] = {}
    for metric_id, name in connection.execute(
        "SELECT metric_id, metric_name FROM monitoring_metrics ORDER BY metric_id"
    ):
        statistics = [statistic for statistic in listed.get(name, available) if statistic in available]
        mine = sorted(targets.get(metric_id, ()))
        if mine and statistics:
            metrics[str(name)] = Metric(metric_id, str(name), tuple(statistics), np.array(mine, dtype=np.int64))
    return Dataset(
        source="msprobe",
        info={},
        metrics=metrics,
        steps=Axis(np.array(sorted(steps), dtype=np.int64)),
        ranks=Axis(np.array(ranks, dtype=np.int64)),
        tiles=None,
        nonfinite_known=False,
    )


def _distinct(connection: sqlite3.Connection, column: str, where: str, parameters: tuple[int, ...]) -> list[int]:
    """Read the distinct values of a key column, by one index look-up each (DISTINCT would read every row)."""
    condition = f"{where} AND " if where else ""
    next_value = connection.execute
    values: list[int] = []
    row = next_value(
        f"SELECT min({column}) FROM trend_data" + (f" WHERE {where}" if where else ""), parameters
    ).fetchone()
    while row[0] is not None:
        if not isinstance(row[0], int):
            raise sqlite3.DataError(f"trend_data.{column} holds a value that is no integer")
        values.append(row[0])
        row = next_value(
            f"SELECT min({column}) FROM trend_data WHERE {condition}{column} > ?", (*parameters, row[0])
        ).fetchone()
    return values


def _msprobe_targets(
    file: DatabaseFile, connection: sqlite3.Connection, tables: set[str], ranks: list[int]
) -> dict[int, set[int]]:
    """Find which targets each metric has.

    A small file is read whole. In a large one the tags tell (msProbe gives one to every target of a metric), together
    with the first and the last step of every rank for targets whose name yields no tag.
    """
    queries: list[tuple[str, tuple[int, ...]]] = []
    has_tags = "monitoring_tags" in tables and "tag_target_mapping" in tables
    tagged = has_tags and connection.execute("SELECT EXISTS (SELECT 1 FROM tag_target_mapping)").fetchone()[0]
    if file.size <= SCAN_BYTES or not tagged:
        queries.append(("SELECT DISTINCT metric_id, target_id FROM trend_data", ()))
    else:
        queries.append(
            (
                "SELECT DISTINCT metric_id, target_id FROM monitoring_tags JOIN tag_target_mapping USING (tag_id)",
                (),
            )
        )
        for rank in ranks:
            for extreme in ("min", "max"):
                step = f"(SELECT {extreme}(step) FROM trend_data WHERE rank = ?)"
                queries.append(
                    (f"SELECT metric_id, target_id FROM trend_data WHERE rank = ? AND step = {step}", (rank, rank))
                )
    targets: dict[int, set[int]] = {}
    for query, parameters in queries:
        for metric_id, target_id in connection.execute(query, parameters):
            targets.setdefault(metric_id, set()).add(target_id)
    return targets
