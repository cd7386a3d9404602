"""TrainerMonitorV2's CSV: every value against the files themselves and against TrainerMon's of the same training."""

from __future__ import annotations

import csv
import math
import shutil
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trend_rows import rows
from trend_tiles import tile_values

STEPS, MICRO_BATCHES = 4, 2
METRICS = {"reduced": "grad_reduced", "unreduced": "grad_unreduced"}


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def expected_rows(tree: Path) -> dict[tuple[int, int, str, int, int, str], dict[str, float]]:
    """(rank, global step, target, vpp stage, call, metric) → statistics; one micro-batch runs after another."""
    expected = {}
    for path in sorted((tree / "rank_0").glob("*.csv")):
        micro_step = -1
        seen: Counter[tuple[int, str]] = Counter()
        for row in read_csv(path):
            name, scope = row["module_name"], row["scope"]
            statistics = {name: float(row[name]) for name in ("norm", "min", "max", "mean", "nans")}
            place = 0
            if path.name.startswith("module"):
                if (name, scope) == (".input.0", "forward"):  # the model's first row
                    micro_step += 1
                place = micro_step
                seen[micro_step, name] += 1
                # Only the checkpointed block runs twice within a micro-batch.
                metric = "actv" if scope == "forward" else "actv_grad"
                if seen[micro_step, name] == 2:
                    assert scope == "forward" and name.startswith("transformer.layers.1.")
                    metric = "recompute"
                name = name.replace(".grad_", ".")
            else:
                metric = METRICS.get(scope, scope)
                name = name.removesuffix(f".{scope}")
            step = int(row["step"]) * MICRO_BATCHES + place
            expected[0, step, name, 0, 0, metric] = statistics
    return expected


@pytest.fixture
def merged(tmp_path: Path, fixture_tree: Callable[[str], Path], trendprobe: Callable[..., Any]) -> Path:
    trendprobe("merge", "--data", fixture_tree("mon_v2_1rank") / "data", "--db", tmp_path)
    return tmp_path / "monitor_data.trend.db"


