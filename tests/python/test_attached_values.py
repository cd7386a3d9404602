"""The real msProbe with TrendProbe attached: every value against msProbe's own, over models, ranks, and filters.

Each training runs three times: under msProbe alone; with its files kept, where its own code decides what is measured
and its data2db parses the same run; and without its files, where ours does all of it.
"""

import json
import math
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trend_rows import Row, assert_same, rows

HERE = Path(__file__).parent

Config = dict[str, Any]


def config(level: str = "mix", task: str = "statistics", *, trend_db: Config | None = None, **keys: Any) -> Config:
    statistics = {key: keys.pop(key) for key in ("scope", "list", "data_mode", "summary_mode") if key in keys}
    return {"task": task, "dump_path": "dump", "level": level, task: statistics, "trend_db": trend_db or {}, **keys}


# Every combination for one level, both values of everything for the other.
RUNS: dict[str, Config] = {
    f"{model}-{ranks}-{micro_batches}-{level}": {
        "model": model,
        "ranks": ranks,
        "micro_batches": micro_batches,
        "config": config(level),
    }
    for model in ("gpt", "cnn", "moe")
    for ranks in (1, 2)
    for micro_batches in (1, 2)
    for level in (("mix", "L0") if ranks == micro_batches else ("mix",))
}
FILTERED: dict[str, Config] = {
    "unusual-arguments": {"model": "unusual", "config": config()},
    "unusual-distributed": {"model": "unusual", "ranks": 2, "config": config("L0")},
    "megatron": {"model": "gpt", "micro_batches": 2, "megatron": True, "config": config()},
    "L1": {"model": "gpt", "config": config("L1")},
    "scope": {
        "model": "gpt",
        "config": config("L0", scope=["Module.blocks.0.Block.forward.0", "Module.blocks.2.Block.forward.0"]),
    },
    "list": {"model": "gpt", "config": config(list=["linear", "Module.head"])},
    "forward-only": {"model": "moe", "config": config(data_mode=["forward"])},
    "backward-inputs": {"model": "moe", "config": config(data_mode=["backward", "input"])},
    "outputs": {"model": "cnn", "config": config("L0", data_mode=["output"])},
    "md5": {"model": "cnn", "config": config("L0", summary_mode="md5")},
    "xor": {"model": "cnn", "config": config("L0", summary_mode="xor")},
    "asynchronous": {"model": "gpt", "config": config("L0", async_dump=True)},
    "no-module-tree": {"model": "gpt", "micro_batches": 2, "config": config("L0", extra_info=False)},
    "steps": {"model": "gpt", "steps": 4, "config": config("L0", step=[1, "3-3"])},
    "rank": {"model": "moe", "ranks": 2, "config": config("L0", rank=[1])},
    "core": {"model": "gpt", "config": config(risk_level="CORE")},
    "tensors": {"model": "moe", "config": config("L0", task="tensor")},
    "all-statistics": {
        "model": "unusual",
        "config": config(trend_db={"stats": ["norm", "max", "min", "mean", "std", "nans", "infs", "zeros"]}),
    },
}


