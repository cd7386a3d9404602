"""The HTTP API behind the page: what http_api.md describes, one function a route.

Each function takes the checked parameters of a GET request and returns an Answer; everything a user can get wrong is a
RequestError. Nothing here depends on TensorBoard.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trendprobe_tb.log_directory import DatabaseFile, LogDirectory
from trendprobe_tb.request_error import RequestError
from trendprobe_tb.trend_database import Axis, Dataset, DatasetCache, Metric, open_database
from trendprobe_tb.value_encoding import CUT_MAGNITUDE, describe_value
from trendprobe_tb.value_reader import Box, value_reader

__all__ = ["API_VERSION", "Answer", "Api"]

API_VERSION: Final = 1
# Under a version that the client named, an answer never changes.
CACHE_SECONDS: Final = 3600
MAX_NONFINITE: Final = 1000

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_DIMENSIONS: Final = ("step", "rank", "target")
# Per fixed dimension: what the rows and the columns of a slice are.
_SLICE_AXES: Final = {"step": ("target", "rank"), "rank": ("target", "step"), "target": ("rank", "step")}


@dataclass(frozen=True)
class Answer:
    """A successful response: JSON, or the values of a binary one.

    Attributes:
        body: A JSON object, or a little-endian float array.
        headers: Beside Content-Type.
        cache_seconds: How long the client may keep it.

    """

    body: dict[str, object] | np.ndarray
    headers: tuple[tuple[str, str], ...] = ()
    cache_seconds: int = 0


@dataclass(frozen=True)
class _Request:
    """The parameters of a request: each given once, none unknown."""

    values: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(parameters: Iterable[tuple[str, str]], known: tuple[str, ...]) -> _Request:
        values: dict[str, str] = {}
        for name, value in parameters:
            if name not in known:
                raise RequestError(
                    400,
                    "bad_parameter",
                    f"Unknown parameter {name[:50]!r}; this request knows: {', '.join(known) or 'none'}.",
                )
            if name in values:
                raise RequestError(400, "bad_parameter", f"Parameter {name!r} is given twice.")
            values[name] = value
        return _Request(values)

    def text(self, name: str) -> str:
        value = self.values.get(name, "")
        if not value:
            raise RequestError(400, "bad_parameter", f"Parameter {name!r} is missing.")
        return value

    def integer(self, name: str) -> int:
        value = self.text(name)
        if not _INTEGER.fullmatch(value):
            raise RequestError(400, "bad_parameter", f"Parameter {name!r} must be an integer, not {value[:50]!r}.")
        return int(value)

    def optional_integer(self, name: str) -> int | None:
        return self.integer(name) if name in self.values else None

    def choice(self, name: str, choices: Iterable[str], what: str) -> str:
        value = self.text(name)
        allowed = list(choices)
        if value not in allowed:
            shown = ", ".join(allowed[:30])
            raise RequestError(400, "bad_parameter", f"{what} {value[:200]!r} is not one of: {shown}.")
        return value


class Api:
    """Answers the requests of all pages. Thread-safe; nothing that one page chose is kept."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self._datasets = DatasetCache()

    def databases(self, parameters: Iterable[tuple[str, str]]) -> Answer:
        """Answer GET databases."""
        _Request.of(parameters, ())
        listing = self._directory.listing(wait_seconds=10.0, max_age_seconds=1.0)
        return Answer(
            {
                "api": API_VERSION,
                "complete": listing.complete,
                "notes": list(listing.notes[:100]),
                "databases": [
                    {"id": file.id, "size": file.size, "modified": file.modified, "version": file.version}
                    for file in listing.files.values()
                ],
            }
        )

    def dataset(self, parameters: Iterable[tuple[str, str]]) -> Answer:
        """Answer GET dataset."""
        request = _Request.of(parameters, ("db", "version"))
        file = self._file(request)
        with open_database(file) as connection:
            dataset = self._datasets.get(file, connection)
            body: dict[str, object] = {
                "api": API_VERSION,
                "db": file.id,
                "version": file.version,
                "source": dataset.source,
                "kind": dataset.info.get("kind"),
                "numbering": dataset.info.get("numbering", "msprobe"),
                "cut_at": None if dataset.tiles else CUT_MAGNITUDE,
                "metrics": [
                    {"name": metric.name, "targets": len(metric.targets), "statistics": list(metric.statistics)}
                    for metric in dataset.metrics.values()
                ],
                "steps": {"step": dataset.steps.values.tolist(), **dataset.steps.details},
                "ranks": {"rank": dataset.ranks.values.tolist(), **dataset.ranks.details},
            }
        return self._cached(request, body)

    def targets(self, parameters: Iterable[tuple[str, str]]) -> Answer:
        """Answer GET targets."""
        request = _Request.of(parameters, ("db", "version", "metric"))
        file = self._file(request)
        with open_database(file) as connection:
            metric = self._metric(request, self._datasets.get(file, connection))
            known = {
                row[0]: row[1:]
                for row in connection.execute(
                    "SELECT target_id, target_name, vpp_stage, micro_step FROM monitoring_targets"
                )
            }
            ids = metric.targets.tolist()
            rows = [known.get(target, (f"(target {target} has no name)", 0, 0)) for target in ids]
        return self._cached(
            request,
            {
                "target": ids,
                "name": [str(row[0]) for row in rows],
                "vpp_stage": [row[1] for row in rows],
                "call": [row[2] for row in rows],
            },
        )

    def tags(self, parameters: Iterable[tuple[str, str]]) -> Answer:
        """Answer GET tags."""
        request = _Request.of(parameters, ("db", "version", "metric"))
        file = self._file(request)
        with open_database(file) as connection:
            metric = self._metric(request, self._datasets.get(file, connection))
            places = {target: place for place, target in enumerate(metric.targets.tolist())}
            tags: dict[tuple[str, str], list[int]] = {}
            if _has_tables(connection, ("monitoring_tags", "tag_target_mapping")):
                for name, category, target in connection.execute(
                    "SELECT t.tag_name, t.category, m.target_id FROM monitoring_tags t "
                    "JOIN tag_target_mapping m USING (tag_id) WHERE t.metric_id = ? ORDER BY t.category, t.tag_name",
                    (metric.metric_id,),
                ):
                    if target in places:
                        tags.setdefault((str(category), str(name)), []).append(places[target])
        return self._cached(
            request,
            {
                "tags": [
                    {"category": category, "name": name, "targets": sorted(members)}
                    for (category, name), members in tags.items()
                ]
            },
        )

    def slice(self, parameters: Iterable[tuple[str, str]]) -> Answer:
        """Answer GET slice."""
        request = _Request.of(parameters, ("db", "version", "metric", "statistic", "dimension", "value"))
        dimension = request.choice("dimension", _DIMENSIONS, "Dimension")
        value = request.integer("value")
        file = self._file(request)
        with open_database(file) as connection:
            dataset = self._datasets.get(file, connection)
            metric, statistic = self._statistic(request, dataset)
            box = Box(**{dimension: _index(dataset, metric, dimension, value)})
            values = value_reader(connection, dataset).read(metric, statistic, box)
        order = ("step", "rank", "target")
        rows, columns = _SLICE_AXES[dimension]
        matrix = values.transpose(order.index(rows), order.index(columns), order.index(dimension))[:, :, 0]
        return self._binary(request, file, matrix)

    def line(self, parameters: Iterable[tuple[str, str]]) -> Answer:
        """Answer GET line."""
        request = _Request.of(parameters, ("db", "version", "metric", "statistic", "along", "step", "rank", "target"))
        along = request.choice("along", _DIMENSIONS, "Dimension")
        file = self._file(request)
        with open_database(file) as connection:
            dataset = self._datasets.get(file, connection)
            metric, statistic = self._statistic(request, dataset)
            fixed = {
                name: _index(dataset, metric, name, request.integer(name)) for name in _DIMENSIONS if name != along
            }
            if along in request.values:
                raise RequestError(400, "bad_parameter", f"A line along {along} has no parameter {along!r}.")
            values = value_reader(connection, dataset).read(metric, statistic, Box(**fixed))
        return self._binary(request, file, values.reshape(-1))

    def cell(self, parameters: Iterable[tuple[str, str]]) -> Answer:
        """Answer GET cell."""
        request = _Request.of(parameters, ("db", "version", "metric", "step", "rank", "target"))
        file = self._file(request)
        with open_database(file) as connection:
            dataset = self._datasets.get(file, connection)
            metric = self._metric(request, dataset)
            box = Box(**{name: _index(dataset, metric, name, request.integer(name)) for name in _DIMENSIONS})
            reader = value_reader(connection, dataset)
            statistics = {
                statistic: describe_value(reader.read(metric, statistic, box)[0, 0, 0])
                for statistic in metric.statistics
            }
        return self._cached(request, {"statistics": statistics})

    def nonfinite(self, parameters: Iterable[tuple[str, str]]) -> Answer:
        """Answer GET nonfinite."""
        request = _Request.of(parameters, ("db", "version", "metric"))
        file = self._file(request)
        with open_database(file) as connection:
            dataset = self._datasets.get(file, connection)
            if not dataset.nonfinite_known:
                return self._cached(request, {"known": False, "total": None, "first": []})
            where, bound = "", []
            if "metric" in request.values:
                where, bound = "WHERE n.metric_id = ?", [self._metric(request, dataset).metric_id]
            total = connection.execute(f"SELECT count(*) FROM trendprobe_nonfinite n {where}", bound).fetchone()[0]
            first = connection.execute(
                "SELECT n.step, n.rank, n.target_id, m.metric_name, n.statistic, n.value FROM trendprobe_nonfinite n "
                "JOIN monitoring_metrics m USING (metric_id) LEFT JOIN trendprobe_target_order o USING (target_id) "
                f"{where} ORDER BY n.step, o.position, n.rank, n.metric_id, n.statistic LIMIT {MAX_NONFINITE}",
                bound,
            ).fetchall()
        keys = ("step", "rank", "target", "metric", "statistic", "value")
        return self._cached(request, {"known": True, "total": total, "first": [dict(zip(keys, row)) for row in first]})

    def _file(self, request: _Request) -> DatabaseFile:
        file = self._directory.find(request.text("db"))
        version = request.values.get("version")
        if version is not None and version != file.version:
            raise RequestError(409, "changed", f"{file.id} was replaced or written to. Reload to see the new data.")
        return file

    def _metric(self, request: _Request, dataset: Dataset) -> Metric:
        return dataset.metrics[request.choice("metric", dataset.metrics, "Metric")]

    def _statistic(self, request: _Request, dataset: Dataset) -> tuple[Metric, str]:
        metric = self._metric(request, dataset)
        return metric, request.choice("statistic", metric.statistics, f"Statistic of {metric.name}")

    @staticmethod
    def _cached(request: _Request, body: dict[str, object]) -> Answer:
        return Answer(body, cache_seconds=CACHE_SECONDS if "version" in request.values else 0)

    @staticmethod
    def _binary(request: _Request, file: DatabaseFile, values: np.ndarray) -> Answer:
        return Answer(
            values,
            headers=(
                ("X-TrendProbe-Shape", ",".join(str(length) for length in values.shape)),
                ("X-TrendProbe-Type", f"float{values.dtype.itemsize * 8}"),
                ("X-TrendProbe-Version", file.version),
            ),
            cache_seconds=CACHE_SECONDS if "version" in request.values else 0,
        )


def _index(dataset: Dataset, metric: Metric, dimension: str, value: int) -> int:
    """Find where a step, rank or target id is on its axis."""
    if dimension == "target":
        places = np.flatnonzero(metric.targets == value)
        index = int(places[0]) if len(places) else None
    else:
        axes: Mapping[str, Axis] = {"step": dataset.steps, "rank": dataset.ranks}
        index = axes[dimension].index_of(value)
    if index is None:
        raise RequestError(
            404, "unknown_value", f"There is no {dimension} {value} with data of {metric.name}. Choose one of the list."
        )
    return index


def _has_tables(connection: sqlite3.Connection, names: tuple[str, ...]) -> bool:
    found = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    return found.issuperset(names)