def test_every_row_of_the_files_is_a_record(merged: Path, fixture_tree: Callable[[str], Path]) -> None:
    tree = fixture_tree("mon_v2_1rank") / "data"
    expected = expected_rows(tree)
    assert len(expected) == sum(len(read_csv(path)) for path in tree.rglob("*.csv"))
    assert rows(merged) == expected
    with sqlite3.connect(merged) as database:
        axis = database.execute("SELECT step, training_step, micro_step FROM trendprobe_steps ORDER BY step").fetchall()
        assert database.execute("SELECT count(*) FROM trendprobe_issues").fetchone() == (0,)
    assert axis == [(i, i // MICRO_BATCHES, i % MICRO_BATCHES) for i in range(STEPS * MICRO_BATCHES)]
    tiles = tile_values(merged)
    assert len(tiles) == 5 * len(expected)


def test_it_agrees_with_trainermon_on_the_same_training(
    merged: Path, fixture_tree: Callable[[str], Path], tmp_path: Path, trendprobe: Callable[..., Any]
) -> None:
    trendprobe("merge", "--data", fixture_tree("mon_full_1rank") / "data", "--db", tmp_path / "v1")
    first = rows(tmp_path / "v1/monitor_data.trend.db")
    found = rows(merged)
    compared: Counter[str] = Counter()
    for (rank, step, name, stage, call, metric), statistics in first.items():
        if metric not in ("actv", "actv_grad", "grad_reduced", "param_origin"):
            continue  # the optimizer's begin a step late
        if metric.startswith("actv"):
            name = name if name[-1].isdigit() else f"{name}_0"
            name = name[::-1].replace("_", ".", 1)[::-1]  # input_1 is input.1
        same = found.get((rank, step, name, stage, call, metric))
        if same is None:
            continue
        compared[metric] += 1
        for statistic in ("norm", "min", "max"):
            assert same[statistic] == pytest.approx(statistics[statistic], rel=1e-5, abs=1e-9), (metric, name, step)
    assert compared["actv"] > 300 and compared["actv_grad"] > 200
    assert compared["grad_reduced"] == compared["param_origin"] == 40 * STEPS


def test_without_micro_steps_what_repeats_is_a_call(
    fixture_tree: Callable[[str], Path], tmp_path: Path, trendprobe: Callable[..., Any]
) -> None:
    trendprobe("data2db", "--data", fixture_tree("mon_v2_1rank") / "data", "--db", tmp_path, "--micro_step", "false")
    found = rows(tmp_path / "monitor_data.trend.db")
    expected = expected_rows(fixture_tree("mon_v2_1rank") / "data")
    assert found == {
        (rank, step // MICRO_BATCHES, name, stage, step % MICRO_BATCHES, metric): statistics
        for (rank, step, name, stage, _, metric), statistics in expected.items()
    }


@pytest.mark.parametrize("from_database", [False, True])
def test_without_micro_steps_no_call_replaces_another(
    from_database: bool, tmp_path: Path, trendprobe: Callable[..., Any]
) -> None:
    """A module that runs twice in each of two micro-batches: four rows, four records."""
    tree = tmp_path / "data/rank_0"
    tree.mkdir(parents=True)
    rows_of_step = [("", 1.0), ("a", 2.0), ("a", 3.0), ("", 4.0), ("a", 5.0), ("a", 6.0)]
    lines = [f"-1,0,{module}.input.0,forward,{norm}\n" for module, norm in rows_of_step]
    (tree / "module_step0-0.csv").write_text("vpp_stage,step,module_name,scope,norm\n" + "".join(lines))
    data = tmp_path / "data"
    if from_database:
        trendprobe("merge", "--data", data, "--db", tmp_path / "first")
        data = tmp_path / "first/monitor_data.trend.db"
    trendprobe("merge", "--data", data, "--db", tmp_path, "--micro_step", "false")
    found = {(key[2], key[4]): row["norm"] for key, row in rows(tmp_path / "monitor_data.trend.db").items()}
    assert found == {
        (".input.0", 0): 1.0,
        (".input.0", 1): 4.0,
        **{("a.input.0", call): 2.0 + call + (call > 1) for call in range(4)},
    }


def test_msprobes_own_command_reads_none_of_it(
    fixture_tree: Callable[[str], Path], tmp_path: Path, trendprobe: Callable[..., Any]
) -> None:
    data = fixture_tree("mon_v2_1rank") / "data"
    result = trendprobe("data2db", "--data", data, "--db", tmp_path / "out", "--compat", "msprobe", code=2)
    assert "is of TrainerMonitorV2, which msProbe's data2db does not read" in result.stderr


def test_gradients_of_every_micro_batch(tmp_path: Path, trendprobe: Callable[..., Any]) -> None:
    tree = tmp_path / "data/rank_3"
    tree.mkdir(parents=True)
    header = "vpp_stage,step,module_name,scope,micro_step,norm\n"
    lines = [f"-1,5,a.weight,unreduced,{m},{m}.5\n" for m in (1, 2, 3)] + ["-1,5,a.weight,reduced,3,9.0\n"]
    (tree / "weight_grad_step5-5.csv").write_text(header + "".join(lines))
    # Only the last micro-batch's gradient is recorded: it stands for the step.
    (tree / "weight_grad_step6-6.csv").write_text(
        header + "-1,6,a.weight,unreduced,3,4.0\n-1,6,a.weight,reduced,3,7.0\n"
    )
    trendprobe("merge", "--data", tmp_path / "data", "--db", tmp_path)
    found = rows(tmp_path / "monitor_data.trend.db")
    assert {(key[1], key[5]): row["norm"] for key, row in found.items()} == {
        **{(m, "grad_unreduced"): m + 1.5 for m in range(3)},
        (0, "grad_reduced"): 9.0,
        (3, "grad_unreduced"): 4.0,
        (3, "grad_reduced"): 7.0,
    }
    assert {key[0] for key in found} == {3}


def test_slugs_and_scopes_that_trainermon_lacks_keep_their_names(
    tmp_path: Path, trendprobe: Callable[..., Any]
) -> None:
    tree = tmp_path / "data/rank_0"
    tree.mkdir(parents=True)
    (tree / "cc_step0-0.csv").write_text(
        "vpp_stage,step,module_name,scope,norm\n-1,0,all_reduce/pre,comm,1.0\n-1,0,all_reduce/pre,comm,2.0\n"
    )
    (tree / "my_own.monitor_step0-0.csv").write_text("vpp_stage,step,module_name,scope,norm\n2,0,x,y,3.0\n")
    trendprobe("merge", "--data", tmp_path / "data", "--db", tmp_path)
    found = rows(tmp_path / "monitor_data.trend.db")
    assert {key: row["norm"] for key, row in found.items()} == {
        (0, 0, "all_reduce/pre", 0, 0, "cc"): 1.0,
        (0, 0, "all_reduce/pre", 0, 1, "cc"): 2.0,
        (0, 0, "x", 2, 0, "my_own.monitor"): 3.0,
    }


# Bad input. What is expected: the norms that are kept, and a part of the message.

HEADER = "vpp_stage,step,module_name,scope,norm,max\n"
GOOD = "-1,0,a,param_origin,1.0,2.0\n"
FAULTS = {
    "an empty file": ("", [], "is empty (0 bytes)"),
    "no column module_name": ("vpp_stage,step,name,scope,norm\n-1,0,a,b,1.0\n", [], "without the column module_name"),
    "no column scope": ("vpp_stage,step,module_name,norm\n-1,0,a,1.0\n", [], "without the column scope"),
    "no column step": ("vpp_stage,module_name,scope,norm\n-1,a,b,1.0\n", [], "without the column step"),
    "no statistic": ("vpp_stage,step,module_name,scope\n-1,0,a,b\n", [], "without the column of a statistic"),
    "a cut last line": (HEADER + GOOD + "-1,0,b,param_origin,1.0", [1.0], "line 3: is cut"),
    "too few fields": (HEADER + "-1,0,b\n" + GOOD, [1.0], "line 2: has fewer fields"),
    "too many fields": (HEADER + "-1,0,b,c,1.0,2.0,3.0\n" + GOOD, [1.0], "line 2: has more fields"),
    "a step that is no number": (HEADER + "-1,x,b,param_origin,5.0,2.0\n" + GOOD, [1.0], "a step that is no number"),
    "a stage that is no number": (HEADER + "?,0,b,param_origin,5.0,2.0\n" + GOOD, [1.0], "vpp_stage that is no number"),
    "a value that is no number": (
        HEADER + "-1,0,b,param_origin,x,2.0\n" + GOOD,
        [None, 1.0],
        "a value that is no number",
    ),
    "NUL bytes": (HEADER + "\0" * 100 + "\n" + GOOD, [1.0], "holds NUL bytes"),
}
FINE = {
    "CRLF": ((HEADER + GOOD).replace("\n", "\r\n"), [1.0]),
    "a byte order mark": ("\ufeff" + HEADER + GOOD, [1.0]),
    "a quoted comma": (HEADER + '-1,0,"a,b",param_origin,1.0,2.0\n', [1.0]),
    "an unknown column": ("vpp_stage,step,module_name,scope,norm,colour\n-1,0,a,param_origin,1.0,7\n", [1.0]),
    "columns in another order": ("norm,scope,module_name,step,vpp_stage\n1.0,param_origin,a,0,-1\n", [1.0]),
    "an empty cell": (HEADER + "-1,0,a,param_origin,,2.0\n", [None]),
    "infinities and NaN": (
        HEADER + "".join(f"-1,0,{n},param_origin,{v},2.0\n" for n, v in zip("abc", ("inf", "-inf", "nan"))),
        [math.inf, -math.inf, math.nan],
    ),
    "a huge step": (HEADER + "-1,1000000000000,a,param_origin,1.0,2.0\n", [1.0]),
}


def norms(path: Path) -> list[str]:
    """Of all records, NaN and infinities included, as the tiles have them."""
    if not path.exists():
        return []
    found = {key[2]: value for key, value in tile_values(path).items() if key[6] == "norm"}
    with sqlite3.connect(path) as database:
        names = [name for (name,) in database.execute("SELECT target_name FROM monitoring_targets")]
    return [found.get(name, "missing") for name in sorted(names)]


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_costs_its_rows_only_and_is_named(case: str, tmp_path: Path, trendprobe: Callable[..., Any]) -> None:
    text, kept, message = FAULTS[case]
    tree = tmp_path / "data/rank_0"
    tree.mkdir(parents=True)
    (tree / "param_step0-0.csv").write_text(text)
    result = trendprobe("merge", "--data", tmp_path / "data", "--db", tmp_path, code=1 if kept else 2)
    assert message in result.stderr and "param_step0-0.csv" in result.stderr
    expected = ["missing" if value is None else repr(value) for value in kept]
    assert sorted(norms(tmp_path / "monitor_data.trend.db")) == sorted(expected)


@pytest.mark.parametrize("case", FINE)
def test_what_is_unusual_but_right_is_read(case: str, tmp_path: Path, trendprobe: Callable[..., Any]) -> None:
    text, kept = FINE[case]
    tree = tmp_path / "data/rank_0"
    tree.mkdir(parents=True)
    (tree / "param_step0-1000000000000.csv").write_bytes(text.encode())
    trendprobe("merge", "--data", tmp_path / "data", "--db", tmp_path)
    expected = ["missing" if value is None else repr(value) for value in kept]
    assert norms(tmp_path / "monitor_data.trend.db") == expected


def test_names_of_files_and_directories(
    fixture_tree: Callable[[str], Path], tmp_path: Path, trendprobe: Callable[..., Any]
) -> None:
    """What is beside the files is named; ranks lie side by side; a v1 tree beside them is read, too."""
    shutil.copytree(fixture_tree("mon_v2_1rank") / "data", tmp_path / "data")
    shutil.copytree(tmp_path / "data/rank_0", tmp_path / "data/rank_12")
    for name in ("notes.csv", "module_stepx-3.csv", "module_step3-1.csv", "_step0-0.csv"):
        (tmp_path / "data/rank_0" / name).write_text("x")
    (tmp_path / "data/rank_x").mkdir()
    shutil.copytree(fixture_tree("mon_full_1rank") / "data", tmp_path / "data/v1")
    result = trendprobe("merge", "--data", tmp_path / "data", "--db", tmp_path)
    for name in ("notes.csv", "module_stepx-3.csv", "module_step3-1.csv", "_step0-0.csv"):
        assert f"{name}: is no file of TrainerMonitorV2 by its name" in result.stderr
    by_rank: defaultdict[int, int] = defaultdict(int)
    for key in rows(tmp_path / "monitor_data.trend.db"):
        by_rank[key[0]] += 1
    assert by_rank[12] == 2120
    assert by_rank[0] > 3000
