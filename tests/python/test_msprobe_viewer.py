"""msProbe's own viewer on a database of ours: its routes, asked in a TensorBoard that has never seen TrendProbe."""

import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# A Python with msProbe and TensorBoard; where it has TrendProbe too, its plugin is only one more tab.
VIEWER_PYTHON = os.environ.get("TRENDPROBE_VIEWER_PYTHON", sys.executable)
# Trees of which msProbe's own database is at hand: dump with micro-steps on two ranks, and monitor.
TREES = {"dump": "pt_L0_ddp2", "monitor": "mon_full_1rank"}
Ask = Callable[..., Any]


@contextmanager
def viewer(log_directory: Path) -> Iterator[Ask]:
    """Starts TensorBoard on a directory; yields a function that asks a route and returns its data."""
    process = subprocess.Popen(
        [VIEWER_PYTHON, "-m", "tensorboard.main", "--logdir", log_directory, "--port", "0", "--load_fast", "false"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr
        log = ""
        for line in process.stderr:
            log += line
            if address := re.search(r"at (http://\S+/)", line):
                break
        else:
            pytest.fail(f"TensorBoard did not start:\n{log}")

        def ask(route: str, body: dict[str, Any] | None = None) -> Any:
            request = urllib.request.Request(
                f"{address[1]}data/plugin/TrendVis/{route}",
                json.dumps(body).encode() if body else None,
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                # What Python's json writes for a value that is not a number is read by it, too.
                answer = json.load(response)
            assert answer["success"], answer
            return answer["data"]

        yield ask
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.fixture(scope="module", params=TREES)
def merged(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    trendprobe: Callable,
    fixture_tree: Callable[[str], Path],
) -> Path:
    """Our default database of a tree, alone in its directory."""
    directory = tmp_path_factory.mktemp("viewer")
    trendprobe("merge", "--data", fixture_tree(TREES[request.param]) / "data", "--db", directory)
    return directory / f"{request.param}_data.trend.db"


def query(path: Path, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        return database.execute(sql, parameters).fetchall()


LABEL = "target_id || '_' || vpp_stage || '_' || target_name || '_' || micro_step"
JOINED = "trend_data JOIN monitoring_targets USING (target_id) JOIN monitoring_metrics USING (metric_id)"


def test_every_route_answers_with_the_rows_of_our_database(merged: Path) -> None:
    with viewer(merged.parent) as ask:
        metrics = {metric["name"]: metric["stats"] for metric in ask("metrics")}
        # Exactly the metrics that have rows, each with the statistics that it has.
        assert metrics.keys() == {name for (name,) in query(merged, f"SELECT DISTINCT metric_name FROM {JOINED}")}
        assert metrics
        for metric, statistics in metrics.items():
            for statistic in statistics:
                assert_slices_equal_rows(merged, ask, metric, statistic)
            tags = {(tag["text"], tag["category"]) for tag in ask(f"tags?metric={metric}")}
            # The tags of the metric's targets, also those that a target has for the sake of another metric.
            assert tags == set(
                query(
                    merged,
                    "SELECT DISTINCT tag_name, category FROM monitoring_tags JOIN tag_target_mapping USING (tag_id) "
                    f"WHERE target_id IN (SELECT target_id FROM {JOINED} WHERE metric_name = ?)",
                    metric,
                )
            )
            assert tags


def assert_slices_equal_rows(path: Path, ask: Ask, metric: str, statistic: str) -> None:
    """The three dimensions of one statistic: the last value that has rows, as a heat map and as a line."""
    common = {"metric": metric, "stat": statistic, "tags": []}
    ((rank, step, target),) = query(
        path, f"SELECT rank, step, target_id FROM {JOINED} WHERE metric_name = ? ORDER BY step DESC LIMIT 1", metric
    )
    slices = {
        "step": (step, ("rank", f"{LABEL}"), (rank, target), ("step", "rank", "target_id")),
        "rank": (rank, ("step", f"{LABEL}"), (step, target), ("rank", "step", "target_id")),
        "module_name": (target, ("step", "rank"), (step, rank), (LABEL, "step", "rank")),
    }
    columns = {"step": "step", "rank": "rank", "module_name": "target_id"}
    for dimension, (value, axes, cell, line) in slices.items():
        assert str(value) in ask("values", common | {"dimension": dimension})
        cells = ask("heatmap_data", common | {"dimension": dimension, "value": str(value)})
        expected = query(
            path,
            f"SELECT {axes[0]}, {axes[1]}, {statistic} FROM {JOINED} "
            f"WHERE metric_name = ? AND {columns[dimension]} = ?",
            metric,
            value,
        )
        assert cells
        assert_same_values({(x, y[1]): number for x, y, number in cells}, {row[:2]: row[2] for row in expected})
        trend = ask("trend", common | {"dimension": dimension, "dimX": cell[0], "dimYIdx": cell[1]})
        assert trend["values"]
        points = query(
            path,
            f"SELECT {line[0]}, {statistic} FROM {JOINED} WHERE metric_name = ? AND {line[1]} = ? AND {line[2]} = ?",
            metric,
            *cell,
        )
        assert_same_values(dict(zip(trend["dimensions"], trend["values"], strict=True)), dict(points))


def assert_same_values(found: dict[Any, Any], expected: dict[Any, Any], relative: float = 0) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if value is None:
            assert found[key] is None, key
        else:
            assert math.isclose(found[key], value, rel_tol=relative), key


@pytest.mark.parametrize("kind", TREES)
def test_answers_as_from_msprobes_own_database(
    kind: str, tmp_path: Path, trendprobe: Callable, fixture_tree: Callable[[str], Path]
) -> None:
    """The same answers, ids apart, from msProbe's database of a tree and from ours with --compat msprobe."""
    tree = fixture_tree(TREES[kind])
    trendprobe("data2db", "--data", tree / "data", "--db", tmp_path, "--compat", "msprobe")
    answers = []
    for directory in (tmp_path, tree / "ref_db"):
        with viewer(directory) as ask:
            found: dict[tuple[str, ...], Any] = {}
            for metric in ask("metrics"):
                name, statistics = metric["name"], sorted(metric["stats"])
                common = {"metric": name, "stat": statistics[0], "tags": []}
                found[(name,)] = statistics
                found[name, "tags"] = sorted((tag["text"], tag["category"]) for tag in ask(f"tags?metric={name}"))
                for dimension in ("step", "rank"):
                    values = ask("values", common | {"dimension": dimension})
                    found[name, dimension] = values
                    for value in values:
                        cells = ask("heatmap_data", common | {"dimension": dimension, "value": value})
                        found[name, dimension, value] = {
                            (x, label.split("_", 1)[1]): number for x, (_, label), number in cells
                        }
                modules = ask("values", common | {"dimension": "module_name"})
                found[name, "modules"] = sorted(label.split("_", 1)[1] for label in modules.values())
            answers.append(found)
    ours, theirs = answers
    assert ours.keys() == theirs.keys()
    for key, expected in theirs.items():
        if isinstance(expected, dict) and len(key) == 3:
            # msProbe reads the numbers of a CSV file with pandas, which does not round the last bit correctly.
            assert_same_values(ours[key], expected, relative=1e-12)
        else:
            assert ours[key] == expected, key
