"""The key "stats" of trend_db, from a training under msProbe to the trend database, against NumPy."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from trend_tiles import tile_values

pytest.importorskip("torch")
pytest.importorskip("msprobe")

ALL_STATISTICS = ["norm", "max", "min", "mean", "std", "nans", "infs", "zeros"]

TRAINING = """
import json, sys
import trendprobe
trendprobe.enable()
import torch
from msprobe.pytorch import PrecisionDebugger

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 16)
        self.layer = torch.nn.Linear(16, 3)

    def forward(self, tokens):
        return torch.nn.functional.relu(self.layer(self.embedding(tokens)))

torch.manual_seed(0)
model = Model()
outputs = {}
for name in ("embedding", "layer"):
    module = model.get_submodule(name)
    module.register_forward_hook(
        lambda module, args, output, name=name: outputs.update({name: output.detach().clone(), "tokens": args[0]})
        if name == "embedding" else outputs.update({name: output.detach().clone()}))
debugger = PrecisionDebugger(config_path="config.json")
kept = []
for step in range(3):
    with torch.no_grad():
        model.layer.bias[0] = (0.0, float("nan"), float("inf"))[step]
        model.embedding.weight[3] = 0
    debugger.start(model)
    loss = model(torch.tensor([[1, 3, 3], [7, 3, 0]])).square().sum()
    loss.backward()
    debugger.stop()
    debugger.step()
    kept.append({name: tensor.tolist() for name, tensor in outputs.items()})
json.dump(kept, open("outputs.json", "w"))
"""


def train(directory: Path, stats: list[str], keep_files: bool = False) -> list[dict[str, np.ndarray]]:
    """Returns what the modules gave, step by step."""
    directory.mkdir()
    config = {
        "task": "statistics",
        "level": "L0",
        "dump_path": "./dump",
        "rank": [],
        "step": [],
        "statistics": {"scope": [], "list": [], "data_mode": ["all"]},
        "trend_db": {"enable": True, "path": "./trend", "keep_files": keep_files, "stats": stats},
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "train.py").write_text(TRAINING)
    result = subprocess.run(
        [sys.executable, "train.py"], cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "TrendProbe" not in result.stderr
    steps = json.loads((directory / "outputs.json").read_text())
    return [{name: np.array(values) for name, values in step.items()} for step in steps]


def expected(values: np.ndarray) -> dict[str, float | None]:
    counts = {"nans": np.isnan(values).sum(), "infs": np.isinf(values).sum(), "zeros": (values == 0).sum()}
    if np.issubdtype(values.dtype, np.integer):
        return {"norm": None, "max": values.max(), "min": values.min(), "mean": None, "std": None, **counts}
    with np.errstate(invalid="ignore"):
        norm, mean, std = np.sqrt((values * values).sum()), values.mean(), values.std(ddof=1)
    return {"norm": norm, "max": values.max(), "min": values.min(), "mean": mean, "std": std, **counts}


TARGETS = {
    "Module.embedding.Embedding.output.0": "embedding",
    "Module.embedding.Embedding.input.0": "tokens",
    "Module.layer.Linear.output.0": "layer",
}


@pytest.mark.parametrize(
    "stats",
    [list(reversed(ALL_STATISTICS)), ["std", "norm"], ["norm", "max", "min", "mean"]],
    ids=["all", "two", "msprobe's"],
)
def test_chosen_statistics_reach_the_trend_database(
    stats: list[str], tmp_path: Path, trendprobe: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    outputs = train(tmp_path / "run", stats)
    trendprobe("merge", "--data", tmp_path / "run/trend", "--db", tmp_path / "db")
    path = tmp_path / "db/dump_data.trend.db"
    trendprobe("verify", path)
    with sqlite3.connect(path) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(trend_data)")][4:]
        rows = {
            (target, step): dict(zip(columns, values, strict=True))
            for target, step, *values in database.execute(
                f"SELECT target_name, training_step, {', '.join(columns)} FROM trend_data "
                "JOIN monitoring_targets USING (target_id) JOIN trendprobe_steps USING (step) WHERE metric_id = 1"
            )
        }
        nonfinite = set(
            database.execute(
                "SELECT target_name, step, statistic, value FROM trendprobe_nonfinite "
                "JOIN monitoring_targets USING (target_id) WHERE metric_id = 1"
            )
        )
    # msProbe's four are there for its viewer, whatever was chosen.
    assert columns == [name for name in ALL_STATISTICS if name in stats or name in ALL_STATISTICS[:4]]
    cells = tile_values(path)
    assert {cell[-1] for cell in cells} == set(stats)
    for step, values_of in enumerate(outputs):
        for target, name in TARGETS.items():
            values = expected(values_of[name])
            if all(values[statistic] is None for statistic in stats):
                assert (target, step) not in rows  # token numbers have nothing of what was chosen
                continue
            for statistic, value in values.items():
                if statistic not in stats:
                    assert rows[target, step].get(statistic) is None
                    continue
                place = (target, step, statistic)
                cell = cells.get((0, step, target, 0, 0, "forward", statistic))
                shown = rows[target, step][statistic]
                if value is None:
                    assert shown is None and cell is None, place
                elif math.isfinite(value):
                    assert float(cell) == pytest.approx(value, rel=1e-6), place
                    assert shown == pytest.approx(value, rel=1e-6), place
                else:
                    text = "NaN" if math.isnan(value) else f"{value:+}"
                    assert (*place, text) in nonfinite
                    assert repr(float(value)) == cell, place
    assert len([place for place in nonfinite if place[2] == "std"]) >= (4 if "std" in stats else 0)


def test_msprobes_own_files_hold_what_they_held(
    tmp_path: Path, trendprobe: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """The choice is of our records; the files of the same run merge to msProbe's four."""
    train(tmp_path / "run", ["zeros", "max"], keep_files=True)
    found = {}
    for name in ("trend", "dump"):
        trendprobe("merge", "--data", tmp_path / "run" / name, "--db", tmp_path / name)
        found[name] = tile_values(tmp_path / name / "dump_data.trend.db")
    assert {cell[-1] for cell in found["trend"]} == {"max", "zeros"}
    assert {cell[-1] for cell in found["dump"]} == {"norm", "max", "min", "mean"}
    largest = {
        name: {cell: value for cell, value in cells.items() if cell[-1] == "max"} for name, cells in found.items()
    }
    assert largest["trend"] == largest["dump"]
    assert len(largest["trend"]) > 20


