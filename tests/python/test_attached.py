"""A training under the real msProbe with TrendProbe attached: the shard against msProbe's own files, and the losses."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from trend_rows import assert_same, rows

ROOT = Path(__file__).parents[2]


def train(directory: Path, *, attached: bool, keep_files: bool = True, dtype: str = "float32") -> None:
    """Three steps of the demo's model in one process, a NaN in the last of them."""
    directory.mkdir()
    for name in ("dump", "monitor"):
        config = json.loads((ROOT / f"examples/msprobe_{name}.json").read_text())
        config["trend_db"]["keep_files"] = keep_files
        (directory / f"{name}.json").write_text(json.dumps(config))
    launcher = ["-m", "trendprobe.run"] if attached else []
    flags = f"--dtype {dtype} --steps 3 --nan-step 2 --loss-file losses.txt"
    flags += " --dump-config dump.json --monitor-config monitor.json"
    result = subprocess.run(
        [sys.executable, *launcher, ROOT / "examples/train_gpt.py", *flags.split()],
        cwd=directory,
        env={**os.environ, "MONITOR_OUTPUT_DIR": str(directory / "monitor"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("attached")
    train(root / "plain", attached=False)
    train(root / "attached", attached=True)
    train(root / "alone", attached=True, keep_files=False)
    train(root / "bfloat16", attached=True, dtype="bfloat16")
    return root


# msProbe computes in the tensor's own type: a bfloat16 has 8 significant bits.
@pytest.mark.parametrize(("name", "accuracy"), [("attached", 1e-6), ("bfloat16", 2**-7)])
@pytest.mark.parametrize("kind", ["dump", "monitor"])
def test_shard_holds_what_the_files_of_the_same_run_hold(
    runs: Path, kind: str, name: str, accuracy: float, trendprobe: Callable
) -> None:
    run = runs / name
    trendprobe("merge", "--data", run / "trend", "--db", run / "from_shard")
    trendprobe("merge", "--data", run / "msprobe_dump", "--data", run / "monitor", "--db", run / "from_files")
    ours = rows(run / f"from_shard/{kind}_data.trend.db")
    assert len(ours) > 2000
    assert_same(ours, rows(run / f"from_files/{kind}_data.trend.db"), accuracy)


def test_losses_and_parameters_are_the_same_bit_for_bit(runs: Path) -> None:
    plain = (runs / "plain/losses.txt").read_text()
    assert plain.count("\n") == 7  # six losses and the parameters' digest
    assert (runs / "attached/losses.txt").read_text() == plain
    assert (runs / "alone/losses.txt").read_text() == plain


def test_without_files_the_shard_is_the_same_and_msprobe_writes_none(runs: Path, trendprobe: Callable) -> None:
    run = runs / "alone"
    assert not [
        path for path in run.rglob("*") if path.suffix == ".csv" or path.name in ("stack.json", "construct.json")
    ]
    trendprobe("merge", "--data", run / "trend", "--db", run / "db")
    trendprobe("merge", "--data", runs / "attached/trend", "--db", run / "expected")
    for kind in ("dump", "monitor"):
        assert_same(rows(run / f"db/{kind}_data.trend.db"), rows(run / f"expected/{kind}_data.trend.db"))


def test_without_the_launcher_nothing_is_recorded(runs: Path) -> None:
    assert not (runs / "plain/trend").exists()