def variants(name: str, training: Config, *, parsed: bool) -> list[Config]:
    def variant(kind: str, **changes: Any) -> Config:
        made = json.loads(json.dumps(training))
        made["config"]["trend_db"].update(enable=True, path="trend", keep_files=kind == "kept")
        return {**made, "directory": f"{name}/{kind}", "data2db": parsed and kind == "kept", **changes}

    return [variant("msprobe", trendprobe=False), variant("kept"), variant("alone")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All trainings, in <name>/<kind>."""
    root = tmp_path_factory.mktemp("trainings")
    trainings = [made for name, training in RUNS.items() for made in variants(name, training, parsed=True)]
    trainings += [made for name, training in FILTERED.items() for made in variants(name, training, parsed=False)]
    broken = variants("broken", {"model": "unusual", "config": config("L0")}, parsed=False)
    trainings += [broken[0], {**broken[2], "failing_values": True}]
    (root / "trainings.json").write_text(json.dumps(trainings))
    result = subprocess.run(
        [sys.executable, HERE / "attached_trainings.py", "trainings.json"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
    (root / "log.txt").write_text(result.stdout + result.stderr)
    return root


def merged(run: Path, source: str, trendprobe: Callable, *flags: object) -> dict[tuple[object, ...], Row]:
    database = run / f"db_of_{source}"
    trendprobe("merge", "--data", run / source, "--db", database, *flags)
    return rows(database / "dump_data.trend.db")


def values_by_target(found: dict[tuple[object, ...], Row]) -> dict[tuple[object, ...], list[list[float]]]:
    """The values of all calls of a target in a step, in the order of their size.

    In whatever order they were numbered: msProbe counts recomputed calls of an API as further calls.
    """
    values = defaultdict(list)
    for (rank, step, target, _, _, metric), row in found.items():
        numbers = [math.nan if value is None else value for value in row.values()]
        if all(map(math.isnan, numbers)):
            continue  # data2db has rows of tensors without statistics
        values[rank, step, target, "forward" if metric == "recompute" else metric].append(numbers)
    return {key: sorted(rows, key=str) for key, rows in values.items()}


@pytest.mark.parametrize("name", RUNS)
def test_every_value_of_msprobe_is_in_the_shard(root: Path, name: str, trendprobe: Callable) -> None:
    run = root / name / "kept"
    ours = values_by_target(merged(run, "trend", trendprobe, "--micro_step", "false"))
    theirs = values_by_target(rows(run / "msprobe_db/dump_data.trend.db"))
    assert len(theirs) > 100
    for key, expected in theirs.items():
        # It leaves out integers and bools, ours does not.
        assert len(ours[key]) >= len(expected), key
        remaining = list(ours[key])
        for values in expected:
            closest = min(remaining, key=lambda found: distance(found, values))
            assert distance(closest, values) < 2e-6, (key, values, remaining)
            remaining.remove(closest)


def distance(found: list[float], expected: list[float]) -> float:
    """The largest difference, relative to the largest of the four values; of a 0-d tensor msProbe's norm has a sign."""
    scale = max((abs(value) for value in expected if not math.isnan(value)), default=0) or 1
    pairs = zip([abs(found[0]), *found[1:]], [abs(expected[0]), *expected[1:]], strict=True)
    return max((abs(a - b) / scale for a, b in pairs if not math.isnan(b)), default=0)


# Not the GPT: its files don't tell which calls reentrant checkpointing made again.
@pytest.mark.parametrize("name", [name for name in RUNS if name.endswith("L0") and not name.startswith("gpt")])
def test_shard_holds_what_the_files_hold(root: Path, name: str, trendprobe: Callable) -> None:
    run = root / name / "kept"
    of_files = merged(run, "dump", trendprobe)
    for row in of_files.values():
        if row["norm"] is not None:
            row["norm"] = abs(row["norm"])  # of a 0-d tensor msProbe's norm has a sign
    assert_same(merged(run, "trend", trendprobe), of_files)


def test_recomputed_calls_are_told_apart(root: Path, trendprobe: Callable) -> None:
    """With both kinds of checkpointing, of modules and of APIs."""
    found = merged(root / "gpt-1-1-mix/alone", "trend", trendprobe)
    recomputed = {key[2].split(".input")[0] for key in found if key[5] == "recompute" and ".input" in key[2]}
    assert {"Module.blocks.1.mlp.0.Linear", "Module.blocks.2.mlp.0.Linear", "Functional.linear"} <= recomputed
    assert "Module.blocks.0.mlp.0.Linear" not in recomputed


@pytest.mark.parametrize("name", [*RUNS, *FILTERED])
def test_without_files_the_shard_is_the_same(root: Path, name: str, trendprobe: Callable) -> None:
    kept = merged(root / name / "kept", "trend", trendprobe)
    assert merged(root / name / "alone", "trend", trendprobe) == kept
    assert kept
    if name != "tensors":
        assert not list((root / name / "alone/dump").rglob("*.json"))


@pytest.mark.parametrize("name", [*RUNS, *FILTERED])
def test_training_is_the_same_bit_for_bit(root: Path, name: str) -> None:
    expected = {path.name: path.read_text() for path in (root / name / "msprobe").glob("losses.*")}
    assert expected
    for kind in ("kept", "alone"):
        assert {path.name: path.read_text() for path in (root / name / kind).glob("losses.*")} == expected


def test_filters_were_in_force(root: Path, trendprobe: Callable) -> None:
    """The comparison with msProbe's own choice means nothing where nothing was chosen."""

    def found(name: str) -> set[tuple[Any, ...]]:
        return set(rows(root / name / "alone/db_of_trend/dump_data.trend.db"))

    for name in ("scope", "list", "steps", "rank", "forward-only", "backward-inputs", "outputs", "core"):
        merged(root / name / "alone", "trend", trendprobe)
    assert {key[0] for key in found("rank")} == {1}
    assert {key[1] for key in found("steps")} == {0, 1}
    with sqlite3.connect(root / "steps/alone/db_of_trend/dump_data.trend.db") as database:
        assert database.execute("SELECT training_step FROM trendprobe_steps").fetchall() == [(1,), (3,)]
    assert {key[5] for key in found("forward-only")} == {"forward"}
    assert {key[5] for key in found("backward-inputs")} == {"backward", "parameters_grad"}
    assert not {key for key in found("outputs") if ".input." in key[2]}
    assert not {key for key in found("scope") if "head" in key[2] or "wte" in key[2]}
    assert all("linear" in key[2] or "head" in key[2] for key in found("list"))
    assert not {key for key in found("core") if key[2].startswith("Tensor.")}


def test_an_error_of_ours_ends_the_recording_and_nothing_else(root: Path, trendprobe: Callable) -> None:
    run = root / "broken"
    assert (run / "alone/losses.0.txt").read_text() == (run / "msprobe/losses.0.txt").read_text()
    log = (root / "log.txt").read_text()
    assert log.count("broken on purpose") == 1
    assert "TrendProbe records no more dump data; the training goes on" in log
    database = run / "alone/db"
    summary = trendprobe("merge", "--data", run / "alone/trend", "--db", database, code=1)
    assert "incomplete" in summary.stdout + summary.stderr
    assert {key[1] for key in rows(database / "dump_data.trend.db")} == {0, 1}