def test_a_restart_may_choose_others(
    tmp_path: Path, trendprobe: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Of a step that both runs have, the newer run's records count, with what it chose."""
    recorder_module = pytest.importorskip("trendprobe._recorder")
    runs = (
        (range(6), ("norm", "max", "min", "mean"), (5.0, 4.0, -3.0, 0.5)),
        (range(4, 9), ("norm", "std", "zeros"), (6.0, math.nan, 7.0)),
    )
    for steps, statistics, values in runs:
        recorder = recorder_module.Recorder(str(tmp_path / "trend"))
        for step in steps:
            entries = [("Module.fc.Linear.forward.0", False, [(".output.0", values), (".output.1", values)])]
            recorder.submit_dump_step(step, statistics, entries, {})
        recorder.set_rank(0)
        recorder.close()
    trendprobe("merge", "--data", tmp_path / "trend", "--db", tmp_path / "db")
    path = tmp_path / "db/dump_data.trend.db"
    trendprobe("verify", path)
    with sqlite3.connect(path) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(trend_data)")][4:]
        rows = database.execute("SELECT step, * FROM trend_data WHERE target_id = 1 ORDER BY step").fetchall()
        nonfinite = database.execute("SELECT DISTINCT step, statistic, value FROM trendprobe_nonfinite").fetchall()
    assert columns == ["norm", "max", "min", "mean", "std", "zeros"]
    old, new = (5.0, 4.0, -3.0, 0.5, None, None), (6.0, None, None, None, None, 7.0)
    assert [row[5:] for row in rows] == [old] * 4 + [new] * 5
    assert sorted(nonfinite) == [(step, "std", "NaN") for step in range(4, 9)]
    cells = tile_values(path)
    for step in range(9):
        found = {cell[-1]: value for cell, value in cells.items() if cell[1:3] == (step, "Module.fc.Linear.output.0")}
        statistics, values = runs[step >= 4][1:]
        assert found == dict(zip(statistics, map(repr, values), strict=True))
