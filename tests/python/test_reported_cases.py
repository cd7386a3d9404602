"""What users of such tools ran into; each test names where it was reported."""

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import find_trendprobe
from trend_rows import rows
from trend_tiles import tile_values

Command = Callable[..., subprocess.CompletedProcess[str]]


def peak_memory(*arguments: object) -> int:
    """Of the command, in KiB."""
    process = subprocess.Popen([find_trendprobe(), *map(str, arguments)])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss


@pytest.mark.parametrize("layout", ["both", "tiles"])
def test_memory_does_not_grow_with_the_steps(layout: str, fixture_tree: Callable[[str], Path], tmp_path: Path) -> None:
    """kohya-ss/sd-scripts, issue 1046: the records of an hour of training took 12 hours to convert."""
    step = fixture_tree("pt_mix_proc") / "data" / "step0"
    (process,) = step.iterdir()
    text = (process / "dump.json").read_bytes()
    peaks = []
    for steps in (256, 2048):
        data = tmp_path / f"steps{steps}"
        for number in range(steps):
            rank = data / f"step{number}" / "rank0"
            rank.mkdir(parents=True)
            os.link(process / "construct.json", rank / "construct.json")
            (rank / "dump.json").write_bytes(text)
        output = tmp_path / "output"
        peaks.append(peak_memory("merge", "--data", data, "--db", output, "--layout", layout, "--quiet", "--jobs", 2))
        shutil.rmtree(data)
    with sqlite3.connect(output / "dump_data.trend.db") as connection:
        (records,) = connection.execute("SELECT value FROM trendprobe_info WHERE key = 'records'").fetchone()
    connection.close()
    assert records > 100_000
    # What is kept of a step beyond its records is a row of the step axis and one of each input file.
    assert peaks[1] - peaks[0] < 4096, peaks


VALUES = {"Max": 3e12, "Min": float("-inf"), "Mean": float("nan"), "Norm": float("inf")}


def raw_and_rows(database: Path, name: str) -> tuple[dict[object, str], dict[str, float | None]]:
    """The values of a target in the tiles, and its row, by statistic."""
    raw = {cell[-1]: value for cell, value in tile_values(database).items() if cell[2] == name}
    (row,) = (row for key, row in rows(database).items() if key[2] == name)
    return raw, row


def nonfinite(database: Path) -> set[tuple[str, str]]:
    with sqlite3.connect(database) as connection:
        found = connection.execute("SELECT statistic, value FROM trendprobe_nonfinite").fetchall()
    connection.close()
    return set(found)


def test_infinities_and_large_values_of_a_dump_are_kept(tmp_path: Path, trendprobe: Command) -> None:
    """msProbe, data2db: an infinity becomes 1e9 + 1 and what is larger than 1e9 becomes 1e9."""
    rank = tmp_path / "data" / "step0" / "rank0"
    rank.mkdir(parents=True)
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], **VALUES, "requires_grad": False}
    dump = {
        "task": "statistics",
        "level": "L0",
        "framework": "pytorch",
        "data": {"Module.fc.Linear.forward.0": {"input_args": [tensor], "input_kwargs": {}, "output": []}},
    }
    (rank / "dump.json").write_text(json.dumps(dump))
    (rank / "construct.json").write_text(json.dumps({"Module.fc.Linear.forward.0": None}))
    trendprobe("merge", "--data", tmp_path / "data", "--db", tmp_path / "db", "--quiet")
    database = tmp_path / "db" / "dump_data.trend.db"
    raw, row = raw_and_rows(database, "Module.fc.Linear.input.0")
    assert {name: float(value) for name, value in raw.items() if name != "mean"} == {
        "max": pytest.approx(3e12, rel=1e-7),
        "min": float("-inf"),
        "norm": float("inf"),
    }
    assert raw["mean"] == "nan"
    assert row == {"norm": 1e9 + 1, "max": 1e9, "min": -1e9 - 1, "mean": None}
    assert nonfinite(database) == {("norm", "+inf"), ("min", "-inf"), ("mean", "NaN")}


def test_infinities_and_large_values_of_a_monitor_are_kept(tmp_path: Path, trendprobe: Command) -> None:
    """msProbe, data2db: as in a dump."""
    rank = tmp_path / "data" / "Dec03_10-00-00-rank0-abc"
    rank.mkdir(parents=True)
    (rank / "grad_reduced_0-0.csv").write_text(
        "vpp_stage,name,step,norm,max,min,mean\n0,fc.weight,0,inf,3e12,-inf,nan\n"
    )
    trendprobe("merge", "--data", tmp_path / "data", "--db", tmp_path / "db", "--quiet")
    database = tmp_path / "db" / "monitor_data.trend.db"
    raw, row = raw_and_rows(database, "fc.weight")
    assert raw["norm"] == "inf" and raw["min"] == "-inf" and raw["mean"] == "nan"
    assert float(raw["max"]) == pytest.approx(3e12, rel=1e-7)
    assert row == {"norm": 1e9 + 1, "max": 1e9, "min": -1e9 - 1, "mean": None}
    assert nonfinite(database) == {("norm", "+inf"), ("min", "-inf"), ("mean", "NaN")}
