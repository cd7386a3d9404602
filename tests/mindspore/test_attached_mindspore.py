"""A training on MindSpore under the real msProbe with TrendProbe attached: against msProbe's own files of the same."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mindspore")

SCRIPT = Path(__file__).with_name("train_mindspore.py")
SIDES = ("msprobe", "trendprobe", "both")
STEPS = 3
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    level: (
        "dump",
        {
            "task": "statistics",
            "dump_path": "./out",
            "rank": [],
            "step": [],
            "level": level,
            "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
        },
    )
    for level in ("L0", "mix")
}
CONFIGS["monitor_v2"] = (
    "monitor",
    {
        "framework": "mindspore",
        "output_dir": "out",
        "patch_optimizer_step": False,
        "monitors": {"module": {"enabled": True}, "optimizer": {"enabled": True}},
    },
)


class Run:
    def __init__(self, directory: Path, what: str, config: dict[str, Any], side: str) -> None:
        (directory / "out").mkdir(parents=True)
        self.directory = directory
        trend_db = {"enable": True, "path": "trend", "keep_files": side == "both"}
        (directory / "config.json").write_text(
            json.dumps(config if side == "msprobe" else {**config, "trend_db": trend_db})
        )
        launcher = [] if side == "msprobe" else ["-m", "trendprobe.run"]
        self._process = subprocess.Popen(
            [sys.executable, *launcher, SCRIPT, what, "config.json"],
            cwd=directory,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self) -> None:
        self.output = self._process.communicate(timeout=300)[0]
        assert self._process.returncode == 0, self.output
        assert "TrendProbe records n" not in self.output
        self.numbers = [line for line in self.output.splitlines() if line.startswith(("loss ", "parameter "))]

    def merged(self, data: str) -> dict[tuple[object, ...], dict[str, float | None]]:
        """(rank, step, target, call, metric) → statistics."""
        command = os.environ.get("TRENDPROBE") or str(Path(sys.executable).with_name("trendprobe"))
        target = self.directory / f"from_{data}"
        shutil.rmtree(target, ignore_errors=True)
        result = subprocess.run(
            [command, "merge", "--data", self.directory / data, "--db", target],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        (path,) = target.glob("*.db")
        with sqlite3.connect(path) as database:
            statistics = [row[1] for row in database.execute("PRAGMA table_info(trend_data)")][4:]
            found = database.execute(
                f"SELECT rank, step, target_name, micro_step, metric_name, {', '.join(statistics)} FROM trend_data "
                "JOIN monitoring_targets USING (target_id) JOIN monitoring_metrics USING (metric_id)"
            )
            return {row[:5]: dict(zip(statistics, row[5:], strict=True)) for row in found}


@pytest.fixture(scope="module", params=CONFIGS)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    what, config = CONFIGS[request.param]
    root = tmp_path_factory.mktemp(request.param)
    started = {side: Run(root / side, what, config, side) for side in SIDES}
    for run in started.values():
        run.wait()
    return started


@pytest.mark.parametrize("side", SIDES[1:])
def test_every_value_is_that_of_msprobes_files(side: str, runs: dict[str, Run]) -> None:
    expected = runs["msprobe"].merged("out")
    found = runs[side].merged("trend")
    assert len(expected) > 50
    assert {key[1] for key in expected} == set(range(STEPS))
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        for name, value in row.items():
            assert found[key][name] == (value if value is None else pytest.approx(value, rel=1e-6)), (key, name)


def test_files_are_written_where_they_are_wanted(runs: dict[str, Run]) -> None:
    def names(side: str) -> list[str]:
        paths = (runs[side].directory / "out").rglob("*.*")
        return sorted(path.name for path in paths if path.name != "dump_error_info.log")

    assert names("both") == names("msprobe")
    assert not names("trendprobe")


def test_losses_and_parameters_are_the_same_bit_for_bit(runs: dict[str, Run]) -> None:
    assert len(runs["msprobe"].numbers) > STEPS
    for side in SIDES[1:]:
        assert runs[side].numbers == runs["msprobe"].numbers


def test_the_shard_says_what_it_is_of(runs: dict[str, Run]) -> None:
    (shard,) = (runs["trendprobe"].directory / "trend").glob("*.shard")
    with sqlite3.connect(shard) as database:
        states = database.execute("SELECT DISTINCT state FROM steps").fetchall()
        kinds = dict(database.execute("SELECT key, value FROM shard_info"))
    assert states == [("complete",)]
    assert kinds["closed"] == 1
    assert kinds.get("framework") in ("mindspore", None)
