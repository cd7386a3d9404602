"""The plugin's HTTP routes (tb_plugin/http_api.md), asked through TensorBoard's own WSGI application.

The databases are written by trend_database_files, straight from docs/format.md; the arrays that went in are the truth.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend import application
from tensorboard.plugins import base_plugin
from trend_database_files import MISSING, MetricValues, TrendContents, is_missing, write_msprobe, write_trendprobe
from trendprobe_tb import log_directory, trend_database
from trendprobe_tb.plugin import TrendProbePlugin
from werkzeug.test import Client, TestResponse

API = "/data/plugin/trendprobe/api/v1/"
LAYOUTS = ("both", "tiles", "rows", "msprobe")
DIMENSIONS = ("step", "rank", "target")
STEPS = (0, 1, 2, 5, 6, 9, 40)
RANKS = (0, 1, 4, 7, 9)
TARGETS = (
    ("Module.head.Linear.output.0", 0, 0),
    ("Module.embed.Embedding.output.0", 0, 0),
    ("Module.layers.0.mlp.Linear.input.0", 0, 0),
    ("Module.layers.0.mlp.Linear.output.0", 0, 0),
    ("Module.layers.0.mlp.Linear.output.0", 1, 0),
    ("Module.layers.0.mlp.Linear.output.0", 0, 3),
    ("Module.层.1.ü'\"&<b>.output.0", 0, 0),
)
# Network order: not the order of the ids.
POSITIONS = (6, 0, 1, 2, 4, 3, 5)


def make_contents(seed: int = 1) -> TrendContents:
    """All states in all statistics, values that rows cut, and a statistic that needs float64."""
    generator = np.random.default_rng(seed)
    metrics = {}
    # Columns in an order that is neither that of the ids nor that of the network.
    for name, targets in (("forward", (3, 1, 5, 0, 2, 6)), ("backward", (4, 6, 0))):
        shape = (len(STEPS), len(RANKS), len(targets))
        values = {}
        for statistic in ("norm", "max", "min", "mean"):
            # float32 numbers, so that tiles of either width hold them exactly.
            array = generator.normal(size=shape).astype("<f4").astype("<f8")
            for state, share in ((np.nan, 0.08), (np.inf, 0.05), (-np.inf, 0.05), (MISSING, 0.1), (2.0**40, 0.03)):
                array[generator.random(shape) < share] = state
            values[statistic] = array
        values["max"][2, 3, 1] = 1e300
        nothing = generator.random(shape) < 0.1
        for array in values.values():
            array[nothing] = MISSING
        metrics[name] = MetricValues(targets, values)
    return TrendContents(
        targets=TARGETS,
        positions=POSITIONS,
        steps=[(step, 10 + index // 2, index % 2) for index, step in enumerate(STEPS)],
        ranks=[(rank, f"node-{rank // 4}") for rank in RANKS],
        metrics=metrics,
        tags={
            "forward": [("module", "mlp", (3, 2, 5)), ("index", "output.0", (0, 1, 3, 5, 6)), ("default", "x", (4,))]
        },
    )


def write(path: Path, contents: TrendContents, layout: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if layout == "msprobe":
        write_msprobe(path, contents)
    else:
        write_trendprobe(path, contents, layout, tile=(2, 3, 4))
    return path


def network_order(contents: TrendContents, metric: str, layout: str) -> list[int]:
    """Places in the metric's columns, in the order of a slice's rows."""
    targets = contents.metrics[metric].targets
    # msProbe's files have no network order: ascending ids.
    return sorted(
        range(len(targets)), key=lambda place: targets[place] if layout == "msprobe" else POSITIONS[targets[place]]
    )


def truth(contents: TrendContents, metric: str, statistic: str, layout: str) -> np.ndarray:
    """What the server must say: [steps, ranks, targets in network order]."""
    arrays = contents.metrics[metric].values
    values = arrays[statistic].copy()
    if layout in ("rows", "msprobe"):
        finite = np.isfinite(values)
        values[finite] = np.clip(values[finite], -1e9, 1e9)
    if layout == "msprobe":
        # A row with NULL is NaN there; "missing" is only what has no row.
        measured = ~np.all([is_missing(array) for array in arrays.values()], axis=0)
        values[is_missing(values) & measured] = np.nan
    return values[:, :, network_order(contents, metric, layout)]


class Server:
    """TensorBoard with the plugin alone."""

    def __init__(self, logdir: Path | None = None, spec: str = "") -> None:
        flags = argparse.Namespace(logdir_spec=spec)
        context = base_plugin.TBContext(logdir=str(logdir) if logdir else "", flags=flags)
        self.plugin = TrendProbePlugin(context)
        self.client = Client(application.TensorBoardWSGI([self.plugin]))

    def ask(self, route: str, **parameters: object) -> TestResponse:
        return self.client.get(API + route, query_string=parameters)

    def json(self, route: str, **parameters: object) -> dict[str, Any]:
        response = self.ask(route, **parameters)
        assert response.status_code == 200, response.text
        return json.loads(response.text)

    def values(self, route: str, **parameters: object) -> np.ndarray:
        response = self.ask(route, **parameters)
        assert response.status_code == 200, response.text
        assert response.headers["Content-Type"] == "application/octet-stream"
        shape = [int(length) for length in response.headers["X-TrendProbe-Shape"].split(",")]
        kind = response.headers["X-TrendProbe-Type"]
        return np.frombuffer(response.get_data(), np.dtype(kind).newbyteorder("<")).reshape(shape)

    def error(self, status: int, code: str, route: str, **parameters: object) -> str:
        response = self.ask(route, **parameters)
        assert (response.status_code, response.mimetype) == (status, "application/json"), response.text
        error = json.loads(response.text)["error"]
        assert error["code"] == code
        assert error["message"]
        return str(error["message"])

    def ids(self) -> list[str]:
        return [entry["id"] for entry in self.json("databases")["databases"]]


@pytest.fixture
def contents() -> TrendContents:
    return make_contents()


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(tmp_path: Path, contents: TrendContents, layout: str) -> Server:
    write(tmp_path / "run.trend.db", contents, layout)
    return Server(tmp_path)


def assert_same_values(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    missing = (
        found.view("<u4") == np.uint32(0x7FC04D56)
        if found.dtype.itemsize == 4
        else found.view("<u8") == np.uint64(0x7FF809AAC0000000)
    )
    np.testing.assert_array_equal(missing, is_missing(expected))
    np.testing.assert_array_equal(np.asarray(found, dtype="<f8"), expected)


# What the file holds


def test_slices_along_every_dimension(server: Server, contents: TrendContents, layout: str) -> None:
    for metric, held in contents.metrics.items():
        order = network_order(contents, metric, layout)
        ids = [held.targets[place] + 1 for place in order]
        for statistic in held.values:
            expected = truth(contents, metric, statistic, layout)
            common = {"db": "run.trend.db", "metric": metric, "statistic": statistic}
            for index, step in enumerate(STEPS):
                found = server.values("slice", **common, dimension="step", value=step)
                assert_same_values(found, expected[index].T)
            for index, rank in enumerate(RANKS):
                found = server.values("slice", **common, dimension="rank", value=rank)
                assert_same_values(found, expected[:, index].T)
            for index, target in enumerate(ids):
                found = server.values("slice", **common, dimension="target", value=target)
                assert_same_values(found, expected[:, :, index].T)


def test_lines_along_every_dimension(server: Server, contents: TrendContents, layout: str) -> None:
    metric = "forward"
    held = contents.metrics[metric]
    ids = [held.targets[place] + 1 for place in network_order(contents, metric, layout)]
    for statistic in held.values:
        expected = truth(contents, metric, statistic, layout)
        common = {"db": "run.trend.db", "metric": metric, "statistic": statistic}
        for s, step in enumerate(STEPS):
            for r, rank in enumerate(RANKS):
                found = server.values("line", **common, along="target", step=step, rank=rank)
                assert_same_values(found, expected[s, r])
        for t, target in enumerate(ids):
            for s, step in enumerate(STEPS):
                found = server.values("line", **common, along="rank", step=step, target=target)
                assert_same_values(found, expected[s, :, t])
            for r, rank in enumerate(RANKS):
                found = server.values("line", **common, along="step", rank=rank, target=target)
                assert_same_values(found, expected[:, r, t])


def test_cells_say_every_statistic_in_words_where_it_is_no_number(
    server: Server, contents: TrendContents, layout: str
) -> None:
    seen = set()
    held = contents.metrics["backward"]
    expected = {name: truth(contents, "backward", name, layout) for name in held.values}
    ids = [held.targets[place] + 1 for place in network_order(contents, "backward", layout)]
    for s, step in enumerate(STEPS):
        for r, rank in enumerate(RANKS):
            for t, target in enumerate(ids):
                answer = server.json("cell", db="run.trend.db", metric="backward", step=step, rank=rank, target=target)
                assert list(answer["statistics"]) == list(held.values)
                for name, found in answer["statistics"].items():
                    value = expected[name][s, r, t]
                    if is_missing(np.array([value]))[0]:
                        word: object = "missing"
                    elif np.isnan(value):
                        word = "NaN"
                    elif np.isinf(value):
                        word = "+inf" if value > 0 else "-inf"
                    else:
                        word = value
                    assert found == word
                    seen.add(word if isinstance(word, str) else "number")
    assert seen == {"number", "NaN", "+inf", "-inf", "missing"}


def test_float64_only_where_float32_would_lose_more_than_rounding(tmp_path: Path, contents: TrendContents) -> None:
    write(tmp_path / "run.trend.db", contents, "tiles")
    server = Server(tmp_path)
    parameters = {"db": "run.trend.db", "metric": "forward", "dimension": "step", "value": STEPS[2]}
    assert server.values("slice", **parameters, statistic="max").dtype.itemsize == 8
    assert server.values("slice", **parameters, statistic="norm").dtype.itemsize == 4


def test_dataset_describes_axes_and_metrics(server: Server, contents: TrendContents, layout: str) -> None:
    answer = server.json("dataset", db="run.trend.db")
    statistics = ["norm", "max", "min", "mean"]
    assert answer["metrics"] == [
        {"name": "forward", "targets": 6, "statistics": statistics},
        {"name": "backward", "targets": 3, "statistics": statistics},
    ]
    assert answer["steps"]["step"] == list(STEPS)
    assert answer["ranks"]["rank"] == list(RANKS)
    assert answer["source"] == ("msprobe" if layout == "msprobe" else "trendprobe")
    assert answer["cut_at"] == (1e9 if layout in ("rows", "msprobe") else None)
    if layout != "msprobe":
        assert answer["steps"]["training_step"] == [10, 10, 11, 11, 12, 12, 13]
        assert answer["steps"]["micro_step"] == [0, 1, 0, 1, 0, 1, 0]
        assert answer["ranks"]["host"] == ["node-0", "node-0", "node-1", "node-1", "node-2"]
        assert (answer["kind"], answer["numbering"]) == ("dump", "trendprobe")


def test_targets_are_in_network_order(server: Server, contents: TrendContents, layout: str) -> None:
    for metric, held in contents.metrics.items():
        answer = server.json("targets", db="run.trend.db", metric=metric)
        expected = [held.targets[place] for place in network_order(contents, metric, layout)]
        assert answer["target"] == [target + 1 for target in expected]
        rows = list(zip(answer["name"], answer["vpp_stage"], answer["call"]))
        assert rows == [TARGETS[target] for target in expected]


def test_tags_point_into_the_targets(server: Server, contents: TrendContents, layout: str) -> None:
    places = contents.metrics["forward"].targets
    order = [places[place] for place in network_order(contents, "forward", layout)]
    answer = server.json("tags", db="run.trend.db", metric="forward")["tags"]
    # The tag of target 4 alone, which this metric lacks, is not there.
    assert [(tag["category"], tag["name"]) for tag in answer] == [("index", "output.0"), ("module", "mlp")]
    assert answer[1]["targets"] == sorted(order.index(target) for target in (3, 2, 5))
    assert server.json("tags", db="run.trend.db", metric="backward")["tags"] == []


def test_list_of_nonfinite_values_is_complete_and_ordered(server: Server, contents: TrendContents, layout: str) -> None:
    answer = server.json("nonfinite", db="run.trend.db")
    if layout == "msprobe":
        assert answer == {"known": False, "total": None, "first": []}
        return
    expected = []
    for metric, held in contents.metrics.items():
        for statistic, values in held.values.items():
            for s, r, t in zip(*np.nonzero(~np.isfinite(values) & ~is_missing(values))):
                value = values[s, r, t]
                word = "NaN" if np.isnan(value) else "+inf" if value > 0 else "-inf"
                target = held.targets[t]
                entry = (STEPS[s], RANKS[r], target + 1, metric, statistic, word)
                expected.append(((s, POSITIONS[target], r), entry))
    found = [tuple(entry.values()) for entry in answer["first"]]
    assert answer["total"] == len(expected)
    assert sorted(found) == sorted(entry for _, entry in expected)
    places = {entry: place for place, entry in expected}
    assert [places[entry] for entry in found] == sorted(places[entry] for entry in found)
    backward = server.json("nonfinite", db="run.trend.db", metric="backward")
    assert backward["total"] == sum(entry[3] == "backward" for _, entry in expected)


def test_a_metric_without_values_is_not_offered(tmp_path: Path, contents: TrendContents, layout: str) -> None:
    contents.metrics["recompute"] = MetricValues((), {"norm": np.empty((len(STEPS), len(RANKS), 0))})
    write(tmp_path / "run.trend.db", contents, layout)
    names = [metric["name"] for metric in Server(tmp_path).json("dataset", db="run.trend.db")["metrics"]]
    assert names == ["forward", "backward"]


# Which files there are


def test_databases_in_subdirectories_are_found(tmp_path: Path, contents: TrendContents) -> None:
    for name in ("b.trend.db", "runs/one/a.trend.db", "runs/two/deep/er/x y&ü.trend.db"):
        write(tmp_path / name, contents, "both")
    (tmp_path / "runs" / "notes.db").write_bytes(b"")
    (tmp_path / "runs" / "directory.trend.db").mkdir()
    server = Server(tmp_path)
    answer = server.json("databases")
    assert answer["complete"]
    assert [entry["id"] for entry in answer["databases"]] == [
        "b.trend.db",
        "runs/one/a.trend.db",
        "runs/two/deep/er/x y&ü.trend.db",
    ]
    for entry in answer["databases"]:
        status = (tmp_path / entry["id"]).stat()
        assert entry["size"] == status.st_size
        assert entry["modified"] == pytest.approx(status.st_mtime)
        assert server.json("dataset", db=entry["id"])["db"] == entry["id"]


def test_logdir_spec_names_its_directories(tmp_path: Path, contents: TrendContents) -> None:
    write(tmp_path / "one" / "a.trend.db", contents, "both")
    write(tmp_path / "two" / "a.trend.db", contents, "msprobe")
    server = Server(spec=f"first:{tmp_path / 'one'},second:{tmp_path / 'two'}")
    assert server.ids() == ["first/a.trend.db", "second/a.trend.db"]
    assert server.json("dataset", db="second/a.trend.db")["source"] == "msprobe"


@pytest.mark.parametrize("logdir", ["", "empty", "does/not/exist"])
def test_no_database_is_not_an_error(tmp_path: Path, logdir: str) -> None:
    (tmp_path / "empty").mkdir()
    server = Server(tmp_path / logdir if logdir else None)
    answer = server.json("databases")
    assert (answer["complete"], answer["databases"]) == (True, [])
    assert not server.plugin.is_active()


def test_a_database_made_later_is_seen(
    tmp_path: Path, contents: TrendContents, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)
    assert server.ids() == []
    write(tmp_path / "new" / "run.trend.db", contents, "both")
    monotonic = time.monotonic
    monkeypatch.setattr(log_directory.time, "monotonic", lambda: monotonic() + 60)
    assert server.ids() == ["new/run.trend.db"]
    assert server.plugin.is_active()


def test_is_active_does_not_walk_at_every_call(
    tmp_path: Path, contents: TrendContents, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "run.trend.db", contents, "both")
    walks = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (walks.append(path), scan(path))[1])
    opened: list[object] = []
    monkeypatch.setattr(sqlite3, "connect", lambda *arguments, **_: opened.append(arguments))
    server = Server(tmp_path)
    assert all(server.plugin.is_active() for _ in range(200))
    assert len(walks) <= 2
    assert not opened


@pytest.mark.parametrize(
    "db",
    [
        "../outside.trend.db",
        "sub/../../outside.trend.db",
        "./run.trend.db",
        "sub//inside.trend.db",
        "link-file.trend.db",
        "link-directory/outside.trend.db",
        "run.trend.db\0",
        "run.trend.db/",
        "",
        "sub",
    ],
)
def test_nothing_outside_the_log_directory_can_be_opened(tmp_path: Path, contents: TrendContents, db: str) -> None:
    logdir = tmp_path / "logs"
    write(tmp_path / "elsewhere" / "outside.trend.db", contents, "both")
    write(tmp_path / "outside.trend.db", contents, "both")
    write(logdir / "run.trend.db", contents, "both")
    write(logdir / "sub" / "inside.trend.db", contents, "both")
    (logdir / "link-file.trend.db").symlink_to(tmp_path / "outside.trend.db")
    (logdir / "link-directory").symlink_to(tmp_path / "elsewhere")
    server = Server(logdir)
    answer = server.json("databases")
    assert [entry["id"] for entry in answer["databases"]] == ["run.trend.db", "sub/inside.trend.db"]
    assert [note for note in answer["notes"] if note.startswith("link-file.trend.db")]
    status, code = (404, "unknown_database") if db else (400, "bad_parameter")
    message = server.error(status, code, "dataset", db=db)
    assert str(tmp_path) not in message


def test_absolute_paths_are_no_ids(tmp_path: Path, contents: TrendContents) -> None:
    path = write(tmp_path / "run.trend.db", contents, "both")
    server = Server(tmp_path)
    server.error(404, "unknown_database", "dataset", db=str(path))
    server.error(404, "unknown_database", "dataset", db=f"file:{path}")


def test_a_link_that_stays_inside_is_followed(tmp_path: Path, contents: TrendContents) -> None:
    write(tmp_path / "runs" / "7" / "run.trend.db", contents, "both")
    (tmp_path / "latest.trend.db").symlink_to("runs/7/run.trend.db")
    server = Server(tmp_path)
    assert server.ids() == ["latest.trend.db", "runs/7/run.trend.db"]
    assert server.json("dataset", db="latest.trend.db")["db"] == "latest.trend.db"


def test_a_file_that_became_a_link_outwards_is_refused(tmp_path: Path, contents: TrendContents) -> None:
    logdir = tmp_path / "logs"
    path = write(logdir / "run.trend.db", contents, "both")
    outside = write(tmp_path / "outside.trend.db", contents, "both")
    server = Server(logdir)
    assert server.ids() == ["run.trend.db"]
    path.unlink()
    path.symlink_to(outside)
    server.error(404, "unknown_database", "dataset", db="run.trend.db")


def test_a_replaced_database_is_a_conflict_for_those_who_saw_the_old_one(tmp_path: Path) -> None:
    path = write(tmp_path / "run.trend.db", make_contents(1), "both")
    server = Server(tmp_path)
    common = {"db": "run.trend.db", "metric": "forward", "statistic": "norm", "dimension": "step", "value": 0}
    version = server.json("dataset", db="run.trend.db")["version"]
    assert "max-age=3600" in server.ask("slice", **common, version=version).headers["Cache-Control"]
    replacement = make_contents(2)
    os.replace(write(tmp_path / "new.trend.db", replacement, "both"), path)
    assert "run.trend.db" in server.error(409, "changed", "slice", **common, version=version)
    found = server.ask("slice", **common)
    assert found.headers["X-TrendProbe-Version"] != version
    assert "max-age" not in found.headers.get("Cache-Control", "")
    assert_same_values(server.values("slice", **common), truth(replacement, "forward", "norm", "both")[0].T)


def test_a_database_replaced_while_it_is_opened_is_a_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "run.trend.db", make_contents(1), "both")
    new = write(tmp_path / "elsewhere" / "new.trend.db", make_contents(2), "both")
    server = Server(tmp_path)
    connect = sqlite3.connect

    def replace_first(*arguments: Any, **options: Any) -> sqlite3.Connection:
        os.replace(new, path)
        return connect(*arguments, **options)

    server.ids()
    with monkeypatch.context() as patch:
        patch.setattr(trend_database.sqlite3, "connect", replace_first)
        server.error(409, "changed", "dataset", db="run.trend.db")
    assert server.json("dataset", db="run.trend.db")["db"] == "run.trend.db"


def test_a_removed_database_is_unknown(tmp_path: Path, contents: TrendContents) -> None:
    path = write(tmp_path / "run.trend.db", contents, "both")
    server = Server(tmp_path)
    assert server.ids() == ["run.trend.db"]
    path.unlink()
    server.error(404, "unknown_database", "dataset", db="run.trend.db")


# Requests that make no sense

SLICE = {"db": "run.trend.db", "metric": "forward", "statistic": "norm", "dimension": "step", "value": 0}
LINE = {"db": "run.trend.db", "metric": "forward", "statistic": "norm", "along": "step", "rank": 0, "target": 1}
CELL = {"db": "run.trend.db", "metric": "forward", "step": 0, "rank": 0, "target": 1}


@pytest.mark.parametrize(
    ("route", "parameters", "status", "word"),
    [
        ("databases", {"db": "run.trend.db"}, 400, "'db'"),
        ("dataset", {}, 400, "'db'"),
        ("targets", {"db": "run.trend.db"}, 400, "'metric'"),
        ("targets", {"db": "run.trend.db", "metric": "sideways"}, 400, "forward, backward"),
        ("tags", {"db": "run.trend.db", "metric": ""}, 400, "'metric'"),
        ("nonfinite", {"db": "run.trend.db", "metric": "x"}, 400, "forward, backward"),
        ("slice", {**SLICE, "value": "1.5"}, 400, "'1.5'"),
        ("slice", {**SLICE, "value": "NaN"}, 400, "'NaN'"),
        ("slice", {**SLICE, "value": "9" * 400}, 400, "integer"),
        ("slice", {**SLICE, "value": "١"}, 400, "integer"),
        ("slice", {**SLICE, "value": ""}, 400, "'value'"),
        ("slice", {**SLICE, "value": 3}, 404, "step 3"),
        ("slice", {**SLICE, "value": -1}, 404, "step -1"),
        ("slice", {**SLICE, "value": "9" * 18}, 404, "step"),
        ("slice", {**SLICE, "dimension": "time"}, 400, "step, rank, target"),
        ("slice", {**SLICE, "dimension": "target", "value": 5}, 404, "target 5"),
        ("slice", {**SLICE, "statistic": "rank"}, 400, "norm, max, min, mean"),
        ("slice", {**SLICE, "statistic": 'norm" FROM trend_data --'}, 400, "norm, max, min, mean"),
        ("slice", {**SLICE, "color": "red"}, 400, "'color'"),
        ("line", {**LINE, "step": 0}, 400, "'step'"),
        ("line", {**LINE, "target": 99}, 404, "target 99"),
        ("line", {**LINE, "along": "rank"}, 400, "'step'"),
        ("cell", {**CELL, "rank": 2}, 404, "rank 2"),
        ("cell", {name: value for name, value in CELL.items() if name != "rank"}, 400, "'rank'"),
    ],
)
def test_bad_parameters_say_what_is_wrong(
    tmp_path: Path, contents: TrendContents, route: str, parameters: dict[str, object], status: int, word: str
) -> None:
    write(tmp_path / "run.trend.db", contents, "both")
    code = "bad_parameter" if status == 400 else "unknown_value"
    assert word in Server(tmp_path).error(status, code, route, **parameters)


def test_a_parameter_given_twice_is_refused(tmp_path: Path, contents: TrendContents) -> None:
    write(tmp_path / "run.trend.db", contents, "both")
    response = Server(tmp_path).client.get(f"{API}dataset?db=run.trend.db&db=run.trend.db")
    assert response.status_code == 400
    assert "twice" in json.loads(response.text)["error"]["message"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_other_methods_are_refused(tmp_path: Path, method: str) -> None:
    response = Server(tmp_path).client.open(f"{API}databases", method=method)
    assert (response.status_code, response.headers["Allow"]) == (405, "GET")
    assert json.loads(response.text)["error"]["code"] == "bad_method"


def test_more_values_than_a_page_can_hold_are_refused(
    tmp_path: Path, contents: TrendContents, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "run.trend.db", contents, "both")
    monkeypatch.setattr("trendprobe_tb.value_reader.MAX_CELLS", 10)
    Server(tmp_path).error(422, "too_large", "slice", **SLICE)


# Files that are no good


def damaged_tile(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE trendprobe_tiles SET data = substr(data, 1, length(data) - 3)")
    connection.close()


def newer_format(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=2")
    connection.close()


def without_table(table: str) -> Callable[[Path], None]:
    def drop(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(f"DROP TABLE {table}")
        connection.close()

    return drop


def cut(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


@pytest.mark.parametrize(
    ("damage", "code", "word"),
    [
        (lambda path: path.write_bytes(b""), "unreadable_database", "empty"),
        (lambda path: path.write_text("not a database " * 5000), "unreadable_database", "not a database"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(5000)), "unreadable_database", "run.trend.db"),
        (cut(0.5), "unreadable_database", "run.trend.db"),
        (cut(0.97), "unreadable_database", "run.trend.db"),
        (damaged_tile, "unreadable_database", "Tile"),
        (newer_format, "newer_format", "2"),
        (without_table("trend_data"), "unreadable_database", "trend_data"),
        (without_table("monitoring_targets"), "unreadable_database", "monitoring_targets"),
        (without_table("trendprobe_info"), "unreadable_database", "trendprobe_info"),
        (without_table("trendprobe_tiles"), "unreadable_database", "trendprobe_tiles"),
    ],
)
def test_damaged_databases_say_so(
    tmp_path: Path, contents: TrendContents, damage: Callable[[Path], None], code: str, word: str
) -> None:
    damage(write(tmp_path / "run.trend.db", contents, "both"))
    write(tmp_path / "good.trend.db", contents, "both")
    server = Server(tmp_path)
    message = server.error(422, code, "slice", **SLICE)
    assert word in message
    assert str(tmp_path) not in message
    # The others are not disturbed.
    assert server.values("slice", **{**SLICE, "db": "good.trend.db"}).shape == (6, 5)


@pytest.mark.parametrize("layout", ["both", "rows", "msprobe"])
def test_whatever_is_in_a_file_there_is_no_server_error(tmp_path: Path, contents: TrendContents, layout: str) -> None:
    original = write(tmp_path / "original.trend.db", contents, layout).read_bytes()
    generator = random.Random(5)
    server = Server(tmp_path)
    server.ids()
    statuses = set()
    target = tmp_path / "original.trend.db"
    for _ in range(60):
        broken = bytearray(original)
        for _ in range(generator.choice((1, 20, 400))):
            broken[generator.randrange(len(broken))] = generator.randrange(256)
        target.write_bytes(broken)
        for route, parameters in (
            ("dataset", {"db": "original.trend.db"}),
            ("targets", {"db": "original.trend.db", "metric": "forward"}),
            ("tags", {"db": "original.trend.db", "metric": "forward"}),
            ("nonfinite", {"db": "original.trend.db"}),
            ("slice", {**SLICE, "db": "original.trend.db"}),
            ("slice", {**SLICE, "db": "original.trend.db", "dimension": "target", "value": 1}),
            ("line", {**LINE, "db": "original.trend.db"}),
            ("cell", {**CELL, "db": "original.trend.db"}),
        ):
            response = server.ask(route, **parameters)
            statuses.add(response.status_code)
            assert response.status_code < 500, (route, response.text)
            if response.status_code != 200:
                assert json.loads(response.text)["error"]["message"]
    assert {200, 422} <= statuses


def test_foreign_values_are_not_taken_for_numbers(tmp_path: Path, contents: TrendContents) -> None:
    path = write(tmp_path / "run.trend.db", contents, "msprobe")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE trend_data SET norm = 'nan' WHERE target_id = 2")
        connection.execute("UPDATE trend_data SET norm = x'00' WHERE target_id = 3")
    connection.close()
    server = Server(tmp_path)
    ids = server.json("targets", db="run.trend.db", metric="forward")["target"]
    found = server.values("slice", **SLICE)
    assert np.isnan(found[ids.index(2)]).all()
    assert np.isnan(found[ids.index(3)]).all()


def test_an_old_msprobe_file_without_tags_and_statistics_opens(tmp_path: Path, contents: TrendContents) -> None:
    path = write(tmp_path / "run.trend.db", contents, "msprobe")
    for table in ("monitoring_tags", "tag_target_mapping", "global_stats"):
        without_table(table)(path)
    server = Server(tmp_path)
    assert [metric["name"] for metric in server.json("dataset", db="run.trend.db")["metrics"]] == [
        "forward",
        "backward",
    ]
    assert server.json("tags", db="run.trend.db", metric="forward")["tags"] == []
    assert_same_values(server.values("slice", **SLICE), truth(contents, "forward", "norm", "msprobe")[0].T)


def test_targets_of_large_msprobe_files_come_from_the_tags_and_the_edges(
    tmp_path: Path, contents: TrendContents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trend_database, "SCAN_BYTES", 0)
    contents.tags["forward"].pop()  # What msProbe never writes: a tag of a target that the metric lacks.
    for held in contents.metrics.values():
        for values in held.values.values():
            values[0] = 1.0
    write(tmp_path / "run.trend.db", contents, "msprobe")
    server = Server(tmp_path)
    assert server.json("targets", db="run.trend.db", metric="forward")["target"] == [1, 2, 3, 4, 6, 7]
    assert_same_values(server.values("slice", **SLICE), truth(contents, "forward", "norm", "msprobe")[0].T)


# The plugin in TensorBoard


def test_the_tab_has_its_name_and_its_module(tmp_path: Path) -> None:
    metadata = Server(tmp_path).plugin.frontend_metadata()
    assert (metadata.tab_name, metadata.es_module_path) == ("TREND ANALYZER", "/index.js")


def test_the_page_is_a_module_even_when_it_was_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trendprobe_tb.plugin._STATIC", str(tmp_path / "nowhere"))
    response = Server(tmp_path).client.get("/data/plugin/trendprobe/index.js")
    assert response.status_code == 200
    assert response.mimetype in ("text/javascript", "application/javascript")
    assert "export function render" in response.text


def test_binary_answers_are_compressed_only_where_it_pays(tmp_path: Path) -> None:
    contents = make_contents()
    steps, ranks = 40, 64
    contents.steps = [(step, step, 0) for step in range(steps)]
    contents.ranks = [(rank, "node") for rank in range(ranks)]
    empty = np.full((steps, ranks, 6), MISSING)
    empty[0] = np.random.default_rng(3).normal(size=(ranks, 6))
    contents.metrics = {"forward": MetricValues((3, 1, 5, 0, 2, 6), {"norm": empty})}
    write(tmp_path / "run.trend.db", contents, "tiles")
    server = Server(tmp_path)
    target = {**SLICE, "dimension": "target", "value": 1}
    packed = server.client.get(API + "slice", query_string=target, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    plain = server.client.get(API + "slice", query_string=target)
    assert "Content-Encoding" not in plain.headers
    noise = server.client.get(API + "slice", query_string=SLICE, headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in noise.headers


def test_the_plugin_needs_no_framework(tmp_path: Path) -> None:
    program = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "tensorflow", "pandas", "msprobe", "mindspore", "trendprobe"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import trendprobe_tb
assert "numpy" not in sys.modules
from tensorboard.plugins import base_plugin
from trendprobe_tb.plugin import TrendProbePlugin
plugin = TrendProbePlugin(base_plugin.TBContext(logdir=sys.argv[1]))
plugin.get_plugin_apps()
print(plugin.is_active())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout.strip()) == (0, "False"), result.stderr


def test_requests_of_many_threads_do_not_disturb_each_other(tmp_path: Path, contents: TrendContents) -> None:
    for layout in LAYOUTS:
        write(tmp_path / f"{layout}.trend.db", contents, layout)
    server = Server(tmp_path)

    def read(number: int) -> None:
        layout = LAYOUTS[number % len(LAYOUTS)]
        index = number % len(STEPS)
        found = server.values("slice", **{**SLICE, "db": f"{layout}.trend.db", "value": STEPS[index]})
        assert_same_values(found, truth(contents, "forward", "norm", layout)[index].T)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(80)))


@pytest.fixture(autouse=True)
def no_file_is_changed(tmp_path: Path) -> Iterator[None]:
    """The viewer leaves nothing beside the databases."""
    yield
    left = [path.name for path in tmp_path.rglob("*") if path.name.endswith(("-wal", "-shm", "-journal"))]
    shutil.rmtree(tmp_path, ignore_errors=True)
    assert not left
